// The request or block under the pointer, anywhere on the page. Each part of the page highlights what belongs to it.

export class Pointing {
  /** The id of a request, or null. */
  request = null;
  /** The number of a block, or null. */
  block = null;
  #listeners = [];

  /** Calls `listener` whenever the target changes. */
  onChange(listener) {
    this.#listeners.push(listener);
  }

  /** Sets the target. Without arguments, clears it. */
  at({ request = null, block = null } = {}) {
    if (request !== this.request || block !== this.block) {
      [this.request, this.block] = [request, block];
      this.#listeners.forEach((listener) => listener());
    }
  }
}

/** Calls `move` with pointer events over `element`, and `leave` when the pointer has left it. A lifted finger still counts
 * as pointing until it touches another element. */
export function follow(element, move, leave) {
  element.addEventListener("pointermove", move);
  element.addEventListener("pointerdown", move);
  element.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") {
      leave();
    }
  });
  document.addEventListener("pointerdown", (event) => {
    if (!element.contains(event.target)) {
      leave();
    }
  });
}

// What is pointed at, wherever it is: a request or a block. Each part of the page lights what belongs to it.

export class Pointing {
  /** The id of a request, or null. */
  request = null;
  /** The number of a block, or null. */
  block = null;
  #listeners = [];

  /** Calls `listener` when something else is pointed at. */
  onChange(listener) {
    this.#listeners.push(listener);
  }

  /** Something is pointed at, or no longer. */
  at({ request = null, block = null } = {}) {
    if (request !== this.request || block !== this.block) {
      [this.request, this.block] = [request, block];
      this.#listeners.forEach((listener) => listener());
    }
  }
}

/** Calls `move` with what a pointer does over `element`, and `leave` when it is elsewhere. A finger that was lifted still
 * points until it touches something else. */
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

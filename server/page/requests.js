// The running and the waiting requests.

import { errorOf } from "./api.js";
import { element, say } from "./element.js";
import { count } from "./format.js";
import { follow } from "./pointing.js";
import { Row } from "./row.js";

/** Maximum requests with a row, and maximum sequences with a visible block table. The limits keep the page fast when the
 * server is full. */
const MAX_ROWS = 200;
const MAX_TABLES = 48;

export class Requests {
  #api;
  #colours;
  #pointing;
  #summary;
  #error;
  #place;
  #more = element("p", "note");
  /** The rows by request id. */
  #rows = new Map();
  #state = null;
  /** Whether the keyboard's focus is what points, and not a pointer. */
  #isFocus = false;

  constructor(section, api, colours, pointing) {
    [this.#api, this.#colours, this.#pointing] = [api, colours, pointing];
    this.#summary = section.querySelector(".summary");
    this.#error = section.querySelector(".error");
    this.#place = section.querySelector(".rows");
    const point = (isFocus) => (event) => {
      this.#isFocus = isFocus;
      this.#point(event.target);
    };
    follow(this.#place, point(false), () => this.#leave());
    this.#place.addEventListener("focusin", point(true));
    // A finger moves the focus away after it has pointed at something else.
    this.#place.addEventListener("focusout", () => this.#isFocus && this.#leave());
    pointing.onChange(() => this.#light());
  }

  show(state) {
    this.#state = state;
    say(this.#summary, `${count(state.running.length)} running, ${count(state.waiting.length)} waiting`);
    // Waiting requests get up to half of the rows, so that running ones do not hide them.
    const running = state.running.slice(0, Math.max(MAX_ROWS / 2, MAX_ROWS - state.waiting.length));
    const waiting = state.waiting.slice(0, MAX_ROWS - running.length);
    const shown = new Set();
    let tables = MAX_TABLES;
    for (const request of [...running, ...waiting]) {
      shown.add(request.id);
      if (!this.#rows.has(request.id)) {
        this.#rows.set(request.id, new Row(request.id, (id) => this.#cancel(id)));
      }
      tables -= this.#rows.get(request.id).show(request, state, this.#colours, tables);
    }
    this.#arrange(shown);
    const left = [
      [state.running.length - running.length, "running"],
      [state.waiting.length - waiting.length, "waiting"],
    ].filter(([number]) => number > 0);
    say(this.#more, left.length > 0 ? `and ${left.map(([number, how]) => `${count(number)} more ${how}`).join(", ")}` : "");
    this.#light();
  }

  /** Puts the rows in order and removes rows of finished requests. While the pointer is over the rows, none is moved or
   * removed, because the user may be about to click. */
  #arrange(shown) {
    const isHeld = matchMedia("(hover: hover)").matches && this.#place.matches(":hover");
    for (const [id, row] of this.#rows) {
      if (!shown.has(id) && isHeld) {
        row.end();
      } else if (!shown.has(id)) {
        row.remove();
        this.#rows.delete(id);
      }
    }
    const all = [...this.#rows.values()];
    const order = isHeld ? all : [...shown].map((id) => this.#rows.get(id));
    const wanted = [...order.map((row) => row.element), ...(this.#state.requests.length > shown.size ? [this.#more] : [])];
    const present = [...this.#place.children];
    if (wanted.length !== present.length || wanted.some((element, i) => element !== present[i])) {
      this.#place.replaceChildren(...wanted);
    }
  }

  /** Cancels a request. Returns whether it has ended. */
  async #cancel(id) {
    const response = await this.#api.fetch(`/debug/requests/${id}`, { method: "DELETE" }).catch((error) => error);
    // A 404 means that the request has just ended.
    const isDone = response.ok || response.status === 404;
    say(this.#error, isDone ? "" : response.message ?? (await errorOf(response)));
    return isDone;
  }

  #point(target) {
    const request = target.closest?.(".request")?.dataset.request;
    const block = target.closest?.("code")?.dataset.block;
    const number = (text) => (text === undefined ? null : Number(text));
    this.#pointing.at({ request: number(request), block: number(block) });
  }

  #leave() {
    if (this.#pointing.request !== null) {
      this.#pointing.at();
    }
  }

  #light() {
    const { request, block } = this.#pointing;
    const holders = this.#state?.holders(block) ?? [];
    for (const [id, row] of this.#rows) {
      row.light(id === request || holders.includes(id));
    }
  }
}

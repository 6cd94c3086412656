// The requests that were refused last, with the reasons.

import { element, say } from "./element.js";
import { count } from "./format.js";

const SHOWN = 5;

export class Refused {
  #summary;
  #list;

  constructor(section) {
    this.#summary = section.querySelector(".summary");
    this.#list = section.querySelector("ul");
  }

  show({ refused }) {
    const latest = refused.slice(0, SHOWN);
    say(this.#summary, latest.length > 0 ? "The latest first, with the reason." : "None yet.");
    const key = JSON.stringify(latest);
    if (this.#list.dataset.shown !== key) {
      this.#list.dataset.shown = key;
      this.#list.replaceChildren(...latest.map(entry));
    }
  }
}

function entry({ at, times, status, endpoint, reason }) {
  const entry = element("li");
  const time = new Date(1000 * at).toLocaleTimeString("en-GB");
  const often = times > 1 ? `, ${count(times)} times` : "";
  entry.append(element("span", "note", `${time} ${endpoint}, status ${status}${often}`), element("p", "why", reason));
  return entry;
}

// The most recently finished requests.

import { element, say } from "./element.js";
import { count, duration } from "./format.js";

const SHOWN = 20;
const WORDS = { stop: "complete", length: "cut off", abort: "cancelled", error: "failed" };

export class Finished {
  #summary;
  #table;

  constructor(section) {
    this.#summary = section.querySelector(".summary");
    this.#table = section.querySelector("table");
  }

  show({ finished }) {
    const latest = finished.slice(0, SHOWN);
    say(this.#summary, latest.length > 0 ? "The latest first." : "None yet.");
    this.#table.hidden = latest.length === 0;
    const key = JSON.stringify(latest);
    if (this.#table.dataset.shown !== key) {
      this.#table.dataset.shown = key;
      this.#table.tBodies[0].replaceChildren(...latest.map(row));
    }
  }
}

function row(request) {
  const row = element("tr");
  const time = (seconds) => (seconds === null ? "–" : duration(seconds));
  const cells = [
    new Date(1000 * request.at).toLocaleTimeString("en-GB"),
    request.id,
    request.prompt_tokens === null ? "–" : count(request.prompt_tokens),
    count(request.output_tokens),
    time(request.first_token),
    time(request.time),
    ends(request.ended),
  ];
  row.append(...cells.map((text) => element("td", "", text)));
  row.classList.toggle("error", "error" in request.ended);
  return row;
}

/** Describes how a request's outputs ended. */
function ends(ended) {
  const ways = Object.entries(ended);
  const isOne = ways.length === 1;
  return ways.map(([way, outputs]) => (isOne ? WORDS[way] : `${outputs} ${WORDS[way]}`)).join(", ");
}

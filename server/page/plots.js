// The plots of the server's activity over time.

import { onNewLooks } from "./drawing.js";
import { count, duration, percent, rough } from "./format.js";
import { Plot } from "./plot.js";

/** The title of each plot, its field, the format of its values and the minimum end of its axis. */
const PLOTS = [
  ["tokens generated / s", "generated_tokens", rough, 10],
  ["tokens computed / s", "computed_tokens", rough, 10],
  ["requests answered / s", "requests", rough, 1],
  ["KV memory in use", "kv_used", percent, 1],
  ["requests running", "running", count, 2],
  ["requests waiting", "waiting", count, 2],
  ["first token, p95", "first_token_p95", duration, 0.001],
  ["further token, p95", "per_token_p95", duration, 0.001],
];
export class Plots {
  #plots;
  #history;
  /** The current figures, shown as headings. */
  #now = {};

  constructor(place, history) {
    this.#plots = PLOTS.map((plot) => new Plot(place, ...plot));
    this.#history = history;
    onNewLooks(() => this.show(this.#now));
  }

  show(now) {
    this.#now = now;
    this.#plots.forEach((plot) => plot.show(this.#history.samples, now));
  }
}

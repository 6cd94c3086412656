// The plots of the server's activity over time.

import { onNewLooks } from "./drawing.js";
import { count, duration, percent, rough } from "./format.js";
import { Plot } from "./plot.js";

/** The title of each plot, its field, the format of its values and the minimum end of its axis. */
const PLOTS = [
  ["tokens generated per second", "generated_tokens", rough, 10],
  ["tokens computed per second", "computed_tokens", rough, 10],
  ["requests answered per second", "requests", rough, 1],
  ["KV memory in use", "kv_used", percent, 1],
  ["requests running", "running", count, 2],
  ["requests waiting", "waiting", count, 2],
  ["time to first token, p95, last minute", "first_token_p95", duration, 0.001],
  ["time per further token, p95, last minute", "per_token_p95", duration, 0.001],
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

// The plots: what the server did over time.

import { onNewLooks } from "./drawing.js";
import { count, duration, rough } from "./format.js";
import { Plot } from "./plot.js";

const percent = (share) => `${rough(100 * share)} %`;
/** What each shows, its field, how its values are written, and how high its axis is at least. */
const PLOTS = [
  ["tokens generated / s", "generated_tokens", rough, 10],
  ["tokens computed / s", "computed_tokens", rough, 10],
  ["requests finished / s", "requests", rough, 1],
  ["KV memory in use", "kv_used", percent, 1],
  ["requests running", "running", count, 2],
  ["requests waiting", "waiting", count, 2],
  ["first token, p95", "first_token_p95", duration, 0.001],
  ["further token, p95", "per_token_p95", duration, 0.001],
];
/** How much time is shown: the least of these, in minutes, that shows all there is. */
const SPANS = [1, 2, 5, 10];

export class Plots {
  #plots;
  #history;

  constructor(place, history) {
    this.#plots = PLOTS.map((plot) => new Plot(place, ...plot));
    this.#history = history;
    onNewLooks(() => this.show());
  }

  show() {
    const samples = this.#history.samples;
    const covered = samples.length > 0 ? (samples.at(-1).time - samples[0].time) / 60 : 0;
    const minutes = SPANS.find((span) => span >= covered) ?? SPANS.at(-1);
    this.#plots.forEach((plot) => plot.show(samples, minutes));
  }
}

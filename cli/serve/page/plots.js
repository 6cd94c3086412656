// Small plots of the last minute: rates, queues and latencies.

import { prepare } from "./drawing.js";

/** How many values a plot shows: a minute, at two a second. */
const LENGTH = 120;
const HEIGHT = 54;

export class Plots {
  #plots;
  #latencies = new Map();

  constructor(place) {
    const plots = [
      ["generated tokens / s", ({ state }) => state.rates.generated_tokens],
      ["computed tokens / s", ({ state }) => state.rates.computed_tokens],
      ["requests done / s", ({ state }) => state.rates.requests],
      ["running requests", ({ state }) => state.running.length],
      ["waiting requests", ({ state }) => state.waiting.length],
      ["blocks used, %", ({ state }) => (100 * state.counts().used) / state.numBlocks],
      ["time to first token, ms", ({ metrics }) => this.#mean(metrics, "vllm:time_to_first_token_seconds")],
      ["time per token, ms", ({ metrics }) => this.#mean(metrics, "vllm:time_per_output_token_seconds")],
    ];
    this.#plots = plots.map(([name, value]) => ({ plot: new Plot(place, name), value }));
  }

  /** Appends what `state` and the text of `GET /metrics` say. */
  show(state, metrics) {
    for (const { plot, value } of this.#plots) {
      plot.push(value({ state, metrics }));
    }
  }

  /** The mean in milliseconds of what a histogram took in since the last time, or null if that is nothing. */
  #mean(metrics, name) {
    const [sum, count] = ["sum", "count"].map((part) => sample(metrics, `${name}_${part}`));
    const before = this.#latencies.get(name) ?? { sum, count };
    this.#latencies.set(name, { sum, count });
    return count > before.count ? (1000 * (sum - before.sum)) / (count - before.count) : null;
  }
}

/** The value of a metric in Prometheus' text format. */
function sample(metrics, name) {
  const line = metrics.split("\n").find((line) => line.startsWith(`${name}{`));
  return line ? Number(line.slice(line.lastIndexOf(" ") + 1)) : 0;
}

class Plot {
  #value = document.createElement("b");
  #canvas = document.createElement("canvas");
  /** The latest last; null where there was nothing to measure. */
  #values = [];

  constructor(place, name) {
    const caption = document.createElement("figcaption");
    caption.append(name, this.#value);
    const figure = document.createElement("figure");
    figure.append(caption, this.#canvas);
    place.append(figure);
  }

  push(value) {
    this.#values.push(value);
    if (this.#values.length > LENGTH) {
      this.#values.shift();
    }
    const last = this.#values.findLast((v) => v !== null);
    this.#value.textContent = last === undefined ? "–" : last.toFixed(last < 10 ? 1 : 0);
    this.#draw();
  }

  #draw() {
    const width = this.#canvas.clientWidth;
    const context = prepare(this.#canvas, width, HEIGHT);
    const style = getComputedStyle(this.#canvas);
    const top = Math.max(1, ...this.#values);
    const start = LENGTH - this.#values.length;
    context.strokeStyle = style.getPropertyValue("--accent");
    context.lineWidth = 1.5;
    context.beginPath();
    this.#values.forEach((value, i) => {
      if (value !== null) {
        context.lineTo(((start + i) / (LENGTH - 1)) * width, HEIGHT - 2 - (value / top) * (HEIGHT - 16));
      }
    });
    context.stroke();
    context.fillStyle = style.getPropertyValue("--faint");
    context.font = "10px system-ui, sans-serif";
    context.fillText(top.toFixed(top < 10 ? 1 : 0), 0, 9);
  }
}

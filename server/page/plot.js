// A plot of one of the server's figures over time, with its axes.

import { palette, prepare } from "./drawing.js";
import { element, say } from "./element.js";
import { follow } from "./pointing.js";

const HEIGHT = 56;

export class Plot {
  #field;
  #format;
  #least;
  #canvas = document.createElement("canvas");
  #value = element("b", "", "–");
  #labels = Object.fromEntries(["top", "zero", "then", "now"].map((name) => [name, element("span", name)]));
  #samples = [];
  #minutes = 1;
  /** Where the pointer is, if it is over the canvas. */
  #pointer = null;

  /** `format` makes words of values. The axis ends at `least`, or above the highest value. */
  constructor(place, name, field, format, least) {
    [this.#field, this.#format, this.#least] = [field, format, least];
    const figure = document.createElement("figure");
    const caption = element("figcaption");
    caption.append(element("span", "", name), this.#value);
    const axes = element("div", "axes");
    this.#canvas.setAttribute("role", "img");
    axes.append(this.#labels.top, this.#labels.zero, this.#canvas, this.#labels.then, this.#labels.now);
    figure.append(caption, axes);
    place.append(figure);
    this.name = name;
    follow(this.#canvas, (event) => this.#point(event.offsetX), () => this.#pointer !== null && this.#point(null));
  }

  /** Shows the last `minutes` of `samples`. */
  show(samples, minutes) {
    [this.#samples, this.#minutes] = [samples, minutes];
    this.#draw();
  }

  #point(x) {
    this.#pointer = x;
    this.#draw();
  }

  #draw() {
    const width = this.#canvas.clientWidth;
    const last = this.#samples.at(-1)?.time ?? 0;
    const first = last - 60 * this.#minutes;
    const shown = this.#samples.filter((sample) => sample.time >= first);
    const values = shown.map((sample) => sample[this.#field]).filter((value) => value !== null);
    const top = above(Math.max(this.#least, ...values));
    const x = (sample) => ((sample.time - first) / (last - first)) * width;
    const y = (value) => HEIGHT - 1 - (value / top) * (HEIGHT - 3);
    const context = prepare(this.#canvas, width, HEIGHT);
    const colours = palette(this.#canvas, "line", "accent", "text");
    grid(context, width, colours.line);
    this.#curve(context, shown, x, y, colours.accent);
    const pointed = this.#pointed(context, shown, x, colours.text);
    this.#label(pointed, shown.at(-1), last, top, values);
  }

  #curve(context, samples, x, y, colour) {
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    let before = null;
    samples.forEach((sample, i) => {
      const value = sample[this.#field];
      if (value !== null && before === null && (samples[i + 1]?.[this.#field] ?? null) === null) {
        // A value that stands alone has no line.
        context.rect(x(sample) - 0.5, y(value) - 0.5, 1, 1);
      } else if (value !== null) {
        context[before === null ? "moveTo" : "lineTo"](x(sample), y(value));
      }
      before = value;
    });
    context.stroke();
  }

  /** The sample that is pointed at, if one is; marks its time. */
  #pointed(context, samples, x, colour) {
    if (this.#pointer === null || samples.length === 0) {
      return null;
    }
    const distance = (sample) => Math.abs(x(sample) - this.#pointer);
    const nearest = samples.reduce((best, sample) => (distance(sample) < distance(best) ? sample : best));
    context.fillStyle = colour;
    context.fillRect(Math.round(x(nearest)) - 0.5, 0, 1, HEIGHT);
    return nearest;
  }

  #label(pointed, latest, last, top, values) {
    const value = (pointed ?? latest)?.[this.#field] ?? null;
    const text = value === null ? "–" : this.#format(value);
    say(this.#value, text);
    say(this.#labels.top, this.#format(top).replace(".0", ""));
    say(this.#labels.zero, "0");
    say(this.#labels.then, `${this.#minutes} min ago`);
    say(this.#labels.now, pointed ? `${Math.round(last - pointed.time)} s ago` : "now");
    const most = values.length > 0 ? `, at most ${this.#format(Math.max(...values))}` : "";
    this.#canvas.setAttribute("aria-label", `${this.name}: ${text} now${most} in the last ${this.#minutes} min`);
  }
}

/** Lines at the ends and in the middle of both axes. */
function grid(context, width, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (const y of [0.5, HEIGHT / 2 - 0.5, HEIGHT - 0.5]) {
    context.moveTo(0, y);
    context.lineTo(width, y);
  }
  for (const x of [0.5, Math.round(width / 2) - 0.5, width - 0.5]) {
    context.moveTo(x, 0);
    context.lineTo(x, HEIGHT);
  }
  context.stroke();
}

/** A round number that is no less than `value`: what an axis ends at. */
function above(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= value * 0.999);
}

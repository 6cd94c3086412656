// A plot of one of the server's figures over time, with its axes.

import { palette, prepare } from "./drawing.js";
import { element, say } from "./element.js";
import { ago } from "./format.js";
import { follow } from "./pointing.js";

const HEIGHT = 56;
/** The minimum distance between two points of a curve, in CSS pixels. Denser points would blur. */
const STEP = 2;

export class Plot {
  #field;
  #format;
  #least;
  #canvas = document.createElement("canvas");
  #value = element("b", "", "–");
  #labels = Object.fromEntries(["top", "zero", "then", "now"].map((name) => [name, element("span", name)]));
  #samples = [];
  #now = null;
  /** The x position of the pointer, if it is over the canvas. */
  #pointer = null;

  /** `format` formats a value. The axis ends at `least` or above the highest value. */
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

  /** Shows all `samples`, with the current figure from `now` as the heading. */
  show(samples, now) {
    [this.#samples, this.#now] = [samples, now[this.#field] ?? null];
    this.#draw();
  }

  #point(x) {
    this.#pointer = x;
    this.#draw();
  }

  #draw() {
    const width = this.#canvas.clientWidth;
    const shown = reduced(this.#samples, this.#field, width / STEP);
    const [first, last] = [shown[0]?.time ?? 0, shown.at(-1)?.time ?? 0];
    const values = shown.map((point) => point.value).filter((value) => value !== null);
    const top = above(Math.max(this.#least, ...values));
    // The curve takes the full width, however many samples exist.
    const x = (point) => (last > first ? (point.time - first) / (last - first) : 1) * width;
    const y = (value) => HEIGHT - 1 - (value / top) * (HEIGHT - 3);
    const context = prepare(this.#canvas, width, HEIGHT);
    const colours = palette(this.#canvas, "line", "accent", "text");
    grid(context, width, colours.line);
    this.#curve(context, shown, x, y, colours.accent);
    const pointed = this.#pointed(context, shown, x, colours.text);
    this.#label(pointed, last, top);
  }

  #curve(context, points, x, y, colour) {
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    let before = null;
    points.forEach((point, i) => {
      const { value } = point;
      if (value !== null && before === null && (points[i + 1]?.value ?? null) === null) {
        // An isolated value has no line, so it is drawn as a dot.
        context.rect(x(point) - 0.5, y(value) - 0.5, 1, 1);
      } else if (value !== null) {
        context[before === null ? "moveTo" : "lineTo"](x(point), y(value));
      }
      before = value;
    });
    context.stroke();
  }

  /** Returns the point under the pointer, if any, and marks its time. */
  #pointed(context, points, x, colour) {
    if (this.#pointer === null || points.length === 0) {
      return null;
    }
    const distance = (point) => Math.abs(x(point) - this.#pointer);
    const nearest = points.reduce((best, point) => (distance(point) < distance(best) ? point : best));
    context.fillStyle = colour;
    context.fillRect(Math.round(x(nearest)) - 0.5, 0, 1, HEIGHT);
    return nearest;
  }

  #label(pointed, last, top) {
    const covered = this.#samples.length > 1 ? this.#samples.at(-1).time - this.#samples[0].time : 0;
    const words = (value) => (value === null ? "–" : this.#format(value));
    say(this.#value, words(pointed ? pointed.value : this.#now));
    say(this.#labels.top, this.#format(top).replace(".0", ""));
    say(this.#labels.zero, "0");
    say(this.#labels.then, covered > 0 ? ago(covered) : "");
    say(this.#labels.now, pointed ? ago(last - pointed.time) : "now");
    const most = this.#samples.reduce((most, sample) => Math.max(most, sample[this.#field] ?? 0), 0);
    const spoken = `${this.name}: ${words(this.#now)} now, at most ${this.#format(most)} since ${ago(covered)}`;
    this.#canvas.setAttribute("aria-label", spoken);
  }
}

/** Reduces the samples to about `most` points, each the mean over some seconds. Groups are aligned to the server's start, so
 * that points do not change when new samples arrive. */
function reduced(samples, field, most) {
  const seconds = Math.max(1, Math.ceil(samples.length / Math.max(1, most)));
  const points = [];
  for (const { time, [field]: value } of samples) {
    const group = seconds === 1 ? time : Math.floor(time / seconds);
    if (points.at(-1)?.group !== group) {
      points.push({ group, times: [], values: [] });
    }
    points.at(-1).times.push(time);
    if (value !== null) {
      points.at(-1).values.push(value);
    }
  }
  return points.map(({ times, values }) => ({ time: mean(times), value: values.length > 0 ? mean(values) : null }));
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Draws lines at the ends and in the middle of both axes. */
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

/** Returns a round number of at least about `value`, at which an axis ends. */
function above(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= value * 0.999);
}

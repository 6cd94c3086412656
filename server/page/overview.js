// The most important facts for an operator, in words.

import { say } from "./element.js";
import { bytes, count, counted, duration, percent, rough } from "./format.js";

export class Overview {
  #section;

  constructor(section) {
    this.#section = section;
  }

  /** Shows `state`. `now` has the figures that the plots show too. */
  show(state, now) {
    this.#tile(
      "speed",
      rough(now.generated_tokens),
      `${rough(now.computed_tokens)} per second with prompt tokens; ${rough(now.requests)} requests answered per second`,
    );

    this.#tile("queue", count(now.waiting), `${count(now.running)} running; ${queue(state.waiting)}`);

    const { used } = state.counted;
    const size = state.engine.block_bytes;
    this.#tile(
      "used",
      percent(now.kv_used),
      `${bytes(used * size)} of ${bytes(state.numBlocks * size)}, in ${counted(used, state.unit)}`,
    );

    this.#tile("latency", time(now.first_token_p95), latency(state));

    this.#count(state);
  }

  #tile(name, value, note) {
    const tile = this.#section.querySelector(`#${name}`);
    say(tile.querySelector("b"), value);
    say(tile.querySelector(".note"), note);
  }

  #count({ counts, totals }) {
    const [begin, failed, rest] = this.#section.querySelectorAll("#counts span");
    say(begin, `Since the server started: ${counted(counts.finished, "request")} finished, `);
    say(failed, `${count(counts.failed)} failed`);
    failed.classList.toggle("error", counts.failed > 0);
    say(
      rest,
      `, ${count(counts.refused)} refused because the server was full, ${count(counts.invalid)} invalid, ` +
        `${count(counts.aborted)} cancelled. ${counted(totals.preemptions, "preemption")}, ` +
        `${counted(totals.copied_blocks, "block")} copied on write, ${count(totals.offloaded_blocks)} moved to swap space, ` +
        `${count(totals.restored_blocks)} restored from it.`,
    );
  }
}

/** How many requests of each kind wait, and the age of the oldest that has not started. */
function queue(waiting) {
  if (waiting.length === 0) {
    return "the queue is empty";
  }
  const fresh = waiting.filter((request) => !request.begun && !request.swapped);
  const swapped = waiting.filter((request) => request.swapped).length;
  const restarted = waiting.length - fresh.length - swapped;
  const words = [];
  if (fresh.length > 0) {
    const oldest = Math.max(...fresh.map((request) => request.age));
    words.push(`${count(fresh.length)} not started, the oldest arrived ${duration(oldest)} ago`);
  }
  if (swapped > 0) {
    words.push(`${count(swapped)} swapped out`);
  }
  if (restarted > 0) {
    words.push(`${count(restarted)} preempted`);
  }
  return words.join("; ");
}

/** Describes the latencies, or why there are none. */
function latency({ latency, running, waiting }) {
  const { requests, first_token_p95: first, per_token_p95: further, whole_p95: whole } = latency;
  if (requests > 0) {
    const rest = `${time(further)} per further token, ${time(whole)} for a whole request`;
    return first === null ? "no request that ended in the last minute had a token" : rest;
  }
  const requestsNow = running.length + waiting.length;
  const now = requestsNow > 0 ? `; ${counted(requestsNow, "is", "are")} in progress` : "";
  return `no request ended in the last minute${now}`;
}

function time(seconds) {
  return seconds === null ? "–" : duration(seconds);
}

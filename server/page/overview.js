// What an operator wants to know first, in words.

import { say } from "./element.js";
import { bytes, count, counted, duration, rough } from "./format.js";

/** Samples over which speeds are taken. */
const LATELY = 5;

export class Overview {
  #section;

  constructor(section) {
    this.#section = section;
  }

  show(state, history) {
    const speed = (field) => history.mean(field, LATELY);
    this.#tile(
      "speed",
      rough(speed("generated_tokens")),
      `${rough(speed("computed_tokens"))} with those of prompts; ${rough(speed("requests"))} requests a second`,
    );

    const oldest = Math.max(0, ...state.waiting.map((request) => request.age));
    const head = state.waiting.length > 0 ? `the oldest came ${duration(oldest)} ago` : "the queue is empty";
    this.#tile("queue", count(state.waiting.length), `${head}; ${count(state.running.length)} running`);

    const { used } = state.counted;
    const size = state.engine.block_bytes;
    this.#tile(
      "used",
      `${rough((100 * used) / state.numBlocks)} %`,
      `${bytes(used * size)} of ${bytes(state.numBlocks * size)}, in ${counted(used, "block")}`,
    );

    const { requests, first_token_p95: first, per_token_p95: further, whole_p95: whole } = state.latency;
    const time = (seconds) => (seconds === null ? "–" : duration(seconds));
    const note = `${time(further)} to each further one, ${time(whole)} for a whole request`;
    this.#tile("latency", time(first), requests > 0 ? note : "no request ended in the last minute");

    this.#count(state);
  }

  #tile(name, value, note) {
    const tile = this.#section.querySelector(`#${name}`);
    say(tile.querySelector("b"), value);
    say(tile.querySelector(".note"), note);
  }

  #count({ counts, totals }) {
    const [begin, failed, rest] = this.#section.querySelectorAll("#counts span");
    say(begin, `Since the start: ${counted(counts.finished, "request")} finished, `);
    say(failed, `${count(counts.failed)} failed`);
    failed.classList.toggle("error", counts.failed > 0);
    say(
      rest,
      `, ${count(counts.refused)} refused for lack of room, ${count(counts.invalid)} invalid, ` +
        `${count(counts.aborted)} cancelled; ${counted(totals.preemptions, "preemption")}, ` +
        `${counted(totals.copied_blocks, "block")} copied on write.`,
    );
  }
}

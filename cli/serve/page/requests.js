// The running and the waiting requests, with the block tables of their sequences.

import { colour } from "./drawing.js";

/** With so many sequences no further request is spelled out, so that the page stays quick when the server is full. */
const MAX_SEQUENCES = 48;
/** Blocks of a table that are spelled out. */
const MAX_BLOCKS = 64;

export class Requests {
  #summary;
  #rows;

  constructor(section) {
    this.#summary = section.querySelector(".summary");
    this.#rows = section.querySelector(".rows");
  }

  show(state) {
    this.#summary.textContent = `${state.running.length} running, ${state.waiting.length} waiting`;
    const rows = [];
    let sequences = 0;
    const all = [...state.running.map((r) => [r, "running"]), ...state.waiting.map((r) => [r, "waiting"])];
    for (const [request, queue] of all) {
      if (sequences >= MAX_SEQUENCES) {
        rows.push(element("p", "summary", `and ${all.length - rows.length} more requests`));
        break;
      }
      sequences += request.sequences.length;
      rows.push(row(request, queue, state));
    }
    this.#rows.replaceChildren(...rows);
  }
}

function row(request, queue, state) {
  const row = element("div", "request");
  const what = `request ${request.id}: ${queue}, ${request.age.toFixed(1)} s, ${request.prompt_tokens} prompt tokens`;
  const tables = element("div");
  const holding = request.sequences.filter((sequence) => sequence.table.length > 0);
  tables.append(...holding.map((sequence) => table(request, sequence, state)));
  if (holding.length === 0) {
    tables.append(element("span", "summary", "no blocks"));
  }
  row.append(element("span", "", what), tables);
  return row;
}

/** A sequence's block table: its physical blocks in logical order, with counts where they are shared. */
function table(request, sequence, state) {
  const line = element("div", "sequence");
  const { index, computed, tokens } = sequence;
  line.append(element("span", "", `sequence ${index}: ${computed} of ${tokens} tokens`));
  for (const block of sequence.table.slice(0, MAX_BLOCKS)) {
    const refs = state.refs[block];
    const cell = element("code", refs > 1 ? "shared" : "", refs > 1 ? `${block} ×${refs}` : block);
    cell.style.background = colour(request.id, index);
    line.append(cell);
  }
  if (sequence.table.length > MAX_BLOCKS) {
    line.append(`and ${sequence.table.length - MAX_BLOCKS} more`);
  }
  return line;
}

function element(name, className = "", text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

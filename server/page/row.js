// The row of a request in progress: a description, the block tables of its first sequences, and a button to cancel it.

import { element, say } from "./element.js";
import { count, counted, duration } from "./format.js";
import { standing } from "./state.js";

/** Maximum block tables per request, and maximum blocks per table. */
const MAX_TABLES = 4;
const MAX_BLOCKS = 64;
/** Whether the screen is so narrow that style.css shows one column. */
const NARROW = matchMedia("(max-width: 700px)");

export class Row {
  element = element("article", "request");
  id;
  #colour = element("i");
  #what = element("b");
  #how = element("span", "how");
  #cancel = element("button", "", "Cancel");
  #fold = document.createElement("details");
  #summary = element("summary");
  #tables = element("div", "tables");
  /** The data from which the tables were last drawn. */
  #drawn = "";

  /** Calls `cancel` when the button is clicked. */
  constructor(id, cancel) {
    this.id = id;
    this.element.dataset.request = id;
    this.#cancel.type = "button";
    this.#cancel.setAttribute("aria-label", `Cancel request ${id}`);
    this.#cancel.addEventListener("click", async () => {
      this.#cancel.disabled = true;
      this.#cancel.disabled = await cancel(id);
    });
    const head = element("div", "head");
    head.append(this.#colour, this.#what, this.#how, this.#cancel);
    this.#fold.append(this.#summary, this.#tables);
    this.#unfold();
    NARROW.addEventListener("change", this.#unfold);
    this.element.append(head, this.#fold);
  }

  /** Folds the tables away on a narrow screen, where a summary opens them. */
  #unfold = () => {
    this.#fold.open = !NARROW.matches;
  };

  /** Shows the request as it is in `state`, with no more than `room` block tables. Says how many it took. */
  show(request, state, colours, room) {
    say(this.#what, `Request ${this.id}`);
    this.#colour.style.background = colours.of(this.id, 0) ?? "";
    const { sequences } = request;
    const holding = sequences.filter((sequence) => sequence.table.length > 0);
    const made = Math.max(0, ...sequences.map((sequence) => sequence.tokens - request.prompt_tokens));
    say(
      this.#how,
      `${standing(request, state)}; arrived ${duration(request.age)} ago; ${counted(request.prompt_tokens, "prompt token")}, ` +
        `${count(made)} of ${counted(request.max_tokens, "token")} generated${holding.length === 0 ? "; no KV blocks" : ""}`,
    );
    const shown = holding.slice(0, Math.min(MAX_TABLES, room));
    const rest = holding.length > 0 ? sequences.length - shown.length : 0;
    const refs = (block) => (request.swapped ? 1 : state.refs[block]);
    const drawn = JSON.stringify([request.swapped, rest, shown.map((sequence) => [sequence, sequence.table.map(refs)])]);
    if (drawn !== this.#drawn) {
      this.#drawn = drawn;
      const tables = shown.map((sequence) => table(request, sequence, refs, colours));
      const more = `${shown.length > 0 ? "and " : ""}${count(rest)}${shown.length > 0 ? " more" : ""} ${rest === 1 ? "sequence" : "sequences"}`;
      this.#tables.replaceChildren(...tables, ...(rest > 0 ? [element("p", "note", more)] : []));
      say(this.#summary, `KV blocks of ${counted(holding.length, "sequence")}`);
      this.#fold.hidden = holding.length === 0;
    }
    return shown.length;
  }

  /** Takes it off the page. */
  remove() {
    NARROW.removeEventListener("change", this.#unfold);
  }

  /** Shows that it has ended. */
  end() {
    this.element.classList.add("over");
    this.#cancel.disabled = true;
    say(this.#how, "has ended");
  }

  /** Highlights the row if `isLit`. */
  light(isLit) {
    this.element.classList.toggle("lit", isLit);
  }
}

/** Creates a sequence's block table: its physical blocks in logical order, with reference counts of shared blocks. Blocks in
 * the swap space are not on the map, so they have no colour. */
function table(request, { index, computed, tokens, table }, refs, colours) {
  const line = element("div", "sequence");
  const progress = computed < tokens - 1 ? `${count(computed)} of ${count(tokens)} tokens` : counted(tokens, "token");
  line.append(element("span", "name", `sequence ${index}, ${progress}`));
  const blocks = element("span", request.swapped ? "blocks swapped" : "blocks", request.swapped ? "swapped out: " : "");
  for (const block of table.slice(0, MAX_BLOCKS)) {
    const held = refs(block);
    const cell = element("code", held > 1 ? "shared" : "", held > 1 ? `${block} ×${held}` : block);
    if (!request.swapped) {
      cell.dataset.block = block;
      cell.style.background = colours.of(request.id, index);
    }
    blocks.append(cell);
  }
  if (table.length > MAX_BLOCKS) {
    blocks.append(`and ${count(table.length - MAX_BLOCKS)} more`);
  }
  line.append(blocks);
  return line;
}

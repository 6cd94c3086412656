// The KV memory map, with one cell per physical block.

import { drawCell, style } from "./cells.js";
import { onNewLooks, palette, prepare } from "./drawing.js";
import { say } from "./element.js";
import { count, counted } from "./format.js";
import { Legend } from "./legend.js";
import { follow } from "./pointing.js";

/** Cells are as large as the height allows, within these limits in CSS pixels. */
const LARGEST = 56;
const SMALLEST = 3;
const HEIGHT = 290;

/** Names the cells of the map, and counts them. */
function cells({ unit, numBlocks, blockSize }) {
  const blocks = `blocks of ${blockSize} tokens`;
  return unit === "block" ? `${count(numBlocks)} ${blocks}` : `${counted(numBlocks, unit)} with ${blocks}`;
}

export class Memory {
  #canvas;
  #summary;
  #tip;
  #legend;
  #colours;
  #pointing;
  #state = null;
  #size = LARGEST;
  #columns = 1;
  /** The position of the pointer, if it is over the canvas. */
  #pointer = null;

  constructor(section, colours, pointing) {
    this.#canvas = section.querySelector("canvas");
    this.#summary = section.querySelector(".summary");
    this.#tip = section.querySelector(".tip");
    this.#legend = new Legend(section.querySelector(".legend"));
    [this.#colours, this.#pointing] = [colours, pointing];
    const over = (event) => this.#point({ x: event.offsetX, y: event.offsetY });
    follow(this.#canvas, over, () => this.#pointer && this.#point(null));
    pointing.onChange(() => this.#draw());
    onNewLooks(() => this.#draw(true));
  }

  show(state) {
    this.#state = state;
    const { used, shared, cached, highest } = state.counted;
    const text =
      `${used === 0 ? "All free: " : ""}${count(used)} of ${cells(state)} in use, ${count(shared)} shared` +
      `${shared > 0 ? ` (by up to ${counted(highest, "sequence")})` : ""}, ${count(cached)} free and kept for reuse`;
    say(this.#summary, text);
    this.#canvas.setAttribute("aria-label", `A map of the KV memory: ${text}`);
    this.#draw();
    this.#describe();
  }

  /** Chooses the size of the cells. Returns the height of the map. */
  #fit(width) {
    const rows = (size) => Math.ceil(this.#state.numBlocks / Math.max(1, Math.floor(width / size)));
    this.#size = LARGEST;
    while (this.#size > SMALLEST && rows(this.#size) * this.#size > HEIGHT) {
      this.#size -= 1;
    }
    this.#columns = Math.max(1, Math.floor(width / this.#size));
    if (this.#columns <= this.#state.numBlocks) {
      // Enlarges the cells until the columns fill the width.
      this.#size = Math.max(SMALLEST, Math.floor(width / this.#columns));
    }
    return Math.ceil(this.#state.numBlocks / this.#columns) * this.#size;
  }

  #draw(anew = false) {
    const width = this.#canvas.clientWidth;
    if (!this.#state || width === 0) {
      return;
    }
    const height = this.#fit(width);
    this.#legend.show(this.#size, anew);
    const context = prepare(this.#canvas, width, height);
    const colours = palette(this.#canvas, "free", "cached", "faint");
    const drawn = style(this.#size);
    const isLit = this.#lit();
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let block = 0; block < this.#state.numBlocks; block += 1) {
      const owners = this.#state.owners.get(block) ?? [];
      const kind = {
        colours: owners.map(([request, sequence]) => this.#colours.of(request, sequence)),
        refs: this.#state.refs[block],
        cached: this.#state.cached[block],
        id: block,
      };
      const [x, y] = [(block % this.#columns) * this.#size, Math.floor(block / this.#columns) * this.#size];
      // Blocks that are not highlighted are dimmed.
      context.globalAlpha = isLit(block, owners) ? 1 : 0.2;
      drawCell(context, x, y, this.#size, drawn, kind, colours);
    }
  }

  /** Returns a function that tells whether a block is highlighted. If nothing is pointed at, or a request without blocks,
   * all blocks are. */
  #lit() {
    const { request, block: pointed } = this.#pointing;
    if (request !== null && pointed !== null) {
      return (block) => block === pointed;
    }
    const requests = this.#state.holding(request !== null ? [request] : this.#state.holders(pointed));
    return (block, owners) => requests.length === 0 || owners.some((owner) => requests.includes(owner[0]));
  }

  #point(pointer) {
    this.#pointer = pointer;
    const block = this.#blockUnderPointer();
    this.#pointing.at({ block });
    this.#describe();
  }

  /** Describes the block under the pointer. */
  #describe() {
    const block = this.#blockUnderPointer();
    this.#tip.hidden = block === null;
    if (block === null) {
      return;
    }
    const owners = this.#state.owners.get(block) ?? [];
    const lines = [`${this.#state.unit} ${block}: used by ${counted(this.#state.refs[block], "sequence")}`];
    lines.push(...owners.slice(0, 8).map(([request, sequence]) => `request ${request}, sequence ${sequence}`));
    if (owners.length > 8) {
      lines.push(`and ${owners.length - 8} more`);
    }
    if (this.#state.cached[block]) {
      lines.push("kept for reuse");
    }
    say(this.#tip, lines.join("\n"));
    const left = Math.min(this.#pointer.x + 14, this.#canvas.clientWidth - this.#tip.offsetWidth);
    this.#tip.style.left = `${Math.max(0, left)}px`;
    // Above or below the map, so that the tip does not cover the block.
    const isRoomAbove = this.#canvas.getBoundingClientRect().top > this.#tip.offsetHeight;
    this.#tip.style.top = `${isRoomAbove ? -this.#tip.offsetHeight - 2 : this.#canvas.clientHeight + 2}px`;
  }

  #blockUnderPointer() {
    if (!this.#pointer || !this.#state) {
      return null;
    }
    const column = Math.floor(this.#pointer.x / this.#size);
    const block = Math.floor(this.#pointer.y / this.#size) * this.#columns + column;
    return column < this.#columns && block >= 0 && block < this.#state.numBlocks ? block : null;
  }
}

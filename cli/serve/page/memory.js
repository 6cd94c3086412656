// The KV memory: a cell for each physical block.

import { colour, prepare } from "./drawing.js";

/** Cells are as large as the height allows, between these limits, in CSS pixels. */
const LARGEST = 56;
const SMALLEST = 3;
const HEIGHT = 360;
/** The least size of a cell that has room for its reference count, its number, and an outline. */
const ROOM_FOR_COUNT = 14;
const ROOM_FOR_ID = 36;
const ROOM_FOR_OUTLINE = 8;

export class Memory {
  #canvas;
  #summary;
  #tip;
  #state = null;
  #size = LARGEST;
  #columns = 1;
  /** Where the pointer is, if it is over the canvas. */
  #pointer = null;

  constructor(section) {
    this.#canvas = section.querySelector("canvas");
    this.#summary = section.querySelector(".summary");
    this.#tip = section.querySelector(".tip");
    for (const kind of ["pointermove", "pointerdown"]) {
      this.#canvas.addEventListener(kind, (event) => {
        this.#pointer = { x: event.offsetX, y: event.offsetY };
        this.#point();
      });
    }
    this.#canvas.addEventListener("pointerleave", () => {
      this.#pointer = null;
      this.#point();
    });
    addEventListener("resize", () => this.#draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  show(state) {
    this.#state = state;
    const { used, shared, cached, highest } = state.counts();
    const { preemptions, copied_blocks } = state.totals;
    this.#summary.textContent =
      `${used} of ${state.numBlocks} blocks of ${state.blockSize} tokens used, ${shared} shared, ${cached} cached; ` +
      `highest reference count ${highest}; ${copied_blocks} copied on write, ${preemptions} preemptions so far`;
    this.#draw();
    this.#point();
  }

  /** Chooses the size of the cells. */
  #fit(width) {
    const rows = (size) => Math.ceil(this.#state.numBlocks / Math.max(1, Math.floor(width / size)));
    this.#size = LARGEST;
    while (this.#size > SMALLEST && rows(this.#size) * this.#size > HEIGHT) {
      this.#size -= 1;
    }
    this.#columns = Math.max(1, Math.floor(width / this.#size));
    return rows(this.#size) * this.#size;
  }

  #draw() {
    const width = this.#canvas.clientWidth;
    if (!this.#state || width === 0) {
      return;
    }
    const height = this.#fit(width);
    const context = prepare(this.#canvas, width, height);
    const style = getComputedStyle(this.#canvas);
    const palette = {};
    for (const name of ["free", "cached", "text"]) {
      palette[name] = style.getPropertyValue(`--${name}`);
    }
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let block = 0; block < this.#state.numBlocks; block += 1) {
      this.#drawBlock(context, block, palette);
    }
  }

  #drawBlock(context, block, palette) {
    const size = this.#size;
    const x = (block % this.#columns) * size;
    const y = Math.floor(block / this.#columns) * size;
    const side = size >= 4 ? size - 1 : size;
    const refs = this.#state.refs[block];
    this.#fill(context, block, x, y, side, palette);
    if (this.#state.cached[block]) {
      const all = refs === 0 && size < ROOM_FOR_OUTLINE;
      const bar = all ? side : Math.max(1, Math.round(side * 0.25));
      context.fillStyle = palette.cached;
      context.fillRect(x, y + side - bar, side, bar);
    }
    if (refs > 1 && size >= ROOM_FOR_OUTLINE) {
      const line = size >= 20 ? 2 : 1;
      context.strokeStyle = palette.text;
      context.lineWidth = line;
      context.strokeRect(x + line / 2, y + line / 2, side - line, side - line);
    } else if (refs > 1) {
      const dot = Math.max(1, Math.floor(side / 3));
      context.fillStyle = palette.text;
      context.fillRect(x + Math.floor((side - dot) / 2), y + Math.floor((side - dot) / 2), dot, dot);
    }
    if (refs > 0 && size >= ROOM_FOR_COUNT) {
      context.fillStyle = "#111";
      context.font = `600 ${Math.min(18, Math.round(size * 0.55))}px system-ui, sans-serif`;
      context.fillText(refs, x + side / 2, y + side / 2 + 1, side);
    }
    if (size >= ROOM_FOR_ID) {
      context.fillStyle = refs > 0 ? "#111" : palette.text;
      context.font = "9px system-ui, sans-serif";
      context.fillText(block, x + side / 2, y + 8, side - 4);
    }
  }

  /** Fills a cell with the colours of those who hold the block, beside each other where they can be told apart. */
  #fill(context, block, x, y, side, palette) {
    const owners = this.#state.owners.get(block);
    if (!owners) {
      context.fillStyle = palette.free;
      context.fillRect(x, y, side, side);
      return;
    }
    const bands = side < ROOM_FOR_OUTLINE ? 1 : Math.min(owners.length, Math.floor(side / 3));
    for (let i = 0; i < bands; i += 1) {
      const [from, to] = [Math.round((i * side) / bands), Math.round(((i + 1) * side) / bands)];
      context.fillStyle = colour(...owners[i]);
      context.fillRect(x + from, y, to - from, side);
    }
  }

  /** Says what is known of the block under the pointer. */
  #point() {
    const block = this.#blockUnderPointer();
    this.#tip.hidden = block === null;
    if (block === null) {
      return;
    }
    const refs = this.#state.refs[block];
    const owners = this.#state.owners.get(block) ?? [];
    const lines = [`block ${block}`, refs === 1 ? "1 reference" : `${refs} references`];
    lines.push(...owners.slice(0, 8).map(([request, sequence]) => `request ${request}, sequence ${sequence}`));
    if (owners.length > 8) {
      lines.push(`and ${owners.length - 8} more`);
    }
    if (this.#state.cached[block]) {
      lines.push("cached for a prefix");
    }
    this.#tip.textContent = lines.join("\n");
    const { offsetLeft, offsetTop, clientWidth } = this.#canvas;
    const left = Math.min(this.#pointer.x + 14, clientWidth - this.#tip.offsetWidth);
    this.#tip.style.left = `${offsetLeft + Math.max(0, left)}px`;
    this.#tip.style.top = `${offsetTop + this.#pointer.y + 18}px`;
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

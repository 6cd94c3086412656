// The legend of the KV memory map: each kind of block as the map draws it, with its meaning.

import { drawCell, style } from "./cells.js";
import { DISTINCT, SHADES } from "./colours.js";
import { palette, prepare } from "./drawing.js";
import { element } from "./element.js";

/** The maximum size of a sample, in CSS pixels. */
const LARGEST = 20;

export class Legend {
  #list;
  #size = null;

  constructor(list) {
    this.#list = list;
  }

  /** Explains cells of this size. With `anew`, redraws even if the size is unchanged. */
  show(size, anew = false) {
    if (size === this.#size && !anew) {
      return;
    }
    this.#size = size;
    const drawn = style(size);
    const shared = drawn.count
      ? "shared: one stripe per sequence, and the number of sequences"
      : drawn.outline
        ? "shared: outlined, one stripe per sequence"
        : "shared by several sequences: dotted";
    const [[first, second], [other]] = SHADES;
    this.#list.replaceChildren(
      this.#entry("free", "free", [{ colours: [], refs: 0 }]),
      this.#entry("cached", "free, kept for reuse", [{ colours: [], refs: 0, cached: true }]),
      this.#entry("held", `in use: one colour per request (they repeat after ${DISTINCT}), a shade of it per sequence`, [
        { colours: [first], refs: 1 },
        { colours: [other], refs: 1 },
      ]),
      this.#entry("shared", shared, [{ colours: [first, second], refs: 2 }]),
    );
  }

  /** Creates a line: sample blocks of `kinds` and a text. Small cells are drawn at their size, as a patch of several. */
  #entry(name, text, kinds) {
    const entry = element("li", name);
    const canvas = document.createElement("canvas");
    const side = Math.min(this.#size, LARGEST);
    const each = Math.max(1, Math.floor(LARGEST / side / kinds.length)) * side;
    const height = Math.max(1, Math.floor(16 / side)) * side;
    const colours = palette(this.#list, "free", "cached", "faint");
    canvas.style.width = `${each * kinds.length}px`;
    const context = prepare(canvas, each * kinds.length, height);
    context.textAlign = "center";
    context.textBaseline = "middle";
    kinds.forEach((kind, i) => {
      for (let x = i * each; x < (i + 1) * each; x += side) {
        for (let y = 0; y < height; y += side) {
          drawCell(context, x, y, side, { ...style(this.#size), id: false }, kind, colours);
        }
      }
    });
    entry.append(canvas, text);
    return entry;
  }
}

// A cell of the map of the KV memory, and what of it there is room for.

/** The least size of a cell that has room for its reference count, its number, and an outline. */
const ROOM_FOR_COUNT = 14;
const ROOM_FOR_ID = 36;
const ROOM_FOR_OUTLINE = 8;
const DARK = "#000";

/** What is drawn in cells of this size, in CSS pixels. */
export function style(size) {
  return {
    gap: size >= 4 ? 1 : 0,
    count: size >= ROOM_FOR_COUNT,
    id: size >= ROOM_FOR_ID,
    outline: size >= ROOM_FOR_OUTLINE,
  };
}

/** Draws a block: `colours` of those who hold it, none if it is free; `refs`, how many these are; whether it is `cached`;
 * its `id`. */
export function drawCell(context, x, y, size, style, { colours, refs, cached, id }, palette) {
  const side = size - style.gap;
  if (colours.length === 0) {
    context.fillStyle = cached ? palette.cached : palette.free;
    context.fillRect(x, y, side, side);
  }
  // Stripes beside each other, where they can be told apart.
  const stripes = style.outline ? Math.min(colours.length, Math.floor(side / 3)) : Math.min(colours.length, 1);
  for (let i = 0; i < stripes; i += 1) {
    const [from, to] = [Math.round((i * side) / stripes), Math.round(((i + 1) * side) / stripes)];
    context.fillStyle = colours[i];
    context.fillRect(x + from, y, to - from, side);
  }
  if (refs > 1) {
    mark(context, x, y, side, style, refs);
  }
  if (style.id) {
    context.fillStyle = colours.length > 0 ? DARK : palette.faint;
    context.font = "10px system-ui, sans-serif";
    context.fillText(id, x + side / 2, y + 9, side - 4);
  }
}

/** What says that a block is shared: an outline and the number of those who hold it, or else a dot. */
function mark(context, x, y, side, style, refs) {
  context.fillStyle = DARK;
  if (!style.outline) {
    // A small one, so that the colours are still seen.
    const dot = Math.max(1, Math.floor(side / 3));
    context.fillRect(x + Math.floor((side - dot) / 2), y + Math.floor((side - dot) / 2), dot, dot);
    return;
  }
  const line = side >= 20 ? 2 : 1;
  context.strokeStyle = DARK;
  context.lineWidth = line;
  context.strokeRect(x + line / 2, y + line / 2, side - line, side - line);
  if (style.count) {
    context.font = `600 ${Math.min(18, Math.round(side * 0.55))}px system-ui, sans-serif`;
    context.fillText(refs, x + side / 2, y + side / 2 + (style.id ? 3 : 1), side);
  }
}

// Draws a cell of the KV memory map, with the details that fit its size.

/** The minimum size of a cell for a reference count, a block number and an outline, in CSS pixels. */
const ROOM_FOR_COUNT = 14;
const ROOM_FOR_ID = 36;
const ROOM_FOR_OUTLINE = 8;
const DARK = "#000";

/** Returns the details that are drawn in cells of this size, in CSS pixels. */
export function style(size) {
  return {
    gap: size >= 4 ? 1 : 0,
    count: size >= ROOM_FOR_COUNT,
    id: size >= ROOM_FOR_ID,
    outline: size >= ROOM_FOR_OUTLINE,
  };
}

/** Draws a block. `colours` are the colours of its owners, empty if it is free. `refs` is its reference count, `cached`
 * tells whether it is cached, and `id` is its number. */
export function drawCell(context, x, y, size, style, { colours, refs, cached, id }, palette) {
  const side = size - style.gap;
  if (colours.length === 0) {
    context.fillStyle = cached ? palette.cached : palette.free;
    context.fillRect(x, y, side, side);
  }
  // One stripe per owner, if the stripes can be told apart.
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

/** Marks a block as shared: by an outline and its reference count, or by a dot in small cells. */
function mark(context, x, y, side, style, refs) {
  context.fillStyle = DARK;
  if (!style.outline) {
    // The dot is small, so that the colours stay visible.
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

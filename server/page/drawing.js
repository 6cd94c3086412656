// What all canvases have in common.

/** An empty canvas of this size in CSS pixels, as sharp as the screen. */
export function prepare(canvas, width, height) {
  const scale = devicePixelRatio;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

/** The values of custom properties of the style sheet. */
export function palette(element, ...names) {
  const style = getComputedStyle(element);
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
}

/** Calls `draw` when the window has another size or the colours are others. */
export function onNewLooks(draw) {
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// Helpers for all canvases.

/** Resizes and clears a canvas to a size in CSS pixels, at the screen's resolution. Returns its drawing context. */
export function prepare(canvas, width, height) {
  const scale = devicePixelRatio;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

/** Returns the values of custom properties of the style sheet. */
export function palette(element, ...names) {
  const style = getComputedStyle(element);
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
}

/** Calls `draw` when the window size or the colour scheme changes. */
export function onNewLooks(draw) {
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

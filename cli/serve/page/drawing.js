// What all that is drawn has in common: colours and canvases.

/** The colour of a sequence: a hue for its request, a lightness of its own; dark text can be read on all of them. */
export function colour(request, sequence) {
  const hue = (request * 137.508 + 215) % 360; // the golden angle keeps neighbours apart
  return `hsl(${hue.toFixed()} 75% ${76 - 8 * (sequence % 3) + (sequence > 2 ? 4 : 0)}%)`;
}

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

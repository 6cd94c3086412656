// The server's current figures. Tiles and plot headings share them, so they always agree.

/** Number of samples, one per second, over which speeds are averaged. */
const LATELY = 5;

/** Returns the figures by their field names in `GET /debug/history`. Unknown figures are null. */
export function figures(state, history) {
  const { first_token_p95, per_token_p95 } = state.latency;
  return {
    generated_tokens: history.mean("generated_tokens", LATELY),
    computed_tokens: history.mean("computed_tokens", LATELY),
    requests: history.mean("requests", LATELY),
    running: state.running.length,
    waiting: state.waiting.length,
    kv_used: state.counted.used / state.numBlocks,
    first_token_p95,
    per_token_p95,
  };
}

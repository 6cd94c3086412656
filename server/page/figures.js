// The server's figures now. Tiles and headings of plots say the same, since both say these.

/** Samples over which speeds are taken: seconds. */
const LATELY = 5;

/** Figures by the names that the samples of `GET /debug/history` have for them; null where there is none. */
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

// Reads answers that are streamed as server-sent events.

import { errorOf } from "./api.js";

/** Yields the events of a streamed answer to `body`. */
export async function* events(api, path, body, signal) {
  const response = await api.fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  if (!response.ok) {
    throw new Error(await errorOf(response));
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      throw new Error("the server ended its answer early");
    }
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.slice("data: ".length);
      if (data === "[DONE]") {
        return;
      }
      const json = JSON.parse(data);
      if (json.error) {
        throw new Error(json.error.message);
      }
      yield json;
    }
  }
}

/** Returns the meaning of a finish reason. */
export function meaning(reason, maxTokens) {
  const words = { stop: "finished", length: maxTokens ? `cut at ${maxTokens} tokens` : "context full", abort: "cancelled" };
  return words[reason] ?? reason;
}

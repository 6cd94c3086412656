// What this server is: its version, its model, its device and its limits.

import { element, say } from "./element.js";
import { bytes, count, counted, percent, span } from "./format.js";

/** What the limits are called that `GET /debug/state` names, and how they are written. */
const LIMITS = {
  max_queue: ["requests waiting at most", count],
  max_queue_seqs: ["sequences waiting at most", count],
  max_request_seqs: ["sequences of a request at most", count],
  max_requests: ["HTTP requests at most", count],
  max_connections: ["connections at most", count],
  max_body_bytes: ["body of a request at most", bytes],
  request_timeout: ["time for a request", span],
  stop_timeout: ["time for requests when it stops", span],
};

export class Server {
  #facts;
  #list;
  #model;

  constructor(model, facts, section) {
    [this.#model, this.#facts, this.#list] = [model, facts, section.querySelector("dl")];
  }

  show({ server, engine, numBlocks, blockSize, swap_used: swapUsed, swap_cached: swapCached }) {
    say(this.#model, server.model);
    const up = `up ${span(server.uptime)}`;
    say(this.#facts, [server.version, up, engine.device, `weights ${engine.dtype}`, `context ${count(engine.max_len)}`].join(" · "));
    const facts = [
      ["version", server.version],
      ["up for", span(server.uptime)],
      ["model", server.model],
      ["chat template", server.chat ? "yes" : "none"],
      ["device", [engine.device, ...engine.notes].join("; ")],
      ["type of the weights", engine.dtype],
      ["context length", counted(engine.max_len, "token")],
      ["KV memory", `${counted(numBlocks, "block")} of ${counted(blockSize, "token")} in ${engine.kv_dtype}, ${bytes(numBlocks * engine.block_bytes)}`],
      ["swap space", `${counted(engine.swap_blocks, "block")}, ${bytes(engine.swap_blocks * engine.block_bytes)}; ${count(swapUsed)} in use, ${count(swapCached)} kept for prefixes`],
      ["sequences in a step at most", count(engine.max_num_seqs)],
      ["tokens in a step at most", count(engine.max_batch_tokens)],
      ["of sequences and KV blocks, one request has at most, while others wait", percent(engine.max_request_share)],
    ];
    for (const [name, value] of Object.entries(server.limits)) {
      const [called, format] = LIMITS[name] ?? [name, String];
      facts.push([called, format(value)]);
    }
    facts.forEach(([name, value], i) => {
      if (!this.#list.children[i]) {
        const pair = element("div");
        pair.append(element("dt"), element("dd"));
        this.#list.append(pair);
      }
      say(this.#list.children[i].firstChild, name);
      say(this.#list.children[i].lastChild, value);
    });
  }
}

// Facts about this server: its version, model, device and limits.

import { element, say } from "./element.js";
import { bytes, count, counted, percent, span } from "./format.js";

/** The labels and formats of the limits in `GET /debug/state`. */
const LIMITS = {
  max_queue: ["most waiting requests", count],
  max_queue_seqs: ["most waiting sequences", count],
  max_request_seqs: ["most sequences of a request", count],
  max_requests: ["most HTTP requests at a time", count],
  max_connections: ["most connections", count],
  max_body_bytes: ["largest request body", bytes],
  request_timeout: ["time limit for a request", span],
  stop_timeout: ["time for open requests at shutdown", span],
};

function memory(numBlocks, blockSize, unit) {
  const size = counted(blockSize, "token");
  return unit === "block" ? `${counted(numBlocks, unit)} of ${size}` : `${counted(numBlocks, unit)}, with blocks of ${size},`;
}

/** Describes the groups of layers, if there are several. */
function groups(all) {
  const seen = ({ window }) => (window === null ? "all tokens" : `the last ${counted(window, "token")}`);
  const kept = (group) =>
    group.state_bytes ? `a state of ${bytes(group.state_bytes)}` : `${counted(group.heads, "head")} of ${group.head_dim}, ${seen(group)}`;
  const line = (group) => [
    `KV cache of ${counted(group.layers, "layer")}`,
    `${kept(group)}; ${counted(group.blocks_per_page, "block")} in a page`,
  ];
  return all.length > 1 ? all.map(line) : [];
}

export class Server {
  #facts;
  #list;
  #model;

  constructor(model, facts, section) {
    [this.#model, this.#facts, this.#list] = [model, facts, section.querySelector("dl")];
  }

  show({ server, engine, numBlocks, blockSize, unit, swap_used: swapUsed, swap_cached: swapCached }) {
    say(this.#model, server.model);
    const up = `up ${span(server.uptime)}`;
    say(this.#facts, [server.version, up, engine.device, `weights ${engine.dtype}`, `context ${count(engine.max_len)}`].join(" · "));
    const facts = [
      ["version", server.version],
      ["up for", span(server.uptime)],
      ["model", server.model],
      ["chat template", server.chat ? "yes" : "none"],
      ["device", [engine.device, ...engine.notes].join("; ")],
      ["weight type", engine.dtype],
      ["context length", counted(engine.max_len, "token")],
      ["KV memory", `${memory(numBlocks, blockSize, unit)} in ${engine.kv_dtype}, ${bytes(numBlocks * engine.block_bytes)}`],
      ["swap space", `${counted(engine.swap_blocks, unit)}, ${bytes(engine.swap_blocks * engine.block_bytes)}; ${count(swapUsed)} in use, ${count(swapCached)} kept for reuse`],
      ...groups(engine.groups ?? []),
      ["most sequences in a step", count(engine.max_num_seqs)],
      ["most tokens in a step", count(engine.max_batch_tokens)],
      ["most of the sequences and KV blocks for one request while others wait", percent(engine.max_request_share)],
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

// The server's state at one moment, spread out over its blocks.

/** Of the JSON of `GET /debug/state`, whose form overview.rs and worker/snapshot.rs describe. */
export class State {
  constructor(json) {
    Object.assign(this, json);
    this.numBlocks = json.num_blocks;
    this.blockSize = json.block_size;
    /** All requests in progress, those that run first. */
    this.requests = [...json.running, ...json.waiting];
    /** The reference count of each block. */
    this.refs = new Uint32Array(json.num_blocks);
    let block = 0;
    for (const [count, length] of json.refs) {
      this.refs.fill(count, block, block + length);
      block += length;
    }
    /** Whether each block is kept for a prefix. */
    this.cached = new Uint8Array(json.num_blocks);
    for (const [first, length] of json.cached) {
      this.cached.fill(1, first, first + length);
    }
    /** Which sequences hold a block: lists of `[request, sequence]`. */
    this.owners = new Map();
    for (const request of this.requests.filter((request) => !request.swapped)) {
      for (const sequence of request.sequences) {
        for (const id of sequence.table) {
          const owners = this.owners.get(id) ?? [];
          owners.push([request.id, sequence.index]);
          this.owners.set(id, owners);
        }
      }
    }
    this.counted = this.#count();
  }

  /** Those of these requests that hold blocks at all. */
  holding(ids) {
    const holds = ({ swapped, sequences }) => !swapped && sequences.some((sequence) => sequence.table.length > 0);
    return this.requests.filter((request) => ids.includes(request.id) && holds(request)).map((request) => request.id);
  }

  /** The requests that hold a block. */
  holders(block) {
    return [...new Set((this.owners.get(block) ?? []).map((owner) => owner[0]))];
  }

  /** How many blocks are used, shared and cached, and the highest reference count. */
  #count() {
    const counted = { used: 0, shared: 0, cached: 0, highest: 0 };
    this.refs.forEach((refs, block) => {
      counted.used += refs > 0;
      counted.shared += refs > 1;
      counted.cached += this.cached[block];
      counted.highest = Math.max(counted.highest, refs);
    });
    return counted;
  }
}

/** What a request does. */
export function standing(request, state) {
  if (state.running.includes(request)) {
    return "running";
  }
  return request.swapped ? "swapped out" : request.begun ? "preempted" : "waiting";
}

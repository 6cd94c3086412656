// The server's state at one moment, expanded to one entry per block.

/** Built from the JSON of `GET /debug/state`. overview.rs and worker/snapshot.rs describe its form. */
export class State {
  constructor(json) {
    Object.assign(this, json);
    this.numBlocks = json.num_blocks;
    this.blockSize = json.block_size;
    /** The name of a cell. With several groups of layers it is a page, which holds blocks of one of them. */
    this.unit = json.engine?.groups?.length > 1 ? "page" : "block";
    /** All requests in progress, running ones first. */
    this.requests = [...json.running, ...json.waiting];
    /** The reference count of each block. */
    this.refs = new Uint32Array(json.num_blocks);
    let block = 0;
    for (const [count, length] of json.refs) {
      this.refs.fill(count, block, block + length);
      block += length;
    }
    /** Whether each block is cached for a prefix. */
    this.cached = new Uint8Array(json.num_blocks);
    for (const [first, length] of json.cached) {
      this.cached.fill(1, first, first + length);
    }
    /** The owners of each block: lists of `[request, sequence]`. */
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

  /** Returns the ids among `ids` whose requests have blocks. */
  holding(ids) {
    const holds = ({ swapped, sequences }) => !swapped && sequences.some((sequence) => sequence.table.length > 0);
    return this.requests.filter((request) => ids.includes(request.id) && holds(request)).map((request) => request.id);
  }

  /** Returns the ids of the requests that own a block. */
  holders(block) {
    return [...new Set((this.owners.get(block) ?? []).map((owner) => owner[0]))];
  }

  /** Returns the numbers of used, shared and cached blocks, and the highest reference count. */
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

/** Returns a request's status. */
export function standing(request, state) {
  if (state.running.includes(request)) {
    return "running";
  }
  return request.swapped ? "swapped out" : request.begun ? "preempted" : "waiting";
}

// The engine's state at one moment, spread out over its blocks.

/** Of the JSON of `GET /debug/state`, whose form worker/snapshot.rs describes. */
export class State {
  constructor(json) {
    this.numBlocks = json.num_blocks;
    this.blockSize = json.block_size;
    this.running = json.running;
    this.waiting = json.waiting;
    this.rates = json.rates;
    this.totals = json.totals;
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
    for (const request of [...json.running, ...json.waiting]) {
      for (const sequence of request.sequences) {
        for (const id of sequence.table) {
          const owners = this.owners.get(id) ?? [];
          owners.push([request.id, sequence.index]);
          this.owners.set(id, owners);
        }
      }
    }
  }

  /** How many blocks are used, shared and cached, and the highest reference count. */
  counts() {
    const counts = { used: 0, shared: 0, cached: 0, highest: 0 };
    this.refs.forEach((refs, block) => {
      counts.used += refs > 0;
      counts.shared += refs > 1;
      counts.cached += this.cached[block];
      counts.highest = Math.max(counts.highest, refs);
    });
    return counts;
  }
}

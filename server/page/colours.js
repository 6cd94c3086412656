// The colours of requests and their sequences.

/** Colours of which the first six are easily told apart, also by those who see red, green or blue otherwise than most; in
 * three shades each, on all of which black text can be read. tests/python/colours.py measures how far apart they are. */
export const SHADES = [
  ["#298ce9", "#3595f3", "#1b82de"],
  ["#50da9d", "#5be4a6", "#43d094"],
  ["#f2cf37", "#fcd945", "#e8c527"],
  ["#d25a8b", "#dc6494", "#c85182"],
  ["#b6b4e2", "#c0bdec", "#adaad8"],
  ["#a08b25", "#a99531", "#978217"],
  ["#bb7c68", "#c58571", "#b1735f"],
  ["#947ebf", "#9e87c8", "#8b75b5"],
];

/** How many requests have a colour of their own. */
export const DISTINCT = SHADES.length;

/** What makes a holder of blocks count for more than any number of requests that are swapped out. */
const HOLDS = 1e6;

export class Colours {
  /** The place in the list above of each request in progress. */
  #places = new Map();

  /** Gives those a colour who hold blocks for the first time; it is theirs until they end, also while they are swapped out.
   * It is one that nobody has, as long as there are such; else one that few have, of those who hold blocks above all. */
  assign(state) {
    const present = new Set(state.requests.map((request) => request.id));
    for (const id of this.#places.keys()) {
      if (!present.has(id)) {
        this.#places.delete(id);
      }
    }
    const holders = new Set([...state.owners.values()].flat().map((owner) => owner[0]));
    const users = SHADES.map(() => 0);
    const add = (id, place) => (users[place] += holders.has(id) ? 1 + HOLDS : 1);
    this.#places.forEach((place, id) => add(id, place));
    for (const id of holders) {
      if (!this.#places.has(id)) {
        const place = users.indexOf(Math.min(...users));
        this.#places.set(id, place);
        add(id, place);
      }
    }
  }

  /** The colour of a sequence: that of its request, in one of its shades. A request that never held a block has none. */
  of(request, sequence) {
    const shades = SHADES[this.#places.get(request)];
    return shades?.[sequence % shades.length];
  }
}

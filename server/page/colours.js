// The colours of requests and their sequences.

/** Colours in three shades each. The first six are easy to tell apart, also for people with colour blindness. Black text is
 * readable on all of them. tests/python/colours.py measures the distances. */
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

/** Number of requests that can have distinct colours. */
export const DISTINCT = SHADES.length;

/** Weight of a request with blocks, higher than any number of swapped-out requests. */
const HOLDS = 1e6;

export class Colours {
  /** The index into `SHADES` of each request in progress. */
  #places = new Map();

  /** Assigns a colour to each request that has blocks for the first time. The request keeps it until it ends, even while
   * swapped out. The colour with the fewest users is chosen, where requests with blocks count most. */
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

  /** Returns the colour of a sequence, a shade of its request's colour. Undefined if the request never had a block. */
  of(request, sequence) {
    const shades = SHADES[this.#places.get(request)];
    return shades?.[sequence % shades.length];
  }
}

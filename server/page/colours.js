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

export class Colours {
  /** The place in the list above of each request in progress. */
  #places = new Map();

  /** Gives those a colour who hold blocks and have none: one that nobody has, as long as there are such. */
  assign(state) {
    const ids = new Set([...state.owners.values()].flat().map((owner) => owner[0]));
    for (const id of this.#places.keys()) {
      if (!ids.has(id)) {
        this.#places.delete(id);
      }
    }
    const users = SHADES.map(() => 0);
    this.#places.forEach((place) => (users[place] += 1));
    for (const id of ids) {
      if (!this.#places.has(id)) {
        const place = users.indexOf(Math.min(...users));
        this.#places.set(id, place);
        users[place] += 1;
      }
    }
  }

  /** The colour of a sequence: that of its request, in a shade of its own. */
  of(request, sequence) {
    const shades = SHADES[this.#places.get(request)];
    return shades[sequence % shades.length];
  }
}

// What the server did in each of the last seconds. The server remembers; the page asks for what it lacks.

export class History {
  #api;
  /** Objects with the fields of `GET /debug/history`, the oldest first. */
  samples = [];

  constructor(api) {
    this.#api = api;
  }

  /** Asks for what came since the last time. The server has been up for so many seconds. */
  async look(uptime) {
    const last = this.samples.at(-1)?.time ?? 0;
    if (uptime < last) {
      // Another server has taken its place.
      this.samples = [];
      return this.look(uptime);
    }
    if (uptime < last + 1) {
      return;
    }
    const { fields, samples, kept } = await this.#api.get(`/debug/history?after=${last}`, "json");
    const named = samples.map((sample) => Object.fromEntries(fields.map((field, i) => [field, sample[i]])));
    this.samples = [...this.samples, ...named].slice(-kept);
  }

  /** The mean of a field over the last samples. */
  mean(field, count) {
    const values = this.samples.slice(-count).map((sample) => sample[field]);
    return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
  }
}

// The server's activity in each of the last seconds. The server stores it, and the page fetches the samples it lacks.

export class History {
  #api;
  /** Objects with the fields of `GET /debug/history`, oldest first. */
  samples = [];

  constructor(api) {
    this.#api = api;
  }

  /** Fetches new samples. `uptime` is the server's uptime in seconds. */
  async look(uptime) {
    const last = this.samples.at(-1)?.time ?? 0;
    if (uptime < last) {
      // The server was restarted.
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

  /** Returns the mean of a field over the last `count` samples. */
  mean(field, count) {
    const values = this.samples.slice(-count).map((sample) => sample[field]);
    return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
  }
}

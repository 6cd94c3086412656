// The server, asked with the API key if it wants one.

export class Api {
  #form;
  #key = "";
  #asking = null;

  /** `form` is shown when the server asks for a key. */
  constructor(form) {
    this.#form = form;
  }

  /** `fetch`, which waits for another key as long as the server refuses the last one. */
  async fetch(path, options = {}) {
    for (;;) {
      const key = this.#key;
      const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
      const response = await fetch(path, { ...options, headers }).catch((error) => {
        throw error.name === "AbortError" ? error : new Error("the server does not answer");
      });
      if (response.status !== 401) {
        return response;
      }
      // Somebody else may have been given a new one in the meantime.
      if (key === this.#key) {
        await this.#askForKey();
      }
    }
  }

  /** The body of what must be answered with success. */
  async get(path, form) {
    const response = await this.fetch(path);
    if (!response.ok) {
      throw new Error(await errorOf(response));
    }
    return response[form]();
  }

  /** Whoever asks while the form is shown waits for the same answer. */
  #askForKey() {
    this.#asking ??= new Promise((resolve) => {
      this.#form.hidden = false;
      this.#form.onsubmit = (event) => {
        event.preventDefault();
        this.#key = this.#form.elements.key.value;
        this.#form.hidden = true;
        this.#asking = null;
        resolve();
      };
    });
    return this.#asking;
  }
}

/** What the server says is wrong. */
export async function errorOf(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `the server answers ${response.status}`;
}

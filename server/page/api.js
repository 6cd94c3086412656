// Requests to the server, with the API key if the server requires one.

/** The name of the key in the session storage, which lasts until the tab is closed. */
const STORED = "quire-api-key";

export class Api {
  #form;
  #waiting;
  #key = stored() ?? "";
  #asking = null;

  /** When the server requires a key, shows `form` and calls `waiting`. */
  constructor(form, waiting) {
    [this.#form, this.#waiting] = [form, waiting];
  }

  /** Like `fetch`, but asks for another key while the server refuses the last one. */
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
      // Another call may have received a new key in the meantime.
      if (key === this.#key) {
        await this.#askForKey();
      }
    }
  }

  /** Returns the body of a response. Throws if the response is an error. */
  async get(path, form) {
    const response = await this.fetch(path);
    if (!response.ok) {
      throw new Error(await errorOf(response));
    }
    return response[form]();
  }

  /** Shows the form and waits for a key. Concurrent calls wait for the same key. */
  #askForKey() {
    this.#asking ??= new Promise((resolve) => {
      this.#form.querySelector(".error").textContent = this.#key ? "That key was refused." : "";
      this.#form.hidden = false;
      this.#waiting();
      this.#form.onsubmit = (event) => {
        event.preventDefault();
        this.#key = this.#form.elements.key.value;
        store(this.#key);
        this.#form.reset();
        this.#form.hidden = true;
        this.#asking = null;
        resolve();
      };
    });
    return this.#asking;
  }
}

function stored() {
  try {
    return sessionStorage.getItem(STORED);
  } catch {
    // If the browser may not store anything, the page asks again after each load.
    return null;
  }
}

function store(key) {
  try {
    sessionStorage.setItem(STORED, key);
  } catch {
// Without storage, the page asks again after each load.
  }
}

/** Returns the message of an error response. */
export async function errorOf(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `the server answered with status ${response.status}`;
}

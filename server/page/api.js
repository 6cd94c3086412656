// The server, asked with the API key if it wants one.

/** What the key is called in the browser's storage, which keeps it until the tab is closed. */
const STORED = "quire-api-key";

export class Api {
  #form;
  #waiting;
  #key = stored() ?? "";
  #asking = null;

  /** `form` is shown when the server asks for a key; `waiting` is called then. */
  constructor(form, waiting) {
    [this.#form, this.#waiting] = [form, waiting];
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
    // Who forbids the browser to store anything is asked again after each load.
    return null;
  }
}

function store(key) {
  try {
    sessionStorage.setItem(STORED, key);
  } catch {
    // As above.
  }
}

/** What the server says is wrong. */
export async function errorOf(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `the server answered with status ${response.status}`;
}

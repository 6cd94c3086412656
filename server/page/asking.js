// A form that requests text from the server, with a button to stop the request.

export class Asking {
  #form;
  #error;
  #request = null;

  /** When the form is submitted, calls `ask` with an abort signal. Errors that it throws are shown in `error`. */
  constructor(form, error, ask) {
    [this.#form, this.#error] = [form, error];
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#request === null) {
        this.#run(ask);
      }
    });
    // The server cancels a request whose client disconnects.
    form.elements.stop.addEventListener("click", () => this.#request?.abort());
  }

  async #run(ask) {
    const { run, stop } = this.#form.elements;
    this.#error.textContent = "";
    this.#request = new AbortController();
    [run.disabled, stop.disabled] = [true, false];
    try {
      await ask(this.#request.signal);
    } catch (error) {
      if (error.name !== "AbortError") {
        this.#error.textContent = error.message;
      }
    }
    this.#request = null;
    [run.disabled, stop.disabled] = [false, true];
  }
}

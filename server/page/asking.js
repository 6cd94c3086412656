// A form that asks the server for text and can be stopped while it does.

export class Asking {
  #form;
  #error;
  #request = null;

  /** `ask` is called with a signal when the form is sent; what it throws is shown in `error`. */
  constructor(form, error, ask) {
    [this.#form, this.#error] = [form, error];
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#request === null) {
        this.#run(ask);
      }
    });
    // The server cancels a request whose client goes away.
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

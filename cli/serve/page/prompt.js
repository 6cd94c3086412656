// A box to try a prompt: its outputs appear as they are generated.

import { errorOf } from "./api.js";

export class PromptBox {
  #api;
  #form;
  #error;
  #outputs;
  #request = null;

  constructor(section, api) {
    this.#api = api;
    this.#form = section.querySelector("form");
    this.#error = section.querySelector(".error");
    this.#outputs = section.querySelector(".outputs");
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run();
    });
    // The server cancels a request whose client goes away.
    this.#form.elements.stop.addEventListener("click", () => this.#request.abort());
  }

  async #run() {
    const { prompt, n, max_tokens, temperature, ignore_eos, run, stop } = this.#form.elements;
    const body = {
      prompt: prompt.value,
      n: n.valueAsNumber,
      max_tokens: max_tokens.valueAsNumber,
      temperature: temperature.valueAsNumber,
      ignore_eos: ignore_eos.checked,
      stream: true,
    };
    const outputs = Array.from({ length: body.n }, () => document.createElement("pre"));
    outputs.forEach((output) => (output.textContent = body.prompt));
    this.#outputs.replaceChildren(...outputs);
    this.#error.textContent = "";
    [run.disabled, stop.disabled] = [true, false];
    this.#request = new AbortController();
    try {
      for await (const event of this.#stream(body)) {
        for (const choice of event.choices) {
          outputs[choice.index].append(choice.text);
        }
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        this.#error.textContent = error.message;
      }
    }
    [run.disabled, stop.disabled] = [false, true];
  }

  /** The events of a streamed completion. */
  async *#stream(body) {
    const response = await this.#api.fetch("/v1/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: this.#request.signal,
    });
    if (!response.ok) {
      throw new Error(await errorOf(response));
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) {
        throw new Error("the server ended its answer early");
      }
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.slice("data: ".length);
        if (data === "[DONE]") {
          return;
        }
        const json = JSON.parse(data);
        if (json.error) {
          throw new Error(json.error.message);
        }
        yield json;
      }
    }
  }
}

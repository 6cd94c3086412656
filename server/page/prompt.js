// A box to try a prompt: its outputs appear as they are generated.

import { Asking } from "./asking.js";
import { element, say } from "./element.js";
import { events, meaning } from "./events.js";

export class PromptBox {
  #api;
  #form;
  #outputs;

  constructor(panel, api) {
    this.#api = api;
    this.#form = panel.querySelector("form");
    this.#outputs = panel.querySelector(".outputs");
    new Asking(this.#form, panel.querySelector(".error"), (signal) => this.#ask(signal));
  }

  async #ask(signal) {
    const { prompt, n, max_tokens, temperature, ignore_eos } = this.#form.elements;
    const body = {
      prompt: prompt.value,
      n: n.valueAsNumber,
      max_tokens: max_tokens.valueAsNumber,
      temperature: temperature.valueAsNumber,
      ignore_eos: ignore_eos.checked,
    };
    const outputs = Array.from({ length: body.n }, () => new Output(body.prompt));
    this.#outputs.replaceChildren(...outputs.map((output) => output.element));
    try {
      for await (const event of events(this.#api, "/v1/completions", body, signal)) {
        for (const choice of event.choices) {
          outputs[choice.index].take(choice, body.max_tokens);
        }
      }
    } finally {
      outputs.forEach((output) => output.close());
    }
  }
}

/** An output: the prompt, what was generated after it, and how it ended. */
class Output {
  element = element("div", "output");
  #text = element("pre");
  #ended = element("p", "note", "…");

  constructor(prompt) {
    this.#text.append(element("span", "given", prompt));
    this.element.append(this.#text, this.#ended);
  }

  take({ text, finish_reason }, maxTokens) {
    this.#text.append(text);
    if (finish_reason) {
      say(this.#ended, meaning(finish_reason, maxTokens));
    }
  }

  /** Nothing more comes. */
  close() {
    if (this.#ended.textContent === "…") {
      say(this.#ended, "stopped");
    }
  }
}

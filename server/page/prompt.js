// A box to try a prompt: its outputs appear as they are generated.

import { Asking } from "./asking.js";
import { element, say } from "./element.js";
import { events, meaning } from "./events.js";

/** Tokens of an output that are asked for, unless the model's context is short; and of that, no more than this share, so that
 * there is room for a prompt. */
const TOKENS = 200;
const SHARE = 0.5;
/** Outputs that are asked for at most. */
const OUTPUTS = 64;

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

  /** Asks for no more than the server can do. What somebody filled in stays. */
  show({ engine, server }) {
    const { n, max_tokens } = this.#form.elements;
    n.max = Math.min(OUTPUTS, server.limits.max_request_seqs ?? OUTPUTS);
    n.defaultValue = Math.min(2, n.max);
    max_tokens.max = engine.max_len;
    max_tokens.defaultValue = Math.max(1, Math.min(TOKENS, Math.floor(SHARE * engine.max_len)));
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
    let isAnswered = false;
    try {
      for await (const event of events(this.#api, "/v1/completions", body, signal)) {
        isAnswered = true;
        for (const choice of event.choices) {
          outputs[choice.index].take(choice, body.max_tokens);
        }
      }
    } catch (error) {
      if (!isAnswered && !signal.aborted) {
        // There is an error to read, and nothing else.
        this.#outputs.replaceChildren();
      }
      throw error;
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

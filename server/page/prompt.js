// A form to try a prompt. Its outputs appear as they are generated.

import { Asking } from "./asking.js";
import { element, say } from "./element.js";
import { events, meaning } from "./events.js";

/** The default number of tokens of an output, and its maximum share of the model's context, which leaves space for the
 * prompt. */
const TOKENS = 200;
const SHARE = 0.5;
/** The maximum number of outputs. */
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

  /** Limits the fields to the server's capacity. Values that the user entered stay. */
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
        // Shows only the error.
        this.#outputs.replaceChildren();
      }
      throw error;
    } finally {
      outputs.forEach((output) => output.close());
    }
  }
}

/** An output: the prompt, the generated text, and how it ended. */
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

  /** Marks the output as stopped if it has no finish reason. */
  close() {
    if (this.#ended.textContent === "…") {
      say(this.#ended, "stopped");
    }
  }
}

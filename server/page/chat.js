// A chat with the model: what was said before goes along with each new message.

import { Asking } from "./asking.js";
import { element } from "./element.js";
import { events, meaning } from "./events.js";

export class ChatBox {
  #api;
  #panel;
  #form;
  #said;
  /** The conversation so far. */
  #messages = [];

  constructor(panel, api) {
    [this.#api, this.#panel] = [api, panel];
    this.#form = panel.querySelector("form");
    this.#said = panel.querySelector(".messages");
    new Asking(this.#form, panel.querySelector(".error"), (signal) => this.#ask(signal));
    const { message, clear } = this.#form.elements;
    message.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#form.requestSubmit();
      }
    });
    clear.addEventListener("click", () => {
      this.#messages = [];
      this.#said.replaceChildren();
    });
  }

  /** Says whether the model can chat. */
  show({ engine, server }) {
    this.#form.elements.max_tokens.max = engine.max_len;
    this.#panel.querySelector(".reason").hidden = server.chat;
    this.#panel.querySelector("fieldset").disabled = !server.chat;
  }

  /** Lets the conversation grow. The box for the next message stays in view, unless nothing of it was: then somebody
   * reads. */
  #grow(change) {
    const { top, bottom } = this.#form.getBoundingClientRect();
    change();
    if (bottom > 0 && top < innerHeight) {
      this.#form.scrollIntoView({ block: "nearest" });
    }
  }

  async #ask(signal) {
    const { message, max_tokens, temperature, clear } = this.#form.elements;
    const asked = message.value;
    const messages = [...this.#messages, { role: "user", content: asked }];
    const body = { messages, temperature: temperature.valueAsNumber };
    if (max_tokens.value) {
      body.max_tokens = max_tokens.valueAsNumber;
    }
    const [question, answer, ended] = [element("p", "user", asked), element("p", "assistant"), element("p", "note")];
    this.#grow(() => this.#said.append(question, answer, ended));
    message.value = "";
    clear.disabled = true;
    try {
      for await (const { choices } of events(this.#api, "/v1/chat/completions", body, signal)) {
        const [{ delta, finish_reason: reason }] = choices;
        this.#grow(() => {
          answer.append(delta.content ?? "");
          if (reason && reason !== "stop") {
            ended.textContent = meaning(reason, body.max_tokens);
          }
        });
      }
    } finally {
      clear.disabled = false;
      if (answer.textContent) {
        this.#messages = [...messages, { role: "assistant", content: answer.textContent }];
      } else {
        // Nothing was answered: it can be said again.
        [question, answer, ended].forEach((line) => line.remove());
        message.value = message.value || asked;
      }
    }
  }
}

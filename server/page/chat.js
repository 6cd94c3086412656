// A chat with the model. Each request contains the whole conversation.

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

  /** Enables the form if the model can chat, or else explains why it cannot. */
  show({ engine, server }) {
    this.#form.elements.max_tokens.max = engine.max_len;
    this.#panel.querySelector(".reason").hidden = server.chat;
    this.#panel.querySelector("fieldset").disabled = !server.chat;
  }

  /** Applies `change`, which makes the conversation grow. If the form was in view, keeps it in view. Otherwise the user is
   * reading earlier messages. */
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
        // Without an answer, puts the message back into the form.
        [question, answer, ended].forEach((line) => line.remove());
        message.value = message.value || asked;
      }
    }
  }
}

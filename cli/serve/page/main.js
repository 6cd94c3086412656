// Looks at the server twice a second while somebody looks at the page.

import { Api } from "./api.js";
import { Memory } from "./memory.js";
import { Plots } from "./plots.js";
import { PromptBox } from "./prompt.js";
import { Requests } from "./requests.js";
import { State } from "./state.js";

/** Milliseconds from one look to the next. */
const INTERVAL = 500;

const place = (id) => document.getElementById(id);
const api = new Api(place("key"));
const memory = new Memory(place("memory"));
const plots = new Plots(place("plots").querySelector(".plots"));
const requests = new Requests(place("requests"));
new PromptBox(place("prompt"), api);

async function look() {
  const [json, metrics] = await Promise.all([api.get("/debug/state", "json"), api.get("/metrics", "text")]);
  const state = new State(json);
  memory.show(state);
  plots.show(state, metrics);
  requests.show(state);
  if (!place("model").textContent) {
    place("model").textContent = (await api.get("/v1/models", "json")).data[0].id;
  }
}

function visible() {
  return new Promise((resolve) => {
    const check = () => {
      if (document.visibilityState === "visible") {
        document.removeEventListener("visibilitychange", check);
        resolve();
      }
    };
    document.addEventListener("visibilitychange", check);
    check();
  });
}

const status = place("status");
for (;;) {
  await visible();
  const next = new Promise((resolve) => setTimeout(resolve, INTERVAL));
  try {
    await look();
    [status.textContent, status.className] = ["live", ""];
  } catch (error) {
    // The server may be loading its model, or be gone for a moment.
    [status.textContent, status.className] = [error.message, "error"];
  }
  await next;
}

// Polls the server twice a second while the page is visible.

import { Api } from "./api.js";
import { ChatBox } from "./chat.js";
import { Colours } from "./colours.js";
import { figures } from "./figures.js";
import { Finished } from "./finished.js";
import { History } from "./history.js";
import { Memory } from "./memory.js";
import { Overview } from "./overview.js";
import { Plots } from "./plots.js";
import { Pointing } from "./pointing.js";
import { PromptBox } from "./prompt.js";
import { Refused } from "./refused.js";
import { Requests } from "./requests.js";
import { Server } from "./server.js";
import { State } from "./state.js";
import { Tabs } from "./tabs.js";

/** Milliseconds between two polls. */
const INTERVAL = 500;

const place = (id) => document.getElementById(id);
const status = place("status");
const api = new Api(place("key"), () => tell("waiting for the API key"));
const [colours, pointing, history] = [new Colours(), new Pointing(), new History(api)];
const overview = new Overview(place("overview"));
const plots = new Plots(place("plots").querySelector(".plots"), history);
new Tabs(place("try").querySelector("[role=tablist]"));
const parts = [
  new Server(place("model"), place("facts"), place("server")),
  new PromptBox(place("prompt"), api),
  new ChatBox(place("chat"), api),
  new Memory(place("memory"), colours, pointing),
  new Requests(place("requests"), api, colours, pointing),
  new Finished(place("finished")),
  new Refused(place("refused")),
];

/** Shows the server's status. `how` is "live", "error" or empty. */
function tell(text, how = "") {
  [status.textContent, status.className] = [text, how];
  document.body.classList.toggle("stale", how === "error");
}

async function look() {
  const state = new State(await api.get("/debug/state", "json"));
  await history.look(state.server.uptime);
  colours.assign(state);
  const now = figures(state, history);
  overview.show(state, now);
  plots.show(now);
  parts.forEach((part) => part.show(state));
  return state.running.length > 0 ? `${state.running.length} running - Quire` : "idle - Quire";
}

function visible() {
  return new Promise((resolve) => {
    const check = () => {
      if (document.visibilityState === "visible") {
        document.removeEventListener("visibilitychange", check);
        resolve();
      } else {
        // A hidden page does not poll, so its title shows no count that would become outdated.
        document.title = "Quire";
      }
    };
    document.addEventListener("visibilitychange", check);
    check();
  });
}

for (;;) {
  await visible();
  const next = new Promise((resolve) => setTimeout(resolve, INTERVAL));
  try {
    document.title = await look();
    tell("live", "live");
  } catch (error) {
    // The server may be loading its model or restarting. The page keeps showing the last known state.
    tell(error.message, "error");
    document.title = "no answer - Quire";
  }
  await next;
}

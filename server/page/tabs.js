// Tabs that follow the ARIA authoring practices. One tab is selected at a time.

export class Tabs {
  #tabs;

  constructor(list) {
    this.#tabs = [...list.querySelectorAll("[role=tab]")];
    this.#tabs.forEach((tab, i) => {
      tab.addEventListener("click", () => this.#choose(tab));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) {
          const next = this.#tabs.at((i + step) % this.#tabs.length);
          this.#choose(next);
          next.focus();
        }
      });
    });
  }

  #choose(chosen) {
    for (const tab of this.#tabs) {
      tab.setAttribute("aria-selected", tab === chosen);
      tab.tabIndex = tab === chosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    }
  }
}

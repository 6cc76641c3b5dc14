// The second tab: an online episode on invented characters, as it happens.

import { events } from "./api.js";
import { chart, recent } from "./chart.js";
import { el, showBars } from "./elements.js";

const find = (id) => document.getElementById(id);

export class Episode {
  constructor({ failed }) {
    this.failed = failed;
    this.running = null;
    this.seed = Math.floor(Math.random() * 1e6);
    find("episode-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.stop();
      else this.play();
    });
    this.reset();
  }

  reset() {
    this.right = [];
    this.known = []; // those of `right` whose character was met before
    this.stored = [];
    chart(find("episode-curve"), { share: [], count: [], total: 100 });
  }

  stop() {
    this.running?.abort();
    this.running = null;
    find("play").textContent = "Play another";
  }

  async play() {
    const [way, drawings] = ["way", "drawings"].map((id) => Number(find(id).value));
    const pause = Math.round(800 * (1 - find("speed").value / 100) ** 2);
    this.running = new AbortController();
    find("play").textContent = "Stop";
    find("episode-summary").textContent = "";
    this.reset();
    try {
      const path = `/v1/episode?way=${way}&drawings=${drawings}&seed=${this.seed++}&pause_ms=${pause}`;
      for await (const event of events(path, this.running.signal)) this[event.event]?.(event);
    } catch (error) {
      if (error.name !== "AbortError") this.failed(error);
    }
    this.stop();
  }

  alphabet({ images, length }) {
    this.images = images;
    this.length = length;
    this.cells = images.map((image, i) => {
      const dots = el("span", { class: "dots" });
      const cell = el("li", { class: "unmet" }, el("img", { src: image, alt: `character ${i + 1}` }), dots);
      return { cell, dots };
    });
    find("alphabet").replaceChildren(...this.cells.map(({ cell }) => cell));
  }

  step(event) {
    const right = event.predicted === event.label;
    this.right.push(right ? 1 : 0);
    if (!event.new_label) this.known.push(right ? 1 : 0);
    this.stored.push(event.stored);
    const { cell, dots } = this.cells[event.label];
    cell.classList.remove("unmet");
    document.querySelectorAll("#alphabet .current").forEach((other) => other.classList.remove("current", "good", "bad"));
    cell.classList.add("current", right ? "good" : "bad");
    if (event.written) dots.append(el("i", {}));
    find("episode-image").src = event.image;
    find("episode-image").alt = `drawing ${this.right.length}`;
    const surprise = `surprise ${event.surprise_nats.toFixed(2)} nats`;
    find("episode-verdict").textContent =
      `${right ? "✓ right" : event.new_label ? "✗ never seen before" : "✗ wrong"} · ${surprise}${event.written ? " · written down" : ""}`;
    showBars(find("episode-bars"), event.probabilities.slice(0, 6).map(({ label, probability }) => ({
      probability, picture: this.images[label], label: `character ${label + 1}`, mark: label === event.label,
    })));
    chart(find("episode-curve"), {
      share: recent(this.right, 25), count: this.stored, total: this.length, most: 2 * this.cells.length,
    });
  }

  end() {
    const stored = this.stored.at(-1), share = this.known.reduce((sum, right) => sum + right, 0) / Math.max(1, this.known.length);
    find("episode-summary").textContent =
      `${Math.round(100 * share)}% right on characters met before. It saw ${this.length} drawings and ` +
      `wrote down ${stored}, ${(stored / this.cells.length).toFixed(1)} per character. No weight was changed.`;
  }
}

// A queue: it asks about one example after the other, the one most worth a name first, and sorts the rest.

import { callWith, memoryPath } from "./api.js";
import { count, el, find, save, say } from "./elements.js";
import { cell } from "./table.js";

const POOL = 200; // examples to choose from; the others follow as these are answered
const AGAIN = 6; // answers until the order is made anew
const AT_ONCE = 64;
const THUMBNAILS = 12;

export class Queue {
  constructor({ memory, failed, finished }) {
    Object.assign(this, { memory, failed, finished, left: [], current: null });
    find("queue-skip").addEventListener("click", () => this.skip().catch(failed));
    find("queue-rest").addEventListener("click", () => this.sortRest().catch(failed));
    find("queue-stop").addEventListener("click", () => { this.stop(); this.finished(); });
    find("sorted-save").addEventListener("click", () => save([this.table], "text/csv", "sorted.csv"));
  }

  get on() { return this.current !== null; }

  // Where the example on the sheet comes from, so that it can be forgotten by its name.
  source() { return this.on ? `page: ${this.current.name}`.slice(0, 500) : null; }

  // Items have a name, `show` to put them on the sheet, and `example`, which makes what is sent.
  async start(items) {
    this.stop();
    Object.assign(this, { left: [...items], order: [], skipped: new Set(), total: items.length, answers: 0, current: items[0] ?? null });
    this.progress("Looking at what you gave it…");
    find("queue").hidden = !items.length;
    try { await this.next(); } catch (error) { this.stop(); this.failed(error); }
  }

  // Without questions, for guests who may only ask.
  async sort(items) {
    Object.assign(this, { left: [...items], total: items.length, answers: 0 });
    await this.sortRest();
  }

  stop() {
    this.current = null;
    find("queue").hidden = true;
  }

  async answered() {
    if (!this.on) return;
    this.answers++;
    this.left = this.left.filter((item) => item !== this.current);
    // The order is made anew while the next one is being looked at; more often while little is known.
    const stale = this.answers % AGAIN === 0 || this.answers < AGAIN;
    await this.next();
    if (stale && this.on) this.choose().catch(this.failed);
  }

  async skip() {
    this.skipped.add(this.current);
    await this.next();
  }

  async next() {
    if (!this.left.length) {
      this.stop();
      this.finished();
      say("You have named them all.");
      return;
    }
    const waiting = () => this.order.filter((item) => this.left.includes(item) && (item !== this.current || this.left.length === 1));
    if (!waiting().length) await this.choose();
    if (!waiting().length) return this.left.length ? this.stop() : this.next();
    [this.current] = waiting();
    find("queue-text").title = this.current.name;
    this.progress(`${this.total - this.left.length + 1} of ${this.total}: ${this.current.reason}`);
    try { await this.current.show(); } catch { this.drop(this.current); await this.next(); }
    if (matchMedia("(hover: hover)").matches) find("label").focus({ preventScroll: true });
  }

  // The order of `suggest`, and what each of the others would be called.
  async choose() {
    const { items, found } = await this.asked(this.left.slice(0, POOL), `/suggest?n=${POOL}`);
    const order = found.map(({ index, reason }) => Object.assign(items[index], { reason }));
    this.order = [...order.filter((item) => !this.skipped.has(item)), ...order.filter((item) => this.skipped.has(item))];
    this.sorted(found.filter(({ probability_new, labels }) => probability_new <= 0.5 && labels.length));
  }

  async asked(some, path) {
    const items = [];
    for (const item of some) {
      try { item.sent ??= { anyway: true, ...await item.example() }; items.push(item); } catch { this.drop(item); }
    }
    return callWith(memoryPath(this.memory(), path), items, (item) => this.drop(item));
  }

  drop(item) {
    this.left = this.left.filter((other) => other !== item);
    this.total--;
    say(`${item.name} cannot be read: it is left out.`);
  }

  sorted(suggestions) {
    const counts = new Map();
    for (const { labels: [label] } of suggestions) counts.set(label, (counts.get(label) ?? 0) + 1);
    const most = [...counts].sort((one, other) => other[1] - one[1]).slice(0, 5).map(([label, n]) => `${label} ${n}`);
    find("queue-sorted").textContent = most.length ? `The rest, so far: ${most.join(" · ")}` : "";
  }

  progress(text) {
    find("queue-text").textContent = text;
    Object.assign(find("queue-progress"), { max: this.total, value: this.total - this.left.length });
  }

  async sortRest() {
    const rest = this.left, groups = new Map(), lines = ["name,predicted,probability,probability_new"];
    this.progress("Sorting…");
    for (let i = 0; i < rest.length; i += AT_ONCE) {
      const { items, found } = await this.asked(rest.slice(i, i + AT_ONCE), "/predict/batch?top=1&new_above=0.5");
      found.forEach(({ predicted, probabilities, probability_new }, k) => {
        const label = predicted ?? "something new?";
        groups.set(label, [...(groups.get(label) ?? []), items[k]]);
        lines.push([items[k].name, predicted ?? "", probabilities[0]?.probability ?? "", probability_new].map(cell).join(","));
      });
    }
    this.table = lines.join("\n") + "\n";
    const largest = [...groups].sort((one, other) => other[1].length - one[1].length);
    find("sorted-title").textContent = `It sorted ${count(lines.length - 1, "example")}`;
    find("sorted-text").textContent = "Nothing of this was learnt.";
    find("sorted-groups").replaceChildren(...largest.map(([label, found]) => el("li", {}, el("b", {}, String(label)), el("span", { class: "small" }, ` ${found.length}`), this.shown(found))));
    this.stop();
    this.finished();
    find("sorted").showModal();
  }

  shown(items) {
    const some = items.slice(0, THUMBNAILS).map(({ sent, name }) => (sent.text ? el("q", {}, sent.text) : el("img", { src: sent.image, alt: name, title: name })));
    return el("div", { class: "thumbs" }, ...some, ...(items.length > some.length ? [el("span", { class: "small" }, `+${items.length - some.length}`)] : []));
  }
}

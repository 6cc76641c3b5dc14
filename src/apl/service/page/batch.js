// Several pictures taught at once: names for each folder, a bar while it works, and a report that leaves nothing out.

import { callWith, memoryPath } from "./api.js";
import { count, el, find } from "./elements.js";
import { shrunk, sorted, whyUnreadable } from "./pictures.js";

const AT_ONCE = 16;
const LISTED = 12;
const THUMBNAILS = 4;

export class Batch {
  constructor({ memory, side, photographs, taught, askAbout }) {
    Object.assign(this, { memory, side, photographs, taught });
    find("batch-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.groups) this.teach();
      else find("batch").close();
    });
    find("batch-cancel").addEventListener("click", () => find("batch").close());
    find("batch-ask").addEventListener("click", () => {
      const pictures = this.groups.flatMap((group) => group.pictures);
      find("batch").close();
      askAbout(pictures);
    });
  }

  show(collected) {
    const { groups, skipped } = sorted(collected);
    this.skipped = skipped;
    this.run = null; // ends a run that is still under way
    find("batch-progress").hidden = true;
    find("batch-title").textContent = groups.size ? "Teach these pictures" : "Nothing to teach";
    find("batch-text").textContent = groups.size ? "What is in each? A name left empty leaves its pictures out. Or let it ask you about one after the other, and sort the rest." : "";
    this.groups = groups.size ? [...groups].map(([label, pictures]) => this.group(label, pictures)) : null;
    find("batch-groups").replaceChildren(...(this.groups ?? []).map(({ item }) => item));
    this.list();
    find("batch-go").textContent = groups.size ? "Teach" : "Close";
    find("batch-cancel").hidden = find("batch-ask").hidden = !groups.size;
    find("batch").showModal();
  }

  group(label, pictures) {
    const input = el("input", { value: label, maxlength: 200, placeholder: "name it", "aria-label": `Name of ${label || "the loose pictures"}` });
    const thumbs = el("span", { class: "thumbs" });
    for (const { file } of pictures.slice(0, THUMBNAILS)) {
      shrunk(file, 88).then((small) => thumbs.append(small), () => {});
    }
    const what = count(pictures.length, label ? "picture" : "loose picture");
    return { input, pictures, item: el("li", {}, thumbs, el("span", { class: "small" }, what), input) };
  }

  list() {
    const lines = this.skipped.slice(0, LISTED).map(({ name, why }) => el("li", {}, el("b", {}, name), ` ${why}`));
    if (this.skipped.length > LISTED) lines.push(el("li", {}, `and ${this.skipped.length - LISTED} more`));
    find("batch-skipped").replaceChildren(...lines);
    find("batch-skipped-title").hidden = !lines.length;
  }

  async teach() {
    const queue = this.groups.flatMap(({ input, pictures }) => {
      const label = input.value.trim().normalize();
      if (label) return pictures.map((picture) => ({ ...picture, label }));
      this.skipped.push(...pictures.map(({ path }) => ({ name: path, why: "it was given no name" })));
      return [];
    });
    this.groups = null;
    find("batch-ask").hidden = true;
    find("batch-go").disabled = true;
    const progress = find("batch-progress");
    Object.assign(progress, { hidden: false, max: Math.max(1, queue.length), value: 0 });
    const sum = { seen: 0, written: 0 };
    const run = this.run = {};
    // Asked of the dialog itself: the event that it was closed may come after it was opened again.
    const stopped = () => this.run !== run || !find("batch").open;
    try {
      for (let i = 0; i < queue.length && !stopped(); i += AT_ONCE) {
        await this.send(queue.slice(i, i + AT_ONCE), sum);
        progress.value = Math.min(queue.length, i + AT_ONCE);
      }
      if (this.run !== run) return;
      find("batch-text").textContent = stopped() ? "Stopped." : "";
    } catch (error) { find("batch-text").textContent = `It stopped: ${error.message}`; }
    const summary = `Taught ${count(sum.seen, "picture")}: ${sum.written} written down, ${sum.seen - sum.written} did not surprise.`;
    find("batch-title").textContent = summary;
    find("batch-groups").replaceChildren();
    this.list();
    Object.assign(find("batch-go"), { disabled: false, textContent: "Close" });
    find("batch-cancel").hidden = true;
    progress.hidden = true;
    await this.taught(summary);
  }

  async send(pictures, sum) {
    const examples = [];
    for (const { file, label, path } of pictures) {
      try {
        const small = await shrunk(file, this.side());
        const image = this.photographs() ? small.toDataURL("image/jpeg", 0.92) : small.toDataURL("image/png");
        examples.push({ path, sent: { image, label, source: `page: ${path}`.slice(0, 1000), anyway: true } });
      } catch { this.skipped.push({ name: path, why: whyUnreadable(file) }); }
    }
    const { found } = await callWith(memoryPath(this.memory(), "/learn/batch"), examples, ({ path }, why) => this.skipped.push({ name: path, why }));
    sum.seen += found.length;
    sum.written += found.filter((receipt) => receipt.written).length;
  }
}

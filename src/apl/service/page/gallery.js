// The memory as it is: rows by class, each with a way to forget it.

import { call, memoryPath } from "./api.js";
import { accuracySoFar, chart } from "./chart.js";
import { count, el } from "./elements.js";

const SHOWN = 400; // pictures; larger memories say how many more there are
const CLASSES_SHOWN = 100;

const find = (id) => document.getElementById(id);

export class Gallery {
  constructor({ forget, rename }) {
    this.forget = forget;
    this.rename = rename;
    this.pictures = new Map(); // row → data URL
  }

  async load(memory) {
    const [state, rows] = await Promise.all([call(memoryPath(memory)), this.rows(memory)]);
    this.show(state, rows);
    return state;
  }

  async rows(memory) {
    const found = [];
    let after = 0;
    while (after !== null && found.length < SHOWN) {
      const part = await call(memoryPath(memory, `/rows?images=true&limit=200&after=${after}`));
      found.push(...part.rows);
      after = part.next;
    }
    this.pictures = new Map(found.filter((row) => row.image).map((row) => [row.row, `data:image/png;base64,${row.image}`]));
    return found;
  }

  show(state, rows) {
    const { curve, classes } = state;
    find("memory-summary").textContent = state.rows
      ? `${count(curve.seen, "lesson")}, ${state.rows} written down, ${count(classes.length, "name")}.`
      : "Empty. It knows nothing yet.";
    chart(find("curve"), {
      share: accuracySoFar(curve.outcomes), count: curve.rows, first: curve.seen - curve.outcomes.length,
    });
    const byClass = new Map(classes.map(({ label }) => [key(label), []]));
    for (const row of rows) byClass.get(key(row.label))?.push(row);
    const shown = classes.slice(-CLASSES_SHOWN).map(({ label, rows: some }) => this.class(label, some, byClass.get(key(label))));
    if (classes.length > CLASSES_SHOWN) shown.unshift(el("p", { class: "small" }, `The latest ${CLASSES_SHOWN} of ${classes.length} names:`));
    find("gallery").replaceChildren(...shown);
  }

  class(label, inAll, rows) {
    const head = el("div", { class: "class-head" },
      el("h3", {}, String(label)), el("span", { class: "count" }, count(inAll, "row")),
      el("button", { class: "quiet rename", "aria-label": `Rename ${label}`, onclick: () => this.rename(label) }, "Rename"),
      el("button", { class: "quiet", "aria-label": `Forget everything about ${label}`, onclick: () => this.forget({ label }, `“${label}”`) }, "Forget"));
    const pictures = rows.map((row) => el("li", {},
      el("img", { src: this.pictures.get(row.row) ?? "icon.svg", alt: `${label}, row ${row.row}`, class: "ink", width: 52, height: 52 }),
      el("button", {
        class: "forget", "aria-label": `Forget row ${row.row}, ${label}`, title: `row ${row.row} · surprise ${row.surprise_nats.toFixed(2)} nats`,
        onclick: () => this.forget({ row: row.row }, `row ${row.row}`),
      }, "×")));
    if (rows.length < inAll) pictures.push(el("li", { class: "more" }, `+${inAll - rows.length}`));
    return el("section", { class: "class", "data-label": String(label) }, head, el("ul", {}, ...pictures));
  }

  async picture(memory, row) {
    if (!this.pictures.has(row)) {
      try {
        const found = await call(memoryPath(memory, `/rows/${row}`), { quiet: true });
        if (found.image) this.pictures.set(row, `data:image/png;base64,${found.image}`);
      } catch { return null; }
    }
    return this.pictures.get(row) ?? null;
  }
}

// 7 and "7" are different classes.
const key = (label) => JSON.stringify(label);

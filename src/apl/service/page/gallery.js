// The memory as it is: rows by class, each with a way to forget it.

import { call, memoryPath } from "./api.js";
import { accuracySoFar, chart } from "./chart.js";
import { el } from "./parts.js";

const SHOWN = 400; // pictures; larger memories say how many more there are

const find = (id) => document.getElementById(id);

export class Gallery {
  constructor({ forget }) {
    this.forget = forget;
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
    const lessons = curve.seen === 1 ? "1 lesson" : `${curve.seen} lessons`;
    find("memory-summary").textContent = state.rows
      ? `${lessons}, ${state.rows} written down, ${classes.length} ${classes.length === 1 ? "name" : "names"}.`
      : "Empty. It knows nothing yet.";
    chart(find("curve"), {
      share: accuracySoFar(curve.outcomes), count: curve.rows, first: curve.seen - curve.outcomes.length,
    });
    const byClass = new Map(classes.map(({ label }) => [key(label), []]));
    for (const row of rows) byClass.get(key(row.label))?.push(row);
    find("gallery").replaceChildren(...classes.map(({ label, rows: count }) => this.class(label, count, byClass.get(key(label)))));
  }

  class(label, count, rows) {
    const head = el("div", { class: "class-head" },
      el("h3", {}, String(label)), el("span", { class: "count" }, count === 1 ? "1 row" : `${count} rows`),
      el("button", { class: "quiet", "aria-label": `Forget everything about ${label}`, onclick: () => this.forget({ label }, `“${label}”`) }, "Forget"));
    const pictures = rows.map((row) => el("li", {},
      el("img", { src: this.pictures.get(row.row) ?? "icon.svg", alt: `${label}, row ${row.row}`, class: "ink", width: 52, height: 52 }),
      el("button", {
        class: "forget", "aria-label": `Forget row ${row.row}, ${label}`, title: `row ${row.row} · surprise ${row.surprise_nats.toFixed(2)} nats`,
        onclick: () => this.forget({ row: row.row }, `row ${row.row}`),
      }, "×")));
    if (rows.length < count) pictures.push(el("li", { class: "more" }, `+${count - rows.length}`));
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

// The memory as it is: rows by class, each with a way to forget it.

import { call, memoryPath } from "./api.js";
import { accuracySoFar, chart } from "./chart.js";
import { ask, count, el, find } from "./elements.js";

const SHOWN = 400; // pictures; larger memories say how many more there are
const CLASSES_SHOWN = 100;

export class Gallery {
  constructor({ forget, rename }) {
    this.forget = forget;
    this.rename = rename;
    this.kept = new Map(); // row → the row with what was kept of its example
    this.drift = null; // the report, while surprise has risen
  }

  async load(memory) {
    if (memory !== this.memory) Object.assign(this, { kept: new Map(), drift: null });
    this.memory = memory;
    const [state, rows] = await Promise.all([call(memoryPath(memory)), this.rows(memory)]);
    if (memory === this.memory) this.show(state, rows);
    this.followDrift(memory);
    return state;
  }

  // All rows, but pictures only of those that were not here before, or have lost an example.
  async rows(memory) {
    const found = await this.pages(memory, "limit=400", 0);
    const missing = found.find(({ row, examples }) => !(this.kept.get(row)?.examples <= examples));
    if (missing) {
      const pictured = await this.pages(memory, "payloads=true&limit=200", missing.row - 1);
      for (const row of pictured) this.kept.set(row.row, row);
    }
    for (const row of found) {
      const kept = this.kept.get(row.row);
      if (kept) this.kept.set(row.row, { ...row, payload: kept.payload });
    }
    return found;
  }

  async pages(memory, asked, after) {
    const found = [];
    while (after !== null && found.length < SHOWN) {
      const part = await call(memoryPath(memory, `/rows?${asked}&after=${after}`));
      found.push(...part.rows);
      after = part.next;
    }
    return found;
  }

  // Not waited for: it may take its time.
  async followDrift(memory) {
    this.leave();
    this.following = new AbortController();
    try {
      const report = await call(memoryPath(memory, "/drift"), { quiet: true, signal: this.following.signal });
      if (memory !== this.memory) return;
      this.drift = report.alarm ? report : null;
      this.showCurve();
    } catch { /* asked again at the next change */ }
  }

  // Nothing more is asked about the memory.
  leave() { this.following?.abort(); }

  showCurve() {
    const { drift, curve } = this;
    chart(find("curve"), {
      share: accuracySoFar(curve.outcomes), count: curve.rows, first: curve.seen - curve.outcomes.length,
      mark: drift && curve.outcomes.length - drift.since,
    });
    find("drift").hidden = find("drift-key").hidden = !drift;
    if (!drift) return;
    const names = drift.labels.length ? `, at ${drift.labels.slice(0, 3).map((label) => `“${label}”`).join(", ")}` : "";
    find("drift").textContent = `For about ${count(drift.since, "lesson")} it has been surprised more than before${names}: names may have changed their meaning.`;
  }

  show(state, rows) {
    const { curve, classes } = state;
    find("memory-summary").textContent = state.rows
      ? `${count(curve.seen, "lesson")}, ${state.rows} written down, ${count(classes.length, "name")}.`
      : "Empty.";
    find("check").hidden = !state.rows;
    this.curve = curve;
    this.showCurve();
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
      el("button", { class: "quiet forget-class", "aria-label": `Forget everything about ${label}`, onclick: () => this.forgetClass(label, inAll) }, "Forget"));
    const pictures = rows.map((row) => el("li", { class: textOf(this.kept.get(row.row)?.payload) ? "sentence" : "" }, picture(this.kept.get(row.row)?.payload, `${label}, row ${row.row}`),
      ...badge(row.examples),
      el("button", {
        class: "forget", "aria-label": `Forget row ${row.row}, ${label}`,
        title: `row ${row.row} · ${count(row.examples, "example")} · surprise ${row.surprise_nats.toFixed(2)} nats`,
        onclick: () => this.forget({ row: row.row }, `row ${row.row}`),
      }, "×")));
    if (rows.length < inAll) pictures.push(el("li", { class: "more" }, `+${inAll - rows.length}`));
    return el("section", { class: "class", "data-label": String(label) }, head, el("ul", {}, ...pictures));
  }

  async forgetClass(label, rows) {
    const sure = await ask({ title: `Forget “${label}”?`, text: `${count(rows, "row")} will be deleted. This cannot be undone.`, input: false });
    if (sure) this.forget({ label }, `“${label}”`);
  }

  async row(memory, row) {
    if (this.kept.has(row)) return this.kept.get(row);
    const { rows: [found] } = await call(memoryPath(memory, `/rows?payloads=true&limit=1&after=${row - 1}`));
    return found?.row === row ? found : null;
  }
}

const IMAGES = { "_9j_": "jpeg", "iVBO": "png" }; // how the payload of a picture begins, in URL-safe base64
const plain = (payload) => payload.replaceAll("-", "+").replaceAll("_", "/");

export function textOf(payload) {
  if (!payload || payload.slice(0, 4) in IMAGES) return null;
  return new TextDecoder().decode(Uint8Array.from(atob(plain(payload)), (sign) => sign.charCodeAt(0)));
}

// What was kept with a row: a drawing or a photograph, or a sentence.
export function picture(payload, alt = "") {
  const kind = IMAGES[payload?.slice(0, 4)];
  if (kind) return el("img", { src: `data:image/${kind};base64,${plain(payload)}`, alt, class: kind === "jpeg" ? "photo" : "ink", width: 52, height: 52 });
  return payload ? el("q", {}, textOf(payload)) : el("span", { class: "blank" });
}

// How many examples stand behind a row.
export const badge = (examples) => (examples > 1 ? [el("span", { class: "badge", title: `${examples} examples stand behind this row` }, `×${examples}`)] : []);

// 7 and "7" are different classes.
const key = (label) => JSON.stringify(label);

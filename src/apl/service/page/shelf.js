// A shelf of rows whose name looks wrong by the other rows: keep, relabel or forget.

import { call, memoryPath } from "./api.js";
import { el, find, say } from "./elements.js";
import { picture } from "./gallery.js";

const LOOKED_AT = 200; // rows up to which it looks by itself
const SHOWN = 6;
const WAIT_MS = 1500;
const KEPT = "apl kept", MOST_KEPT = 500;

export class Shelf {
  constructor({ memory, failed, forget, changed, row }) {
    Object.assign(this, { memory, failed, forget, changed, row });
    find("check").addEventListener("click", async () => {
      try { if (!await this.look()) say("No name looks wrong."); } catch (error) { failed(error); }
    });
  }

  // After a change: small memories are looked at by themselves, large ones when asked to.
  soon({ rows, scope }) {
    this.leave();
    if (rows > LOOKED_AT || scope === "read") find("shelf").hidden = true;
    else this.timer = setTimeout(() => this.look().catch(() => {}), WAIT_MS);
  }

  leave() { clearTimeout(this.timer); }

  async look() {
    const asked = this.memory();
    const suspects = await call(memoryPath(asked, "/review?limit=50"));
    const open = suspects.filter((one) => !kept().includes(name(asked, one))).slice(0, SHOWN);
    const items = await Promise.all(open.map((one) => this.item(asked, one)));
    if (asked !== this.memory()) return open.length;
    find("suspects").replaceChildren(...items);
    find("shelf").hidden = !items.length;
    return items.length;
  }

  async item(memory, suspect) {
    const { row, source, label, suggested } = suspect;
    const keep = () => {
      localStorage.setItem(KEPT, JSON.stringify([...kept(), name(memory, suspect)].slice(-MOST_KEPT)));
      this.look().catch(this.failed);
    };
    const relabel = async () => {
      try {
        await call(memoryPath(memory, "/relabel"), { method: "POST", json: { row, label: suggested, source } });
        await this.changed();
        say(`It is called “${suggested}” now.`);
      } catch (error) { this.failed(error); }
    };
    const found = await this.row(memory, row);
    // Others may share the row.
    const forget = () => this.forget(found?.examples > 1 && source !== null ? { source } : { row }, source ?? `row ${row}`);
    return el("li", { "data-row": row, title: source ?? "" }, picture(found?.payload), el("p", {}, "“", el("b", {}, String(label)), "”, or rather “", el("b", {}, String(suggested)), "”?", ...behind(found, source)),
      el("div", { class: "tools" },
        el("button", { onclick: keep }, `Keep ${label}`), el("button", { onclick: relabel }, `It is ${suggested}`),
        el("button", { class: "quiet", onclick: forget }, "Forget")));
  }
}

// The picture is the row's: an example that shares it is told from the others by where it comes from.
function behind(row, source) {
  if (!(row?.examples > 1)) return [];
  const from = /^page [0-9a-f]{32}$/.test(source ?? "") ? "" : (source ?? "").replace(/^page: /, "");
  return [el("small", {}, `one of the ${row.examples} examples behind this row${from && `: ${from}`}`)];
}

const kept = () => JSON.parse(localStorage.getItem(KEPT) ?? "[]");
const name = (memory, { row, source, label }) => JSON.stringify([memory, row, source, label]);

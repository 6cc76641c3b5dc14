// Tables of sentences: taught if they have a column of names, else put in the queue.

import { call, memoryPath } from "./api.js";
import { ask, count, find, say } from "./elements.js";

const AT_ONCE = 64;
const TEXTS = ["text", "sentence", "utterance", "query"], NAMES = ["label", "name", "class", "intent", "category"];

// Quoted cells may hold separators, line ends and doubled quotes.
export function parse(content) {
  const text = content.replace(/^\ufeff/, "");
  const head = text.slice(0, text.indexOf("\n") + 1 || undefined);
  const separator = [",", ";", "\t"].sort((one, other) => head.split(other).length - head.split(one).length)[0];
  const rows = [[""]];
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const sign = text[i], row = rows.at(-1);
    if (quoted && sign === '"' && text[i + 1] === '"') { row[row.length - 1] += '"'; i++; }
    else if (sign === '"' && (quoted || row.at(-1) === "")) quoted = !quoted;
    else if (!quoted && sign === separator) row.push("");
    else if (!quoted && sign === "\n") rows.push([""]);
    else if (quoted || sign !== "\r") row[row.length - 1] += sign;
  }
  return rows.filter((row) => row.some((cell) => cell.trim()));
}

// Which columns hold sentences and names. Without a heading the first column is sentences, the second names.
export function columns(rows) {
  const head = rows[0].map((cell) => cell.trim().toLowerCase());
  const text = head.findIndex((cell) => TEXTS.includes(cell)), label = head.findIndex((cell) => NAMES.includes(cell));
  if (text >= 0) return { text, label, rows: rows.slice(1) };
  return { text: 0, label: rows[0].length > 1 ? 1 : -1, rows };
}

export function setUpTables({ askAbout, memory, mayTeach, taught }) {
  find("table").addEventListener("change", async (event) => {
    const file = event.target.files[0];
    event.target.value = "";
    if (!file) return;
    try {
      const { text, label, rows } = columns(parse(await file.text()));
      const examples = rows.map((row) => ({ text: row[text]?.trim(), label: label < 0 ? "" : row[label]?.trim().normalize() })).filter((one) => one.text);
      const named = examples.filter((one) => one.label);
      if (named.length && mayTeach()) await teach(named, examples.length - named.length);
      else if (examples.length) await askAbout(examples.map((one) => one.text));
      else say("There are no sentences in this table.");
    } catch (error) { say(error.message); }
  });

  async function teach(examples, without) {
    const names = new Set(examples.map(({ label }) => label)).size;
    const left = without ? ` ${count(without, "row")} without a name will be left out.` : "";
    if (!await ask({ title: "Teach this table?", text: `${count(examples.length, "sentence")} under ${count(names, "name")}.${left}`, input: false })) return;
    let written = 0, seen = 0;
    for (const part of parts(examples)) {
      const json = { examples: part.map((one) => ({ ...one, source: `page: ${one.text}`.slice(0, 500) })) };
      const receipts = await call(memoryPath(memory(), "/learn/batch"), { method: "POST", json });
      seen += receipts.length;
      written += receipts.filter((receipt) => receipt.written).length;
      say(`${seen} of ${examples.length}…`);
    }
    const summary = `Taught ${count(seen, "sentence")}: ${written} written, ${seen - written} did not surprise.`;
    await taught(summary);
    say(summary);
  }
}

const parts = (examples) => Array.from({ length: Math.ceil(examples.length / AT_ONCE) }, (_, i) => examples.slice(i * AT_ONCE, (i + 1) * AT_ONCE));
// A cell that begins like a formula would be run by a spreadsheet.
export const cell = (value) => { const text = String(value).replace(/^[=+@-](?!\d)/, "'$&"); return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };

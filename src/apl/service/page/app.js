// The page: draw, watch the posterior, teach, look after the memory.

import { call, memoryPath, onTokenNeeded } from "./api.js";
import { Episode } from "./episode.js";
import { Gallery } from "./gallery.js";
import { Guide } from "./guide.js";
import { ask, el, percent, say, showBars } from "./parts.js";
import { Sheet } from "./sheet.js";

const find = (id) => document.getElementById(id);
const ASK_EVERY_MS = 110;
const BARS = 6;

let memory = localStorage.getItem("apl memory") ?? "default";
let answer = null; // to the drawing on the sheet
let known = [];
let surely = false; // the pen is up: say it aloud too

const failed = (error) => say(error.message);
onTokenNeeded(() => ask({ title: "A token, please", text: "This service is open to those who have a token.", secret: true }));

// --- asking while the pen moves: one question at a time, the latest drawing next ---

let asking = false, again = false, lastAsked = 0, drawing = 0;

function askSoon() {
  if (asking) { again = true; return; }
  asking = true;
  setTimeout(async () => {
    lastAsked = performance.now();
    const asked = drawing;
    try {
      if (!sheet.empty) {
        const found = await call(memoryPath(memory, "/predict"), { method: "POST", json: { image: sheet.toDataURL() } });
        if (asked === drawing && !sheet.empty) await showAnswer(found);
      }
    } catch (error) {
      if (error.status !== 422) failed(error); // a first dot may not be ink enough
    }
    asking = false;
    if (again) { again = false; askSoon(); }
  }, Math.max(0, ASK_EVERY_MS - (performance.now() - lastAsked)));
}

const sheet = new Sheet(find("sheet"), {
  changed(penDown) {
    surely = !penDown;
    drawing += penDown && sheet.strokes.length === 1 && sheet.strokes[0].length === 1;
    for (const id of ["undo-stroke", "clear"]) find(id).disabled = sheet.empty;
    find("sheet-hint").hidden = !sheet.empty;
    if (sheet.empty) { drawing++; forgetAnswer(); } else askSoon();
  },
  lifted() { askSoon(); },
});

function forgetAnswer() {
  answer = null;
  showBars(find("bars"), []);
  find("judge").hidden = true;
  find("live").textContent = "";
  find("verdict").textContent = known.length ? "Draw something." : "It knows nothing yet: draw something and name it.";
  find("neighbours").replaceChildren(el("li", { class: "empty" }, "no neighbours yet"));
}

async function showAnswer(found) {
  answer = found;
  const fresh = found.probability_new;
  const best = found.probabilities[0];
  const shares = found.probabilities.slice(0, BARS).map((share) => ({ ...share, label: String(share.label) }));
  if (found.probabilities.length > BARS) {
    const rest = found.probabilities.slice(BARS).reduce((sum, share) => sum + share.probability, 0);
    shares.push({ label: "others", probability: rest, kind: "others" });
  }
  showBars(find("bars"), [...shares, { label: "something new", probability: fresh, kind: "new" }]);
  find("judge").hidden = !best || sheet.done;
  find("live").textContent = !best || fresh > 0.5 ? "something new" : `${best.label} ${percent(best.probability)}`;
  const words = !best ? "Something new: it knows no names yet."
    : fresh > 0.5 ? `Something new? If not, ${best.label}.`
    : best.probability > 0.9 ? `${best.label}.` : `${best.label}, perhaps (${percent(best.probability)}).`;
  if (surely || !find("verdict").textContent.startsWith(words.split(" ")[0])) find("verdict").textContent = words;
  if (surely && best && !sheet.done && fresh < 0.6) guide.answer(best.label);
  await showNeighbours(found.neighbours);
}

async function showNeighbours(neighbours) {
  if (!neighbours.length) return;
  const asked = drawing;
  const pictures = await Promise.all(neighbours.map(({ row }) => gallery.picture(memory, row)));
  if (asked !== drawing) return;
  find("neighbours").replaceChildren(...neighbours.map((neighbour, i) => {
    const picture = pictures[i] ? el("img", { src: pictures[i], alt: "", class: "ink", width: 52, height: 52 }) : el("span", { class: "blank" });
    const item = el("li", { title: `row ${neighbour.row}, weight ${percent(neighbour.weight)}` }, picture,
      el("b", {}, String(neighbour.label)), el("span", {}, neighbour.distance.toFixed(1)));
    item.style.setProperty("--weight", Math.max(0.25, Math.sqrt(neighbour.weight)).toFixed(2));
    return item;
  }));
}

// --- teaching ---

async function teach(label) {
  if (sheet.empty || sheet.done) { say(sheet.done ? "You have taught this drawing: draw another." : "Draw something first."); return; }
  try {
    const receipt = await call(memoryPath(memory, "/learn"), {
      method: "POST", json: { image: sheet.toDataURL(), label, source: "page" }, headers: { "Idempotency-Key": newKey() },
    });
    sheet.taught();
    find("judge").hidden = true;
    find("label").value = "";
    showSurprise(receipt);
    await refresh();
    askSoon();
    guide.lesson(label);
    if (receipt.written) say(`Learnt “${label}”, row ${receipt.row}.`, "Undo", () => forget({ row: receipt.row }, `row ${receipt.row}`));
    else say(`No surprise: it knew “${label}” (${percent(receipt.probability)}), nothing was written.`);
  } catch (error) { failed(error); }
}

function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function showSurprise(receipt) {
  const scale = Math.max(receipt.surprise_nats, receipt.threshold_nats) * 1.15 || 1;
  const meter = el("div", { class: receipt.written ? "meter over" : "meter" }, el("span", {}), el("i", {}));
  meter.children[0].style.width = `${(100 * receipt.surprise_nats) / scale}%`;
  meter.children[1].style.left = `${(100 * receipt.threshold_nats) / scale}%`;
  const why = receipt.new_label ? "a name it had never heard" : receipt.written ? "more than the threshold" : "less than the threshold";
  const text = `${receipt.surprise_nats.toFixed(2)} nats at “${receipt.label}” (threshold ${receipt.threshold_nats.toFixed(2)}): ${why}, ` +
    (receipt.written ? `so it was written as row ${receipt.row}.` : "so nothing was written.");
  find("surprise").replaceChildren(meter, el("p", {}, text));
}

find("name-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const label = find("label").value.trim();
  if (label) teach(label);
});
find("right").addEventListener("click", () => answer?.predicted != null && teach(answer.predicted));
find("wrong").addEventListener("click", () => { say("What is it, then?"); find("label").focus(); });
find("undo-stroke").addEventListener("click", () => sheet.undo());
find("clear").addEventListener("click", () => sheet.clear());

async function showFile(file) {
  if (!file) return;
  try { await sheet.show(file); } catch { say("That file is not a picture the browser can read."); }
}
find("picture").addEventListener("change", (event) => { showFile(event.target.files[0]); event.target.value = ""; });
for (const name of ["dragover", "dragleave", "drop"]) {
  find("drop").addEventListener(name, (event) => {
    event.preventDefault();
    find("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") showFile(event.dataTransfer.files[0]);
  });
}

// --- the memory ---

const gallery = new Gallery({ forget });

async function refresh() {
  const state = await gallery.load(memory);
  known = state.classes.map(({ label }) => label);
  find("known").replaceChildren(...known.slice(-24).map((label) =>
    el("button", { type: "button", class: "chip", title: `Teach: this is a ${label}`, onclick: () => teach(label) }, String(label))));
  find("known-labels").replaceChildren(...known.map((label) => el("option", { value: String(label) })));
  return state;
}

async function forget(what, name) {
  try {
    const { rows, undo } = await call(memoryPath(memory, "/forget"), { method: "POST", json: what });
    await refresh();
    if (!sheet.empty) askSoon(); else forgetAnswer();
    if (!rows.length) return say("It was gone already.");
    say(`Forgot ${name}.`, undo && "Undo", async () => {
      try {
        await call(memoryPath(memory, "/restore"), { method: "POST", json: { undo } });
        await refresh();
        if (!sheet.empty) askSoon();
      } catch (error) { failed(error); }
    });
  } catch (error) { failed(error); }
}

find("export").addEventListener("click", async () => {
  try {
    const blob = await (await call(memoryPath(memory, "/export"), { raw: true })).blob();
    const link = el("a", { href: URL.createObjectURL(blob), download: `${memory}.zip` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } catch (error) { failed(error); }
});
find("import").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  event.target.value = "";
  try {
    const done = await call(memoryPath(memory, "/import"), { method: "POST", body: file, headers: { "Content-Type": "application/zip" } });
    await refresh();
    say(`Imported ${done.written} rows; ${done.already_there} were there already.`);
  } catch (error) { failed(error); }
});

async function listMemories() {
  const { memories } = await call("/v1/memories");
  const usable = memories.filter((one) => one.usable).map(({ name }) => name);
  if (!usable.includes(memory)) memory = usable[0] ?? "default";
  find("memory").replaceChildren(...usable.map((name) => el("option", { value: name, selected: name === memory }, name)));
}

async function choose(name) {
  memory = name;
  localStorage.setItem("apl memory", name);
  await listMemories();
  sheet.clear();
  find("surprise").replaceChildren(el("p", { class: "empty" }, "teach it something"));
  return refresh();
}

find("memory").addEventListener("change", (event) => choose(event.target.value).catch(failed));
find("new-memory").addEventListener("click", async () => {
  const name = await ask({ title: "A new memory", text: "Letters, digits, dots, dashes and underscores.", pattern: "[A-Za-z0-9._\\-]{1,64}" });
  if (!name) return;
  try { await call(memoryPath(name), { method: "PUT" }); await choose(name); } catch (error) { failed(error); }
});

// --- tabs ---

const tabs = [...document.querySelectorAll('[role="tab"]')];
function select(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", chosen);
    other.tabIndex = chosen ? 0 : -1;
    find(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  find("guide").hidden = tab.id !== "tab-teach" || !guide.open;
  history.replaceState(null, "", tab.id === "tab-episode" ? "#episode" : "#");
}
tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(i + step + tabs.length) % tabs.length];
    select(next);
    next.focus();
  });
});

const guide = new Guide({
  finished() { localStorage.setItem("apl guide", "seen"); },
  named(name) { find("label").value = name; },
});
new Episode({ failed });

try {
  await listMemories();
  const state = await choose(memory);
  if (location.hash === "#episode") select(find("tab-episode"));
  else if (!state.rows && !localStorage.getItem("apl guide")) guide.start();
} catch (error) { failed(error); }
document.documentElement.dataset.ready = "true";

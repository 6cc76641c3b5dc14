// The page: draw, watch the posterior, teach, look after the memory.

import { isNew, lessonInWords, shares, words } from "./answer.js";
import { call, memoryPath, onTokenNeeded, useToken } from "./api.js";
import { Batch } from "./batch.js";
import { Camera } from "./camera.js";
import { ask, count, el, find, percent, save, say, showBars } from "./elements.js";
import { badge, Gallery, picture, textOf } from "./gallery.js";
import { chosen, dropped, readable, shrunk, whyUnreadable } from "./pictures.js";
import { follow } from "./live.js";
import { Queue } from "./queue.js";
import { Shelf } from "./shelf.js";
import { setUpSharing } from "./share.js";
import { Sentence } from "./sentence.js";
import { Sheet, SENT } from "./sheet.js";
import { setUpTables } from "./table.js";

const ASK_EVERY_MS = 110;
const CHIPS = 24;
const NEIGHBOURS = 8;
const PHOTO_SENT = 448;
const POOL_SENT = 288; // photographs that are only chosen from

// A link that was shared carries a token and the name of a memory.
const invitation = new URLSearchParams(location.hash.slice(1));
if (invitation.has("token")) {
  useToken(invitation.get("token"));
  history.replaceState(null, "", location.pathname);
}

let memory = invitation.get("memory") ?? localStorage.getItem("apl memory") ?? "default";
let said = null; // of what is on the sheet: `words`
let known = [];
let rows = 0; // in the memory, as shown
let surely = false; // the pen is up: say it aloud too
let insist = false; // the photograph on the sheet was remarked on: go on all the same
let takes = "drawing";

const failed = (error) => say(error.message);
const told = (work) => (...given) => work(...given).catch(failed);
const post = (path, json, headers) => call(memoryPath(memory, path), { method: "POST", json, headers });
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
        const verbs = ["/explain", ...(surely ? ["/predict_set"] : [])];
        const [found, set] = await Promise.all(verbs.map((verb) => post(verb, example())));
        if (asked === drawing && !sheet.empty) showAnswer(found, set);
      }
    } catch (error) {
      if (error.code === "photograph") { insist = again = true; say("This looks like a photograph, and drawings are known here: apl serve --model photo."); }
      else if (error.status !== 422) failed(error); // a first dot may not be ink enough
    }
    asking = false;
    if (again) { again = false; askSoon(); }
  }, Math.max(0, ASK_EVERY_MS - (performance.now() - lastAsked)));
}

const example = () => ({ ...sheet.example(), anyway: insist || queue.on });

const watch = {
  began() { camera.stop(); queue.stop(); },
  changed(penDown) {
    surely = !penDown;
    drawing += penDown && sheet.strokes.length === 1 && sheet.strokes[0].length === 1;
    for (const id of ["undo-stroke", "clear"]) find(id).disabled = sheet.empty;
    find("sheet-hint").hidden = !sheet.empty;
    if (sheet.empty) { drawing++; insist = false; forgetAnswer(); } else askSoon();
  },
  lifted() { askSoon(); },
};
let sheet = new Sheet(find("sheet"), watch);

// Something else on the sheet: what was said of the last one does not hold for it.
async function fresh(put) {
  await put();
  drawing++;
  forgetAnswer();
}

function forgetAnswer() {
  said = null;
  showBars(find("bars"), []);
  find("judge").hidden = true;
  find("live").textContent = "";
  if (queue.on) { find("verdict").textContent = "…"; return; }
  const what = { drawing: "draw something", photo: "show it a photograph", text: "write a sentence" }[takes];
  const first = mayTeach() ? `It knows nothing yet: ${what} and name it.` : "It knows nothing yet.";
  find("verdict").textContent = known.length ? `${what[0].toUpperCase()}${what.slice(1)}.` : first;
  find("why").textContent = "";
  find("neighbours").replaceChildren(el("li", { class: "empty" }, "nothing yet"));
}

function showAnswer(found, set) {
  showBars(find("bars"), shares(found));
  said = words(found, set);
  const { verdict, live, yes, no, others = [] } = said;
  find("judge").hidden = !yes || sheet.done;
  find("right").textContent = yes;
  find("wrong").textContent = no;
  find("others").replaceChildren(...others.map((label) => el("button", { onclick: () => teach(label) }, String(label))));
  find("live").textContent = live;
  if (surely || !find("verdict").textContent.startsWith(verdict.split(" ")[0])) find("verdict").textContent = verdict;
  find("why").textContent = isNew(found) ? "" : found.why.replace(/; next comes .*/s, "."); // the bars show what comes next
  showNeighbours(found);
}

// The rows that carried the answer, the heaviest first: their shares add up to those of the names.
function showNeighbours({ neighbours, probability_new }) {
  if (!neighbours.length) return;
  const pictured = neighbours.filter(({ payload }) => payload);
  const carried = (pictured.length ? pictured : neighbours).sort((one, other) => other.weight - one.weight).slice(0, NEIGHBOURS);
  const items = carried.map((neighbour) => {
    const item = el("li", { class: textOf(neighbour.payload) ? "sentence" : "", title: `row ${neighbour.row}, ${count(neighbour.examples, "example")}, distance ${neighbour.distance.toFixed(2)}` },
      picture(neighbour.payload), ...badge(neighbour.examples), el("b", {}, String(neighbour.label)), el("span", {}, percent((1 - probability_new) * neighbour.weight)));
    item.style.setProperty("--weight", Math.max(0.25, Math.sqrt(neighbour.weight)).toFixed(2));
    return item;
  });
  const others = neighbours.length - carried.length;
  if (others) items.push(el("li", { class: "more small" }, `and ${count(others, "row")} of less weight`));
  find("neighbours").replaceChildren(...items);
}

// --- teaching ---

async function teach(label) {
  if (sheet.empty || sheet.done) { say(sheet.done ? "You have taught this one: take another." : "There is nothing to teach yet."); return; }
  const key = newKey(), source = queue.source() ?? `page ${key}`;
  try {
    const receipt = await post("/learn", { ...example(), label, source }, { "Idempotency-Key": key });
    sheet.taught();
    find("judge").hidden = true;
    if (!camera.on) find("label").value = "";
    showSurprise(receipt);
    await refresh();
    askSoon();
    const undo = () => forget({ source }, "the last lesson");
    if (receipt.written) say(`Learnt “${label}”, row ${receipt.row}.`, "Undo", undo);
    else if (receipt.merged_into) say(`Learnt “${label}”: merged into row ${receipt.merged_into}.`, "Undo", undo);
    else say(`“${label}” did not surprise it: nothing was written.`);
    await queue.answered();
  } catch (error) { failed(error); }
}

function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function showSurprise(receipt) {
  const parts = [el("p", {}, lessonInWords(receipt))];
  if (!receipt.new_label) {
    const scale = Math.max(receipt.surprise_nats, receipt.threshold_nats) * 1.15 || 1;
    const meter = el("div", { class: receipt.written ? "meter over" : "meter" }, el("span", {}), el("i", {}));
    meter.children[0].style.width = `${(100 * receipt.surprise_nats) / scale}%`;
    meter.children[1].style.left = `${(100 * receipt.threshold_nats) / scale}%`;
    parts.unshift(meter);
  }
  showLesson(...parts);
}

function showLesson(...parts) {
  find("surprise").replaceChildren(...parts);
  find("last-lesson").hidden = !parts.length;
}

function nameIt(message) {
  say(message);
  find("label").focus();
}

find("name-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const label = find("label").value.trim().normalize();
  if (label) teach(label);
});
function agree() {
  if (said?.yes && said.agree === null) nameIt("What is it called?");
  else if (said?.yes) teach(said.agree);
}
find("right").addEventListener("click", agree);
find("wrong").addEventListener("click", () => {
  if (said?.deny) teach(said.deny);
  else nameIt("What is it, then?");
});
// One key to agree with what is asked about: Enter, while no name is being typed.
document.addEventListener("keydown", (event) => {
  const elsewhere = event.target.closest("button, dialog, select, textarea") || find("label").value.trim();
  if (event.key !== "Enter" || !queue.on || elsewhere || find("judge").hidden) return;
  event.preventDefault();
  agree();
});
find("undo-stroke").addEventListener("click", () => sheet.undo());
find("clear").addEventListener("click", () => sheet.clear());

// --- pictures and the camera ---

const camera = new Camera({
  failed,
  frame: (seen) => sheet.frame(seen),
  switched(on) {
    find("camera").setAttribute("aria-pressed", on);
    find("camera").textContent = on ? "Stop camera" : "Camera";
  },
});
const queue = new Queue({ memory: () => memory, failed, finished: () => sheet.clear() });
const batch = new Batch({ askAbout, memory: () => memory, side: () => (takes === "photo" ? PHOTO_SENT : SENT), photographs: () => takes === "photo", taught });

// Pictures or sentences without names: asked about one by one, or shown to the queue in the form they are sent in.
async function askAbout(pictures) {
  camera.stop();
  await queue[mayTeach() ? "start" : "sort"](pictures.map(({ file, path }) => ({
    name: path, show: () => fresh(() => sheet.show(file)),
    example: async () => ({ image: (await shrunk(file, takes === "photo" ? POOL_SENT : SENT)).toDataURL(takes === "photo" ? "image/jpeg" : "image/png") }),
  })));
}
const askAboutTexts = (texts) => queue[mayTeach() ? "start" : "sort"](texts.map((text) => ({ name: text, show: () => fresh(() => sheet.put(text)), example: async () => ({ text }) })));
const mayTeach = () => document.body.dataset.scope !== "read";

async function taught(summary) {
  showLesson(el("p", {}, summary));
  await refresh();
}

async function take(collected) {
  const [only] = collected.found;
  camera.stop();
  if (collected.found.length !== 1 || only.path.includes("/")) return mayTeach() ? batch.show(collected) : askAbout(readable(collected));
  try { await fresh(() => sheet.show(only.file)); } catch { say(`${only.file.name}: ${whyUnreadable(only.file)}.`); }
}
find("camera").addEventListener("click", () => { queue.stop(); camera.toggle(); });
for (const id of ["picture", "folder"]) {
  find(id).addEventListener("change", (event) => {
    const collected = chosen(event.target.files);
    event.target.value = "";
    if (collected.found.length) take(collected).catch(failed);
  });
}
for (const name of ["dragover", "dragleave", "drop"]) {
  find("drop").addEventListener(name, (event) => {
    event.preventDefault();
    find("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") dropped(event.dataTransfer).then(take).catch(failed);
  });
}

// --- the memory ---

async function refresh() {
  const asked = memory, state = await gallery.load(memory);
  if (asked !== memory) return;
  rows = state.rows;
  document.body.dataset.scope = state.scope;
  known = state.classes.map(({ label }) => label);
  shelf.soon(state);
  showChips();
}

// The latest names first; while a name is being typed, those that contain it.
function showChips() {
  const typed = find("label").value.trim().toLowerCase();
  const fitting = known.filter((label) => String(label).toLowerCase().includes(typed)).reverse();
  find("known").replaceChildren(...fitting.slice(0, CHIPS).map((label) =>
    el("button", { type: "button", class: "chip", title: `Teach: this is a ${label}`, onclick: () => teach(label) }, String(label))));
}
find("label").addEventListener("input", showChips);

async function changed() {
  await refresh();
  if (!sheet.empty) askSoon(); else forgetAnswer();
}

const forget = told(async (what, name) => {
  const gone = await post("/forget", what);
  await changed();
  say(gone.rows.length || gone.rebuilt.length ? `Forgot ${name}.` : "It was gone already.");
});

const rename = told(async (label) => {
  const to = (await ask({ title: `Rename “${label}”`, text: "If there is a class of the new name, the two become one.", value: String(label) }))?.trim().normalize();
  if (!to || to === String(label)) return;
  const joins = known.includes(to);
  await post("/rename", { label, to });
  await changed();
  say(joins ? `“${label}” and “${to}” are one class now.` : `“${label}” is called “${to}” now.`);
});

const gallery = new Gallery({ forget, rename });
const shelf = new Shelf({ memory: () => memory, failed, forget, changed, row: (memory, row) => gallery.row(memory, row) });
find("export").addEventListener("click", told(async () => {
  save([await (await call(memoryPath(memory, "/export"), { raw: true })).blob()], "application/zip", `${memory}.zip`);
}));
find("import").addEventListener("change", told(async (event) => {
  const file = event.target.files[0];
  event.target.value = "";
  if (!file) return;
  const done = await call(memoryPath(memory, "/import"), { method: "POST", body: file, headers: { "Content-Type": "application/zip" } });
  await changed();
  say(`Imported ${done.written} rows; ${done.already_there} were there already.`);
}));
setUpSharing(() => memory);

async function listMemories() {
  const memories = await call("/v1/memories");
  const usable = memories.filter((one) => one.usable).map(({ name }) => name);
  if (!usable.includes(memory)) memory = usable[0] ?? "default";
  find("memory").replaceChildren(...usable.map((name) => el("option", { value: name, selected: name === memory }, name)));
}

async function choose(name) {
  memory = name;
  await listMemories();
  localStorage.setItem("apl memory", memory);
  queue.stop();
  showLesson();
  await refresh();
  sheet.clear(); // after it is known what the memory knows
  updates.of(memory);
}

// Others may teach, rename and delete at the same time.
const updates = follow({
  rows: () => rows,
  changed: () => changed().catch(failed),
  deleted: told(async () => {
    say(`“${memory}” was deleted.`);
    await choose(memory);
  }),
});

find("memory").addEventListener("change", (event) => choose(event.target.value).catch(failed));
find("new-memory").addEventListener("click", told(async () => {
  const name = await ask({ title: "A new memory", text: "Letters, digits, dots, dashes and underscores.", pattern: "[A-Za-z0-9._\\-]{1,64}" });
  if (!name) return;
  await call(memoryPath(name), { method: "PUT" });
  await choose(name);
}));
find("delete-memory").addEventListener("click", told(async () => {
  const gone = memory;
  const sure = await ask({ title: `Delete “${gone}”?`, text: "The memory and all its rows will be deleted. This cannot be undone; Export keeps a copy.", input: false });
  if (!sure) return;
  for (const one of [updates, shelf, gallery]) one.leave();
  await call(memoryPath(gone), { method: "DELETE" });
  if (find("memory").options.length < 2) await call(memoryPath("default"), { method: "PUT" });
  await choose("default");
  say(`“${gone}” was deleted.`);
}));

// --- the start ---

function suit(kind) {
  takes = kind;
  document.body.dataset.takes = kind;
  if (kind === "text") sheet = new Sentence(find("sentence"), watch);
  else sheet.photographs = kind === "photo";
  if (kind === "drawing") return;
  const photo = kind === "photo";
  document.title = `apl: teach it by ${photo ? "showing" : "writing"}`;
  find("tagline").textContent = `${photo ? "Show it a photograph, name it, show it another" : "Write a sentence, name it, write another"}. It keeps only what surprises it.`;
  find("draw-title").textContent = photo ? "Photograph" : "Write";
  if (photo) find("sheet-hint").textContent = "drop photographs or folders, or use the camera";
  else find("label-title").textContent = "It is about";
}

setUpTables({ askAbout: askAboutTexts, memory: () => memory, mayTeach, taught });

try {
  const service = await call("/v1/service");
  document.body.toggleAttribute("data-owner", service.admin);
  suit(service.takes);
  await listMemories();
  await choose(memory);
} catch (error) { failed(error); }
document.documentElement.dataset.ready = "true";

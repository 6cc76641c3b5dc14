// A guided minute: three signs, each drawn twice, and a third time without a name.

const SIGNS = [
  { name: "house", path: "M20 85 V45 L50 15 L80 45 V85 Z" },
  { name: "wave", path: "M10 55 Q25 15 40 50 T70 50 T92 40" },
  { name: "star", path: "M50 12 L72 86 L12 40 H88 L28 86 Z" },
];
const find = (id) => document.getElementById(id);

export class Guide {
  constructor({ finished, named }) {
    this.finished = finished;
    this.named = named;
    this.step = -1;
    this.taught = []; // what was really drawn and what it was called: people do as they please
    find("guide-close").addEventListener("click", () => this.close());
    find("guide-dots").replaceChildren(...Array.from({ length: 7 }, () => document.createElement("li")));
  }

  get open() { return this.step >= 0; }

  start() {
    this.step = 0;
    this.taught = [];
    this.show();
  }

  close() {
    this.step = -1;
    find("guide").hidden = true;
    this.finished();
  }

  // A lesson was given.
  lesson(label, picture) {
    if (!this.open || this.step > 5) return;
    if (this.step < 3) this.taught.push({ label: String(label), picture });
    this.step++;
    this.show();
  }

  // The pen was lifted and this is the answer.
  answer(predicted) {
    if (this.step !== 6 || !this.taught.some(({ label }) => label === String(predicted))) return;
    find("guide-title").textContent = `It says: ${predicted}`;
    find("guide-text").textContent =
      "One example of each was enough; most second drawings were not even written down. Tell it whether that was right, " +
      "then teach it anything you like: your own letters, symbols, doodles.";
    find("guide-close").textContent = "Done";
    find("guide-dots").lastElementChild.className = "done";
  }

  show() {
    find("guide").hidden = false;
    [...find("guide-dots").children].forEach((dot, i) => { dot.className = i < this.step ? "done" : i === this.step ? "now" : ""; });
    const again = this.step >= 3 && this.step < 6 ? this.taught[this.step - 3] : null;
    find("guide-sign").toggleAttribute("hidden", this.step >= 3);
    find("guide-own").hidden = !again;
    find("guide-close").textContent = "Not now";
    if (this.step < 3) {
      const sign = SIGNS[this.step];
      find("guide-sign").firstElementChild.setAttribute("d", sign.path);
      find("guide-title").textContent = `${["First", "Second", "Third"][this.step]} sign: draw a ${sign.name}`;
      find("guide-text").textContent = "Any way you like, it need not be neat. Then press Teach.";
      this.named(sign.name);
    } else if (again) {
      find("guide-own").src = again.picture;
      find("guide-title").textContent = `Draw the ${again.label} again`;
      find("guide-text").textContent = "Watch the bars while you draw: it may know before you have finished. Then teach it once more.";
      this.named(again.label);
    } else {
      find("guide-title").textContent = "Now draw any of the three, and do not tell it which";
      find("guide-text").textContent = "See what it thinks.";
      this.named("");
    }
  }
}

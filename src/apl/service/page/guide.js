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
    find("guide-close").addEventListener("click", () => this.close());
    find("guide-dots").replaceChildren(...Array.from({ length: 7 }, () => document.createElement("li")));
  }

  get open() { return this.step >= 0; }

  start() {
    this.step = 0;
    this.show();
  }

  close() {
    this.step = -1;
    find("guide").hidden = true;
    this.finished();
  }

  // A lesson was given.
  lesson(label) {
    if (!this.open || this.step > 5) return;
    if (label === SIGNS[this.step % 3].name || this.step >= 3) this.step++;
    else { SIGNS[this.step % 3].name = label; this.step++; }
    this.show();
  }

  // The pen was lifted and this is the answer.
  answer(predicted) {
    if (this.step !== 6 || !SIGNS.some((sign) => sign.name === predicted)) return;
    find("guide-title").textContent = `It says: ${predicted}`;
    find("guide-text").textContent =
      "One example of each was enough; most second drawings were not even written down. Tell it whether that was right, " +
      "then teach it anything you like: your own letters, symbols, doodles.";
    find("guide-close").textContent = "Done";
    find("guide-dots").lastElementChild.className = "done";
  }

  show() {
    const sign = SIGNS[this.step % 3];
    find("guide").hidden = false;
    [...find("guide-dots").children].forEach((dot, i) => { dot.className = i < this.step ? "done" : i === this.step ? "now" : ""; });
    find("guide-sign").firstElementChild.setAttribute("d", this.step < 6 ? sign.path : "");
    find("guide-close").textContent = "Not now";
    if (this.step < 3) {
      find("guide-title").textContent = `${["First", "Second", "Third"][this.step]} sign: draw a ${sign.name}`;
      find("guide-text").textContent = "Any way you like, it need not be neat. Then press Teach.";
      this.named(sign.name);
    } else if (this.step < 6) {
      find("guide-title").textContent = `Draw the ${sign.name} again`;
      find("guide-text").textContent = "Watch the bars while you draw: it may know before you have finished. Then teach it once more.";
      this.named(sign.name);
    } else {
      find("guide-title").textContent = "Now draw any of the three, and do not tell it which";
      find("guide-text").textContent = "See what it thinks.";
      this.named("");
    }
  }
}

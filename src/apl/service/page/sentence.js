// A sentence instead of a drawing, with the face of a `Sheet`.

export class Sentence {
  constructor(area, { changed, lifted }) {
    Object.assign(this, { area, changed, lifted, done: false, strokes: [] });
    area.addEventListener("input", () => { this.done = false; this.show(); this.changed(false); });
  }

  get empty() { return !this.area.value.trim(); }

  example() { return { text: this.area.value.trim() }; }

  clear() { this.put(""); }

  put(text) { this.area.value = text; this.done = false; this.show(); this.changed(false); }

  undo() { this.clear(); }

  taught() { this.done = true; this.show(); }

  show() { this.area.classList.toggle("done", this.done); }
}

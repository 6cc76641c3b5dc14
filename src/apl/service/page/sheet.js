// The sheet: strokes by pointer or keyboard, or a picture; undo; and the small picture that is sent.

import { shrunk } from "./pictures.js";

export const SENT = 112; // what the service reduces larger pictures to
const PEN = 0.04; // of the sheet's side
const KEY_STEP = 0.04;

export class Sheet {
  constructor(canvas, { changed, lifted, began }) {
    Object.assign(this, { canvas, changed, lifted, began, context: canvas.getContext("2d"), pen: null, pointer: null });
    this.photographs = false; // nothing is drawn then
    this.forget();
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.up(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => { if (this.pen?.down) this.lift(); this.pen = null; this.paint(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
    this.paint();
  }

  get empty() { return !this.strokes.length && !this.picture; }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  begin(point) {
    this.began?.();
    if (this.done || this.picture) this.forget();
    this.strokes.push([point]);
  }

  down(event) {
    if (this.pointer !== null || event.button > 0 || this.photographs) return;
    event.preventDefault();
    this.canvas.focus({ preventScroll: true });
    this.pointer = event.pointerId;
    this.canvas.setPointerCapture(event.pointerId);
    this.pen = null;
    this.begin(this.place(event));
    this.paint();
    this.changed(true);
  }

  move(event) {
    if (event.pointerId !== this.pointer) return;
    // A fast hand moves further between two frames than one point can tell.
    const steps = event.getCoalescedEvents?.() ?? [];
    for (const step of steps.length ? steps : [event]) this.strokes.at(-1).push(this.place(step));
    this.paint();
    this.changed(true);
  }

  up(event) {
    if (event.pointerId !== this.pointer) return;
    this.pointer = null;
    this.changed(false);
    this.lifted();
  }

  key(event) {
    if (this.photographs) return;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key in moves) {
      this.pen ??= { at: [0.5, 0.5], down: false };
      const fine = event.shiftKey ? 0.3 : 1;
      this.pen.at = this.pen.at.map((v, i) => Math.min(0.98, Math.max(0.02, v + fine * KEY_STEP * moves[event.key][i])));
      if (this.pen.down) { this.strokes.at(-1).push([...this.pen.at]); this.changed(true); }
    } else if (event.key === " ") {
      this.pen ??= { at: [0.5, 0.5], down: false };
      if (this.pen.down) this.lift();
      else { this.pen.down = true; this.begin([...this.pen.at]); this.changed(true); }
    } else if (event.key === "Backspace" || (event.key === "z" && (event.ctrlKey || event.metaKey))) this.undo();
    else return;
    event.preventDefault();
    this.paint();
  }

  lift() {
    this.pen.down = false;
    this.changed(false);
    this.lifted();
  }

  undo() {
    if (this.done) this.done = false;
    else if (this.picture) this.picture = null;
    else this.strokes.pop();
    if (this.pen) this.pen.down = false;
    this.paint();
    this.changed(false);
  }

  clear() {
    this.began?.();
    this.forget();
    this.paint();
    this.changed(false);
  }

  forget(picture = null) {
    // Done: taught already, so that the next stroke begins a new drawing.
    Object.assign(this, { strokes: [], picture, done: false });
  }

  taught() {
    this.done = true;
    this.paint();
  }

  async show(file) {
    this.frame(await shrunk(file, this.canvas.width));
    this.lifted();
  }

  // One of many: the camera's.
  frame(picture) {
    this.forget(picture);
    this.paint();
    this.changed(false);
  }

  // What is sent: a photograph as it is, a drawing as dark ink on white, whatever the colours of the page.
  example() {
    if (this.photographs) return { image: this.picture.toDataURL("image/jpeg", 0.92) };
    const small = document.createElement("canvas");
    small.width = small.height = SENT;
    const context = small.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, SENT, SENT);
    this.draw(context, SENT, "#000");
    return { image: small.toDataURL("image/png") };
  }

  paint() {
    const side = this.canvas.width;
    const style = getComputedStyle(this.canvas);
    const { context } = this;
    context.clearRect(0, 0, side, side);
    context.globalAlpha = this.done ? 0.35 : 1;
    this.draw(context, side, style.color);
    context.globalAlpha = 1;
    if (!this.pen) return;
    const [x, y] = this.pen.at.map((v) => v * side);
    context.beginPath();
    context.arc(x, y, side * 0.025, 0, 7);
    context.lineWidth = 3;
    context.strokeStyle = context.fillStyle = style.getPropertyValue("--accent");
    context.stroke();
    if (this.pen.down) context.fill();
  }

  draw(context, side, colour) {
    if (this.picture) {
      const scale = side / Math.max(this.picture.width, this.picture.height);
      const [w, h] = [this.picture.width * scale, this.picture.height * scale];
      context.drawImage(this.picture, (side - w) / 2, (side - h) / 2, w, h);
    }
    context.strokeStyle = colour;
    context.lineWidth = PEN * side;
    context.lineCap = context.lineJoin = "round";
    for (const stroke of this.strokes) {
      context.beginPath();
      context.moveTo(stroke[0][0] * side, stroke[0][1] * side);
      if (stroke.length === 1) context.lineTo(stroke[0][0] * side + 0.1, stroke[0][1] * side);
      for (let i = 1; i < stroke.length; i++) {
        // Through the middles of the steps, so that a coarse path looks like a hand's.
        const [x0, y0] = stroke[i - 1], [x1, y1] = stroke[i];
        context.quadraticCurveTo(x0 * side, y0 * side, ((x0 + x1) / 2) * side, ((y0 + y1) / 2) * side);
        if (i === stroke.length - 1) context.lineTo(x1 * side, y1 * side);
      }
      context.stroke();
    }
  }
}

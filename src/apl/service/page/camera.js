// The camera on the sheet: a square from the middle, a few times a second.

const EVERY_MS = 160;
const SIDE = 448;

export class Camera {
  constructor({ frame, switched, failed }) {
    Object.assign(this, { frame, switched, failed });
    this.stream = null;
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.stop(); });
  }

  get on() { return this.stream !== null; }

  async toggle() {
    if (this.on) return this.stop();
    if (this.asking) return;
    if (!navigator.mediaDevices?.getUserMedia) {
      return this.failed(new Error("Browsers lend the camera only to pages on this machine or over https. Take a photograph with Pictures… instead."));
    }
    this.asking = true;
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      return this.failed(new Error(error.name === "NotAllowedError" ? "The camera may not be used: allow it in the browser." : "There is no camera to be found."));
    } finally { this.asking = false; }
    this.video = Object.assign(document.createElement("video"), { srcObject: this.stream, muted: true, playsInline: true });
    await this.video.play();
    this.timer = setInterval(() => this.look(), EVERY_MS);
    this.switched(true);
  }

  look() {
    const { videoWidth: width, videoHeight: height } = this.video;
    if (!width) return;
    const side = Math.min(width, height);
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = SIDE;
    canvas.getContext("2d").drawImage(this.video, (width - side) / 2, (height - side) / 2, side, side, 0, 0, SIDE, SIDE);
    this.frame(canvas);
  }

  stop() {
    if (!this.on) return;
    clearInterval(this.timer);
    for (const track of this.stream.getTracks()) track.stop();
    this.stream = null;
    this.switched(false);
  }
}

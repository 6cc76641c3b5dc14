// Two lines over the same examples: a share on the left axis, a count on the right one.

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 360, HEIGHT = 150, LEFT = 38, RIGHT = 34, TOP = 10, BOTTOM = 22;

function node(name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function chart(svg, { share, count, first = 0, mark = null }) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.replaceChildren();
  const length = Math.max(count.length, 2);
  const top = 2 * Math.ceil(Math.max(4, ...count) / 2); // half of it is a tick
  const x = (i) => LEFT + (i / (length - 1)) * (WIDTH - LEFT - RIGHT);
  const y = (v) => TOP + (1 - v) * (HEIGHT - TOP - BOTTOM);
  for (const v of [0, 0.5, 1]) {
    svg.append(node("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(v), y2: y(v) }));
    svg.append(node("text", { class: "tick", x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, `${100 * v}%`));
    svg.append(node("text", { class: "tick rows", x: WIDTH - RIGHT + 6, y: y(v) + 4 }, `${Math.round(top * v)}`));
  }
  svg.append(node("text", { class: "tick", x: LEFT, y: HEIGHT - 5 }, `${first}`));
  const last = node("text", { class: "tick", x: WIDTH - RIGHT, y: HEIGHT - 5, "text-anchor": "end" });
  const examples = first + count.length;
  last.textContent = examples === 1 ? "1 example" : `${examples} examples`;
  svg.append(last);
  if (mark !== null && mark >= 0) svg.append(node("line", { class: "drift", x1: x(mark), x2: x(mark), y1: TOP, y2: HEIGHT - BOTTOM }));
  const line = (values, scale) => {
    let path = "", pen = "M";
    values.forEach((v, i) => {
      if (v === null) { pen = "M"; return; }
      path += `${pen}${x(i).toFixed(1)} ${y(v / scale).toFixed(1)}`;
      pen = "L";
    });
    return path;
  };
  svg.append(node("path", { class: "line rows", d: line(count, top) }));
  svg.append(node("path", { class: "line ours", d: line(share, 1) }));
  const dot = (values, scale, kind) => {
    const i = values.length - 1;
    if (i >= 0 && values[i] !== null) svg.append(node("circle", { class: kind, cx: x(i), cy: y(values[i] / scale), r: 3.2 }));
  };
  dot(count, top, "dot rows");
  dot(share, 1, "dot ours");
}

// Right among those that could have been right; null before the first of them.
export function accuracySoFar(outcomes) {
  let right = 0, asked = 0;
  return [...outcomes].map((letter) => {
    if (letter !== "n") { asked++; right += letter === "r"; }
    return asked ? right / asked : null;
  });
}

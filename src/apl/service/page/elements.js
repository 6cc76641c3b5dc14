// Pieces that the page is made of.

export const find = (id) => document.getElementById(id);

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export const percent = (p) => (p > 0.995 && p < 1 ? "> 99%" : p > 0 && p < 0.005 ? "< 1%" : `${Math.round(100 * p)}%`);

export const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

// Bars are reused, so that they move instead of jumping.
export function showBars(list, items) {
  while (list.children.length > items.length) list.lastElementChild.remove();
  const largest = Math.max(...items.map((item) => item.probability));
  items.forEach((item, i) => {
    let row = list.children[i];
    if (!row) {
      row = el("li", {}, el("span", { class: "bar-name" }), el("span", { class: "bar" }, el("span", {})), el("span", { class: "bar-value" }));
      list.append(row);
    }
    const [name, bar, value] = row.children;
    name.textContent = item.label;
    bar.firstElementChild.style.width = `${100 * item.probability}%`;
    value.textContent = percent(item.probability);
    row.className = [item.kind ?? "", item.probability === largest ? "first" : ""].join(" ").trim();
  });
}

const toast = find("toast");
let toastTimer;

export function say(message, action, run) {
  toast.firstElementChild.textContent = message;
  const button = toast.lastElementChild;
  button.hidden = !action;
  button.textContent = action ?? "";
  button.onclick = () => { toast.hidden = true; run(); };
  toast.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { toast.hidden = true; }, action ? 9000 : 5000);
}

// A file for the person before the page.
export function save(parts, type, name) {
  const link = el("a", { href: URL.createObjectURL(new Blob(parts, { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The text that was given, or true where none is asked for; null if cancelled.
export async function ask({ title, text, label, value = "", secret = false, pattern = null, input = true }) {
  const dialog = find("ask"), field = find("ask-input");
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("p").textContent = text;
  dialog.querySelector("label").textContent = label ?? title;
  field.type = secret ? "password" : "text";
  field.value = value;
  field.hidden = !input;
  field.required = input;
  if (pattern) field.pattern = pattern; else field.removeAttribute("pattern");
  dialog.returnValue = "cancel";
  dialog.querySelector("[value=cancel]").onclick = () => dialog.close("cancel"); // not a submit button: Enter is OK
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (dialog.returnValue !== "ok") return null;
  return input ? field.value : true;
}

// The service's own description, to be read by people: paths by tag, and the schemas they name.

import { el, find } from "./elements.js";

const last = (ref) => ref.split("/").pop();

// A schema in a few words; named schemas are links.
function kind(schema = {}) {
  if (schema.$ref) return el("a", { href: `#${last(schema.$ref)}` }, last(schema.$ref));
  const any = schema.anyOf ?? schema.oneOf;
  if (any) return el("span", {}, ...any.flatMap((one, i) => [i ? " or " : "", kind(one)]));
  if (schema.enum) return el("span", {}, schema.enum.map((one) => JSON.stringify(one)).join(" or "));
  if (schema.type === "array") return el("span", {}, "list of ", kind(schema.items));
  const bounds = [["minimum", "≥"], ["maximum", "≤"], ["exclusiveMaximum", "<"], ["minLength", "length ≥"], ["maxLength", "length ≤"]]
    .filter(([name]) => schema[name] !== undefined).map(([name, sign]) => `${sign} ${schema[name]}`);
  return el("span", {}, [schema.format === "binary" || schema.contentMediaType ? "file" : schema.type ?? "anything", ...bounds].join(", "));
}

function table(rows) {
  return el("table", {}, ...rows.map(([name, schema, required, text]) =>
    el("tr", {}, el("td", {}, el("code", {}, name), required ? "" : " (optional)"), el("td", {}, kind(schema)), el("td", {}, text ?? ""))));
}

const fields = (schema) => Object.entries(schema.properties ?? {}).map(([name, one]) => [name, one, schema.required?.includes(name), one.description]);

function operation(path, method, found) {
  const body = Object.entries(found.requestBody?.content ?? {}).map(([type, { schema }]) => el("p", {}, "Body: ", el("code", {}, type), " ", kind(schema)));
  const answers = Object.entries(found.responses).map(([status, { description, content = {} }]) =>
    [status, Object.values(content)[0]?.schema ?? { type: Object.keys(content)[0] ?? "nothing" }, true, description]);
  return el("details", {}, el("summary", {}, el("b", {}, method.toUpperCase()), " ", el("code", {}, path)),
    el("p", {}, found.description ?? ""),
    ...(found.parameters?.length ? [table(found.parameters.map((one) => [one.name, one.schema, one.required, one.description]))] : []),
    ...body, el("p", {}, "Answers"), table(answers));
}

const about = await (await fetch("openapi.json")).json();
find("title").textContent = about.info.title;
find("summary").textContent = about.info.summary;
find("description").textContent = about.info.description;
const byTag = new Map();
for (const [path, methods] of Object.entries(about.paths)) {
  for (const [method, found] of Object.entries(methods)) {
    const tag = found.tags?.at(-1) ?? "others";
    byTag.set(tag, [...(byTag.get(tag) ?? []), operation(path, method, found)]);
  }
}
find("paths").replaceChildren(...[...byTag].map(([tag, found]) => el("section", { class: "card" }, el("h2", {}, tag), ...found)));
find("schemas").replaceChildren(...Object.entries(about.components.schemas).map(([name, schema]) =>
  el("details", { id: name }, el("summary", {}, el("code", {}, name)), el("p", {}, schema.description ?? ""), table(fields(schema)))));
const open = () => { const named = find(location.hash.slice(1)); if (named) { named.open = true; named.scrollIntoView(); } };
addEventListener("hashchange", open);
open();
document.documentElement.dataset.ready = "true";

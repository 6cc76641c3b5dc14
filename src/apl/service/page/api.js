// Talking to the service. Every error becomes a sentence that can be shown.

let askForToken = async () => null;

export function onTokenNeeded(ask) { askForToken = ask; }

export const useToken = (given) => sessionStorage.setItem("apl token", given);
const token = () => sessionStorage.getItem("apl token");

export async function call(path, { method = "GET", json, body, headers = {}, raw = false, quiet = false, signal } = {}) {
  const options = { method, headers: { ...headers }, cache: "no-store", signal };
  if (token()) options.headers.Authorization = `Bearer ${token()}`;
  if (json !== undefined) {
    options.body = JSON.stringify(json);
    options.headers["Content-Type"] = "application/json";
  } else if (body !== undefined) options.body = body;
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("the service does not answer");
  }
  if (response.status === 401 && !quiet) {
    const given = await askForToken();
    if (given) {
      useToken(given);
      return call(path, { method, json, body, headers, raw });
    }
  }
  if (!response.ok) throw await refusal(response);
  if (raw) return response;
  return response.status === 204 ? null : response.json();
}

async function refusal(response) {
  let error = { message: `the service answered ${response.status}` };
  try { ({ error } = await response.json()); } catch { /* not ours */ }
  return Object.assign(new Error(error.message), { status: response.status, code: error.code });
}

// What the service says of examples, each in `sent`. One that it cannot read spoils the whole request: it is left out, and named to `leave`.
export async function callWith(path, examples, leave) {
  const items = [...examples];
  while (items.length) {
    try {
      return { items, found: await call(path, { method: "POST", json: { examples: items.map(({ sent }) => sent) } }) };
    } catch (error) {
      const named = error.status === 422 && error.message.match(/^examples\.(\d+)[.:]\s*(.*)/s);
      if (!named && !(error.status === 422 && items.length === 1)) throw error;
      const [one] = items.splice(named ? Number(named[1]) : 0, 1);
      leave(one, (named ? named[2] : error.message).replace(/^image: /, ""));
    }
  }
  return { items, found: [] };
}

// Server-sent events through fetch, because EventSource cannot show a token.
export async function* events(path, signal) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  const response = await fetch(path, { headers, signal });
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}

export const memoryPath = (name, rest = "") => `/v1/memories/${encodeURIComponent(name)}${rest}`;

// Requests to the server: JSON, problems as errors with a hint, and event streams, with the token if there is one.

const TOKEN_KEY = "sark-token";

export class Problem extends Error {
  constructor(status, detail, hint) {
    super(detail);
    this.status = status;
    this.hint = hint || "";
  }
}

// The link that the server prints ends in #token=…: store it for this tab and remove it from the address.
export function takeToken() {
  const match = /^#token=((?:[\w.~-]|%[2-7][\dA-F])+)$/.exec(location.hash);
  if (match) {
    setToken(decodeURIComponent(match[1]));
    history.replaceState(null, "", "#/");
  }
}

export function setToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token.trim());
}

export function hasToken() {
  return Boolean(sessionStorage.getItem(TOKEN_KEY));
}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  return token ? { Authorization: `Bearer ${token}`, ...more } : more;
}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers), credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer", "Is `sark-node serve` still running?");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Problem(response.status, problem.detail || response.statusText, problem.hint);
}

export async function get(path, signal) {
  return (await request(path, { signal })).json();
}

export async function text(path, signal) {
  return (await request(path, { signal })).text();
}

export async function post(path, body, more = {}) {
  return send(path, JSON.stringify(body), "application/json", { headers: more });
}

export async function send(path, body, type, { signal, headers: more = {} } = {}) {
  return (await request(path, { method: "POST", headers: { "Content-Type": type, ...more }, body, signal })).json();
}

export async function put(path, body, type) {
  return (await request(path, { method: "PUT", headers: { "Content-Type": type }, body })).json();
}

export async function remove(path) {
  const response = await request(path, { method: "DELETE" });
  return response.status === 204 ? null : response.json();
}

// Download a file, because a plain link could not send the token.
export async function save(path, name) {
  const url = URL.createObjectURL(await (await request(path)).blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Server-sent events until the signal or the event `end`: take(name, value). A lost connection calls offline(true) and resumes after the
// last id.
export async function stream(path, take, offline, signal) {
  let last = "";
  for (let tries = 0; !signal.aborted; tries += 1) {
    try {
      const response = await request(path, {
        signal,
        headers: { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) },
      });
      offline(false);
      if (response.status === 204) return; // the stream is complete
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        tries = 0;
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          let name = "message";
          const data = [];
          for (const line of block.split("\n")) {
            if (line.startsWith("event: ")) name = line.slice(7);
            else if (line.startsWith("data: ")) data.push(line.slice(6));
            else if (line.startsWith("id: ")) last = line.slice(4);
          }
          if (data.length) take(name, JSON.parse(data.join("\n")));
          if (name === "end") return;
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status && error.status < 500) throw error;
    }
    if (signal.aborted) return;
    offline(true);
    await new Promise((go) => setTimeout(go, Math.min(5000, 300 * 2 ** Math.min(tries, 5))));
  }
}

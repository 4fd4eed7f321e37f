// Asking the server: JSON, problems as errors with a hint, and streams of events, with the token where one is wanted.

const KEPT = "sark-token";

export class Problem extends Error {
  constructor(status, detail, hint) {
    super(detail);
    this.status = status;
    this.hint = hint || "";
  }
}

// The server prints a link that ends in #token=…; it is kept for this tab alone and taken out of the address.
export function takeToken() {
  const found = /^#token=((?:[\w.~-]|%[2-7][\dA-F])+)$/.exec(location.hash);
  if (found) {
    setToken(decodeURIComponent(found[1]));
    history.replaceState(null, "", "#/");
  }
}

export function setToken(token) {
  sessionStorage.setItem(KEPT, token.trim());
}

function headers(more = {}) {
  const token = sessionStorage.getItem(KEPT);
  return token ? { Authorization: `Bearer ${token}`, ...more } : more;
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: headers(options.headers), credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "the server does not answer", "is `sark-node serve` still running?");
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Problem(answer.status, told.detail || answer.statusText, told.hint);
}

export async function get(path, signal) {
  return (await ask(path, { signal })).json();
}

export async function text(path, signal) {
  return (await ask(path, { signal })).text();
}

export async function post(path, body, more = {}) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...more },
    body: JSON.stringify(body),
  });
  return answer.json();
}

export async function send(path, body, type, { signal, headers: more = {} } = {}) {
  return (await ask(path, { method: "POST", headers: { "Content-Type": type, ...more }, body, signal })).json();
}

// A file of the server's to the reader's disk: a plain link could not carry the token.
export async function save(path, name) {
  const url = URL.createObjectURL(await (await ask(path)).blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Server-sent events until the signal, or the server's `end`: take(name, value). A cut is told by down(true) and tried again from the
// last id.
export async function stream(path, take, down, signal) {
  let last = "";
  for (let tries = 0; !signal.aborted; tries += 1) {
    try {
      const answer = await ask(path, {
        signal,
        headers: { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) },
      });
      down(false);
      if (answer.status === 204) return; // all is told
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
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
    down(true);
    await new Promise((go) => setTimeout(go, Math.min(5000, 300 * 2 ** Math.min(tries, 5))));
  }
}

// Edits a campaign's text one top key at a time. The text under all other keys, including comments, stays exactly as it is.

const KEY = /^(?:"([^"]+)"|'([^']+)'|([A-Za-z_]\w*))\s*:(?:\s|$)/;

// [{ key, from, to }]: lines of each top key; comments and empty lines directly above a key belong to it.
export function blocks(text) {
  const lines = text.split("\n");
  const result = [];
  lines.forEach((line, at) => {
    const key = KEY.exec(line);
    if (!key) return;
    let from = at;
    while (from > 0 && /^\s*(#.*)?$/.test(lines[from - 1]) && from - 1 > (result.at(-1)?.at ?? -1)) from -= 1;
    if (result.length) result.at(-1).to = from;
    result.push({ key: key[1] ?? key[2] ?? key[3], at, from, to: lines.length });
  });
  for (const block of result) while (block.to > block.at + 1 && /^\s*$/.test(lines[block.to - 1])) block.to -= 1;
  return result;
}

// The text with `value` under `key`; undefined removes the key.
export function put(text, key, value) {
  const lines = text.split("\n");
  const block = blocks(text).find((one) => one.key === key);
  const written = value === undefined ? [] : entry(key, value, "").split("\n");
  if (block) {
    const old = lines.slice(block.at, block.to);
    lines.splice(block.at, block.to - block.at, ...(inside(old, value) ?? written));
    return lines.join("\n");
  }
  if (!written.length) return text;
  while (lines.length && !lines.at(-1).trim()) lines.pop();
  return [...lines, ...written, ""].join("\n");
}

// A mapping written over its old lines. Unchanged lines stay, with their comments. null: it is not written line by line.
function inside(old, value) {
  if (!isTree(value) || Array.isArray(value) || !/:\s*(#.*)?$/.test(old[0])) return null;
  const indent = /^\s+/.exec(old.slice(1).find((line) => line.trim() && !line.trim().startsWith("#")) ?? "")?.[0];
  if (!indent) return null;
  const lines = [];
  const left = new Map(Object.entries(value));
  let dropping = false;
  for (const line of old.slice(1)) {
    const key = line.startsWith(indent) && KEY.exec(line.slice(indent.length));
    if (!key) {
      if (!dropping || !line.startsWith(`${indent} `)) lines.push(line); // a comment, or more of the value above
      continue;
    }
    const name = key[1] ?? key[2] ?? key[3];
    const written = left.has(name) ? entry(name, left.get(name), indent) : null;
    const bare = line.replace(/\s+#.*$/, "").trimEnd();
    dropping = bare !== written;
    if (!dropping) lines.push(line);
    else if (written !== null) lines.push(...written.split("\n").map((one, at) => (at === 0 && !written.includes("\n") ? one + (/\s+#.*$/.exec(line)?.[0] ?? "") : one)));
    left.delete(name);
  }
  for (const [name, item] of left) lines.push(...entry(name, item, indent).split("\n"));
  return [old[0], ...lines];
}

function entry(key, value, indent) {
  const head = `${indent}${scalar(key)}:`;
  if (Array.isArray(value)) {
    if (value.every((item) => !isTree(item)) && JSON.stringify(value).length < 60) return `${head} [${value.map(scalar).join(", ")}]`;
    return [head, ...value.map((item) => listItem(item, `${indent}  `))].join("\n");
  }
  if (isTree(value)) {
    const inside = Object.entries(value);
    return inside.length ? [head, ...inside.map(([name, item]) => entry(name, item, `${indent}  `))].join("\n") : `${head} {}`;
  }
  return `${head} ${scalar(value)}`;
}

function listItem(item, indent) {
  if (!isTree(item)) return `${indent}- ${scalar(item)}`;
  if (Array.isArray(item)) return `${indent}- ${JSON.stringify(item)}`;
  const lines = Object.entries(item).map(([name, value]) => entry(name, value, `${indent}  `));
  return `${indent}- ${lines.join("\n").slice(indent.length + 2)}`;
}

const isTree = (value) => value !== null && typeof value === "object";

// An unambiguous word is written plain; all other text is written in double quotes, as in JSON.
export function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  const plain = /^[A-Za-z_.\/][A-Za-z0-9 _.\/()%+-]*$/.test(value) && !/\s$/.test(value) && !/^(true|false|null|\.\d.*)$/i.test(value);
  return plain || /^\d+(\.\d+)?(%|ms|s|m|h|d)$/.test(value) ? value : JSON.stringify(value);
}

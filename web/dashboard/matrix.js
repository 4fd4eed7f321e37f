// Live matrix of models and units against devices, with a link for each task in its cell. The smaller side forms the columns.

import { h, replace } from "./dom.js";
import { collate, configuration, time } from "./format.js";
import { bar, region, setBar, setText } from "./widgets.js";

const NO_DEVICE = "no device yet";

// Returns { element, put(changed tasks), filter(test) }.
export function matrix() {
  const entries = new Map(); // task id -> { task, link, text, progress, at, shown }
  const element = h("div");
  let shows = () => true;
  let cells = new Map();
  let shape = "";
  let moved = false;

  // `last`: no more tasks follow immediately, so it is time to move them to their cells.
  function put(tasks, last = true) {
    for (const task of tasks) {
      const entry = entries.get(task.task) || make(task);
      entries.set(task.task, entry);
      update(entry, task);
      const [at, shown] = [address(task), shows(task)];
      moved = moved || at !== entry.at || shown !== entry.shown;
      [entry.at, entry.shown] = [at, shown];
    }
    if (!moved || !last) return;
    moved = false;
    arrange();
  }

  function make(task) {
    const text = h("span");
    const progress = bar(null);
    const link = h("a", { href: `#/tasks/${task.task}` }, h("b", {}, `${task.n} `), text, progress);
    return { task, link, text, progress, at: null, shown: false };
  }

  function update(entry, task) {
    entry.task = task;
    const text = task.state === "succeeded" && task.median_ms !== null ? `done, ${time(task.median_ms, 3)}${task.verdict ? ` ⚠ ${task.verdict}` : ""}${task.simulated ? ", simulated" : ""}` : task.progress;
    setText(entry.text, text);
    const style = `cell state ${task.state}`;
    if (entry.link.className !== style) entry.link.className = style;
    if (entry.link.title !== text) entry.link.title = text;
    setBar(entry.progress, task.state === "running" ? task.fraction : null);
  }

  // Draws the frame again only if rows or columns changed.
  function arrange() {
    const shown = [...entries.values()].filter((entry) => entry.shown);
    const rows = new Map(); // model × unit × threads × batch
    const devices = new Map(); // peer id -> name
    for (const { task } of shown) {
      rows.set(kind(task), task);
      devices.set(task.worker || "", task.worker ? task.device || task.worker.slice(-8) : NO_DEVICE);
    }
    const names = [...devices].sort((a, b) => (a[0] === "") - (b[0] === "") || collate(a[1], b[1]) || (a[0] < b[0] ? -1 : 1));
    const current = JSON.stringify([...rows.keys(), names]);
    if (current !== shape) {
      shape = current;
      frame([...rows], names);
    }
    for (const entry of entries.values()) {
      const cell = cells.get(entry.at);
      if (!entry.shown) entry.link.remove();
      else if (entry.link.parentNode !== cell) cell.append(entry.link);
    }
  }

  function frame(kinds, devices) {
    cells = new Map();
    if (!kinds.length) {
      replace(element, h("p", { class: "quiet" }, "No tasks yet."));
      return;
    }
    const names = devices.map(([, name]) => name);
    const ambiguous = new Set(names.filter((name, index) => names.indexOf(name) !== index));
    const tops = devices.map(([peer, name]) => ({ key: peer, text: [name, ambiguous.has(name) && peer && h("code", { class: "small quiet" }, ` …${peer.slice(-8)}`)] }));
    const sides = kinds.map(([key, task]) => ({ key, text: [task.model, h("div", { class: "small quiet" }, configuration(task.unit, task.threads, task.batch))] }));
    const flipped = tops.length > sides.length;
    const [columns, rows] = flipped ? [sides, tops] : [tops, sides];
    const cell = (row, column) => {
      const td = h("td");
      cells.set(flipped ? `${column.key} ${row.key}` : `${row.key} ${column.key}`, td);
      return td;
    };
    const head = h("tr", {}, h("th", { scope: "col" }, flipped ? "Device" : "Model and unit"), columns.map((column) => h("th", { scope: "col" }, column.text)));
    const body = rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.text), columns.map((column) => cell(row, column))));
    const label = flipped ? "Devices by models and units" : "Models and units by device";
    element.style.setProperty("--cell", columns.length > 4 ? "15rem" : "26rem");
    replace(element, region(label, h("table", { class: "matrix", "aria-label": label }, h("thead", {}, head), h("tbody", {}, body))));
  }

  return {
    element,
    put,
    filter(test) {
      shows = test;
      for (const entry of entries.values()) entry.shown = shows(entry.task);
      arrange();
    },
  };
}

function kind(task) {
  return JSON.stringify([task.model, task.unit, task.threads, task.batch]);
}

function address(task) {
  return `${kind(task)} ${task.worker || ""}`;
}

// Models and units against devices, a cell for each pair, in it what each of its tasks does now. Whichever are fewer are the columns.

import { h, replace } from "./dom.js";
import { bar, inOrder, ms, on, region, setBar, setText } from "./widgets.js";

const NOWHERE = "no device yet";

// Gives { element, put(changed tasks), filter(test) }.
export function matrix() {
  const known = new Map(); // task id -> { task, link, words, line, at, shown }
  const element = h("div");
  let shows = () => true;
  let cells = new Map();
  let shape = "";

  let moved = false;

  // `last`: no more follow at once, so that they are put in their cells.
  function put(tasks, last = true) {
    for (const task of tasks) {
      const one = known.get(task.task) || make(task);
      known.set(task.task, one);
      draw(one, task);
      const [at, shown] = [address(task), shows(task)];
      moved = moved || at !== one.at || shown !== one.shown;
      [one.at, one.shown] = [at, shown];
    }
    if (!moved || !last) return;
    moved = false;
    arrange();
  }

  function make(task) {
    const words = h("span");
    const line = bar(null);
    const link = h("a", { href: `#/tasks/${task.task}` }, h("b", {}, `${task.n} `), words, line);
    return { task, link, words, line, at: null, shown: false };
  }

  function draw(one, task) {
    one.task = task;
    const text = task.state === "succeeded" && task.median_ms !== null ? `done, ${ms(task.median_ms)}${task.simulated ? ", simulated" : ""}` : task.progress;
    setText(one.words, text);
    const as = `cell state ${task.state}`;
    if (one.link.className !== as) one.link.className = as;
    if (one.link.title !== text) one.link.title = text;
    setBar(one.line, task.state === "running" ? task.fraction : null);
  }

  // Draws the frame anew only where rows or columns changed; else tasks that found a device move to their cell.
  function arrange() {
    const shown = [...known.values()].filter((one) => one.shown);
    const kinds = new Map(); // model × unit × threads × batch
    const devices = new Map(); // peer id -> name
    for (const { task } of shown) {
      kinds.set(kind(task), task);
      devices.set(place(task), task.worker ? task.device || task.worker.slice(-8) : NOWHERE);
    }
    const names = [...devices].sort((a, b) => (a[0] === "") - (b[0] === "") || inOrder(a[1], b[1]) || (a[0] < b[0] ? -1 : 1));
    const now = JSON.stringify([...kinds.keys(), names]);
    if (now !== shape) {
      shape = now;
      frame([...kinds], names);
    }
    for (const one of shown) {
      const cell = cells.get(one.at);
      if (one.link.parentNode !== cell) cell.append(one.link);
    }
    for (const one of known.values()) if (!one.shown) one.link.remove();
  }

  function frame(kinds, devices) {
    cells = new Map();
    if (!kinds.length) {
      replace(element, h("p", { class: "quiet" }, "No tasks yet."));
      return;
    }
    const twice = new Set(devices.map(([, name]) => name).filter((name, index, all) => all.indexOf(name) !== index));
    const tops = devices.map(([peer, name]) => ({ key: peer, words: [name, twice.has(name) && peer && h("code", { class: "small quiet" }, ` …${peer.slice(-8)}`)] }));
    const sides = kinds.map(([key, task]) => ({ key, words: [task.model, h("div", { class: "small quiet" }, on(task.unit, task.threads, task.batch))] }));
    const turned = tops.length > sides.length;
    const [columns, rows] = turned ? [sides, tops] : [tops, sides];
    const corner = turned ? "Device" : "Model and unit";
    const head = h("tr", {}, h("th", { scope: "col" }, corner), columns.map((column) => h("th", { scope: "col" }, column.words)));
    const body = rows.map((row) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, row.words),
        columns.map((column) => {
          const cell = h("td");
          cells.set(turned ? `${column.key} ${row.key}` : `${row.key} ${column.key}`, cell);
          return cell;
        }),
      ),
    );
    const label = turned ? "Devices against models and units" : "Models and units against devices";
    element.style.setProperty("--cell", columns.length > 4 ? "15rem" : "26rem");
    replace(element, region(label, h("table", { class: "matrix", "aria-label": label }, h("thead", {}, head), h("tbody", {}, body))));
  }

  return {
    element,
    put,
    filter(test) {
      shows = test;
      for (const one of known.values()) one.shown = shows(one.task);
      arrange();
    },
  };
}

function kind(task) {
  return JSON.stringify([task.model, task.unit, task.threads, task.batch]);
}

function place(task) {
  return task.worker || "";
}

function address(task) {
  return `${kind(task)} ${place(task)}`;
}

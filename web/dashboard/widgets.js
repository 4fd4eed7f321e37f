// What several pages are made of: badges, instants and sizes in words, tables that sort and change row by row, questions before a deed.

import { h, replace, visible } from "./dom.js";

// -- words ------------------------------------------------------------------------------------------------------------

// A state with its mark and colour. The class is one of ours; what it says may be anything.
export function badge(state, text = state) {
  const known = /^[a-z-]+$/.test(state || "") ? state : "unknown";
  return h("span", { class: `state ${known}` }, text);
}

// What stands beside whatever is no measurement. The word, not the colour, says it.
export function simulation() {
  return h("span", { class: "simulated" }, "simulation");
}

export const SIMULATED = "A simulation: these figures come from a script, nothing was measured. They are no results, and are never put beside any.";

// An instant (ISO, or null) in the reader's own time.
export function instant(iso) {
  if (!iso) return "";
  return h("time", { datetime: iso, title: iso }, new Date(iso).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }));
}

// Seconds as "4.2 s", "2:05", "1:02:33".
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole} s`;
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes}:${two(whole % 60)}` : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)}`;
}

// Milliseconds with three digits that mean something.
export function ms(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  if (value < 0.1) return `${digits(value * 1000)} µs`;
  return value < 1000 ? `${digits(value)} ms` : `${digits(value / 1000)} s`;
}

function digits(value) {
  return String(Number(value.toPrecision(3)));
}

// Bytes in binary units, as the command line shows them.
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  let amount = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(amount) < 1024) return `${Number.isInteger(amount) ? amount : amount.toFixed(1)} ${unit}`;
    amount /= 1024;
  }
  return `${Number.isInteger(amount) ? amount : amount.toFixed(1)} TiB`;
}

// count(1, "task") -> "1 task", count(2, "task") -> "2 tasks".
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

// The end of a long id, the whole of it where the pointer rests.
// Where and how something is measured: "CPU (ONNX), 2 threads, batch 8".
export function on(unit, threads, batch) {
  if (unit === null) return null;
  return [unit, threads !== null && count(threads, "thread"), batch !== null && `batch ${batch}`].filter(Boolean).join(", ");
}

export function tail(id) {
  return h("code", { title: id, class: "id" }, id ? `…${id.slice(-8)}` : "");
}

// -- pieces -----------------------------------------------------------------------------------------------------------

// A part that scrolls sideways by itself, also by keyboard.
export function region(label, ...children) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, children);
}

// [["name", value], …] as a list of facts; empty values are left out.
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// A bar for a share from 0 to 1 (null: nothing to show). The words beside it say the same.
export function bar(share) {
  const full = h("span", { class: "full" });
  const made = h("span", { class: "bar", "aria-hidden": "true" }, full);
  setBar(made, share);
  return made;
}

export function setBar(made, share) {
  made.hidden = share === null || share === undefined;
  if (!made.hidden) made.firstChild.style.transform = `scaleX(${Math.max(0, Math.min(1, share))})`;
}

// What went wrong, within a page that goes on.
export function problem(error) {
  return h("div", { class: "problem", role: "alert" }, h("p", {}, h("strong", {}, error.message)), error.hint && h("p", { class: "hint" }, error.hint));
}

// Say it to those who listen instead of looking; a moment is left so that it is heard as a change.
export function announce(text) {
  const place = document.getElementById("told");
  place.textContent = "";
  requestAnimationFrame(() => {
    place.textContent = visible(text);
  });
}

// Change an element's text only where it differs.
export function setText(element, text) {
  const shown = visible(String(text));
  if (element.textContent !== shown) element.textContent = shown;
}

// -- asking before a deed ---------------------------------------------------------------------------------------------

// A question in a dialog: true when it was answered with `action`. Escape and "Go back" mean no; the focus returns where it was.
// `more`: elements between the text and the buttons, such as a checkbox.
export function ask({ title, text, action, danger = false, more = [] }) {
  return new Promise((answer) => {
    const dialog = h("dialog", { "aria-labelledby": "asked", "aria-describedby": "asked-why" });
    let yes = false;
    const back = h("button", { class: "plain", type: "button", onclick: () => dialog.close() }, "Go back");
    const go = h(
      "button",
      {
        class: danger ? "danger" : "",
        type: "button",
        onclick: () => {
          yes = true;
          dialog.close();
        },
      },
      action,
    );
    dialog.append(h("h2", { id: "asked" }, title), h("p", { id: "asked-why" }, text), ...more, h("div", { class: "buttons" }, back, go));
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(yes);
    });
    document.body.append(dialog);
    dialog.showModal();
    (danger ? back : go).focus();
  });
}

// Do what a button stands for: it cannot be pressed twice, and what goes wrong is told below it.
export async function doing(button, deed) {
  const before = button.nextElementSibling;
  if (before?.classList.contains("problem")) before.remove();
  button.disabled = true;
  try {
    return await deed();
  } catch (error) {
    button.after(problem(error));
    return undefined;
  } finally {
    button.disabled = false;
    if (document.activeElement === document.body) button.focus();
  }
}

const ROW_REM = 2.4; // of a long table, as the style sheet has it
const AROUND = 15;

// -- tables -----------------------------------------------------------------------------------------------------------

// A table whose rows change one by one. Columns: { name, value(row) -> what is shown and sorted by,
//   cell(row) -> node, text or list (else value), sign(row) -> text that changes when the cell must be drawn anew (else value),
//   number: true, width: "6rem" (where `long`), sort: false, head: true (names its row), hidden: true (its name is for listeners) }
// Options: label, key(row) -> text, sorted: [column name, "ascending" | "descending"], empty: what is said without rows,
//   long: only rows in sight are there, each of one height; stack: on a narrow screen each row is a card; rowClass(row) -> one of our classes.
// Gives { element, set(rows), put(changed rows), drop(keys), filter(test), rows() }.
export function table(columns, { label, key, sorted = null, long = false, stack = false, empty = "None.", rowClass = () => "" }) {
  const known = new Map(); // key -> { row, tr, cells, signs, place, by, shown, at }
  let inOrderNow = []; // those that are shown
  let drawn = new Set(); // those whose rows stand in the page
  let order = sorted ? { column: columns.find((one) => one.name === sorted[0]), down: sorted[1] === "descending" } : null;
  let shows = () => true;
  let moved = false;
  const roles = (role) => (long || stack ? { role } : {}); // boxes that are laid out otherwise lose what a table tells by itself
  const heads = columns.map((column) => {
    const sorts = column.sort !== false && !column.hidden;
    const words = sorts
      ? h("button", { type: "button", class: "sort", onclick: () => sortBy(column) }, column.name)
      : h("span", { class: column.hidden ? "unseen" : null }, column.name);
    return h("th", { scope: "col", class: column.number ? "number" : null, ...roles("columnheader") }, words);
  });
  const body = h("tbody", roles("rowgroup"));
  const none = h("p", { class: "quiet", hidden: true }, empty);
  const whole = h(
    "table",
    { class: long ? "long" : stack ? "stack" : null, "aria-label": label, ...roles("table") },
    h("thead", roles("rowgroup"), h("tr", { ...roles("row"), "aria-rowindex": long ? 1 : null }, heads)),
    body,
  );
  if (long) whole.style.setProperty("--columns", columns.map((column) => column.width || "minmax(6rem, 1fr)").join(" "));
  const element = h("div", {}, region(label, whole), none);
  mark();

  function mark() {
    columns.forEach((column, index) => {
      if (column.sort === false || column.hidden) return;
      const here = order?.column === column;
      heads[index].setAttribute("aria-sort", here ? (order.down ? "descending" : "ascending") : "none");
    });
  }

  function sortBy(column) {
    order = { column, down: order?.column === column ? !order.down : Boolean(column.number) };
    for (const one of known.values()) one.by = column.value(one.row);
    mark();
    arrange();
    announce(`sorted by ${column.name}, ${order.down ? "descending" : "ascending"}`);
  }

  // Only what stands elsewhere than before is moved.
  function arrange() {
    const list = [...known.values()].filter((one) => one.shown);
    const way = order?.down ? -1 : 1;
    list.sort((a, b) => (order ? compare(a.by, b.by, way) : 0) || a.place - b.place);
    none.hidden = list.length > 0;
    inOrderNow = list;
    if (long) {
      whole.setAttribute("aria-rowcount", list.length + 1);
      body.style.height = `${list.length * ROW_REM}rem`;
      addEventListener("scroll", soon, { passive: true });
      addEventListener("resize", soon, { passive: true });
    }
    fill();
  }

  // From which row to which they are in sight, with some above and below so that Tab and a turn of the wheel find them there. It moves by
  // many rows at a time: most pictures of a scrolling page then need nothing of it.
  function sight() {
    const height = ROW_REM * parseFloat(getComputedStyle(document.documentElement).fontSize) * AROUND;
    const top = body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / height) - 1) * AROUND;
    return [first, Math.max(first, (Math.ceil((innerHeight - top) / height) + 1) * AROUND)];
  }

  function inSight([first, last]) {
    const held = inOrderNow.findIndex((one) => one.tr?.contains(document.activeElement));
    const some = inOrderNow.slice(first, last);
    if (held >= 0 && held < first) some.unshift(inOrderNow[held]); // what has the focus keeps it
    if (held >= last) some.push(inOrderNow[held]);
    return some;
  }

  let asked = false;
  function soon() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      if (body.isConnected) fill(false);
      else for (const name of ["scroll", "resize"]) removeEventListener(name, soon);
    });
  }

  let shownRange = [0, 0];
  function fill(anew = true) {
    const here = long && inOrderNow.length > 4 * AROUND ? sight() : null;
    if (!anew && (!here || String(here) === String(shownRange))) return;
    shownRange = here;
    if (anew && long) inOrderNow.forEach((one, index) => (one.at = index));
    const list = here ? inSight(here) : inOrderNow;
    const held = document.activeElement;
    let next = body.firstChild;
    for (const one of list) {
      paint(one);
      if (one.tr === next) next = next.nextSibling;
      else body.insertBefore(one.tr, next);
    }
    while (next) {
      const gone = next;
      next = next.nextSibling;
      gone.remove();
    }
    drawn = new Set(list);
    if (held !== document.activeElement && body.contains(held)) held.focus({ preventScroll: true });
  }

  function make(one) {
    one.cells = columns.map((column) =>
      h(column.head ? "th" : "td", {
        scope: column.head ? "row" : null,
        class: column.number ? "number" : null,
        "data-name": stack && !column.head && !column.hidden ? column.name : null,
        ...roles(column.head ? "rowheader" : "cell"),
      }),
    );
    one.tr = h("tr", roles("row"), one.cells);
  }

  // The row as it is now; only cells that say something else than before are drawn.
  function paint(one) {
    if (!one.tr) make(one);
    const as = rowClass(one.row);
    if (one.tr.className !== as) one.tr.className = as;
    if (long && one.tr.dataset.at !== String(one.at)) {
      one.tr.dataset.at = one.at;
      one.tr.setAttribute("aria-rowindex", one.at + 2);
      one.tr.style.top = `${one.at * ROW_REM}rem`;
    }
    columns.forEach((column, index) => {
      const sign = String((column.sign || column.value)(one.row));
      if (one.signs[index] === sign) return;
      one.signs[index] = sign;
      const shown = column.cell ? column.cell(one.row) : column.value(one.row);
      replace(one.cells[index], shown);
      if (long && typeof shown !== "object") one.cells[index].title = visible(String(shown ?? ""));
    });
  }

  // Whether the row stands elsewhere now, or comes, or goes.
  function draw(row) {
    const id = key(row);
    const fresh = !known.has(id);
    const one = known.get(id) || { row, tr: null, cells: [], signs: [], place: known.size, by: undefined, shown: false, at: 0 };
    known.set(id, one);
    one.row = row;
    if (drawn.has(one)) paint(one);
    const [by, shown] = [order?.column.value(row), shows(row)];
    const elsewhere = fresh || by !== one.by || shown !== one.shown;
    [one.by, one.shown] = [by, shown];
    return elsewhere;
  }

  return {
    element,
    set(rows) {
      const ids = new Set(rows.map(key));
      for (const id of known.keys()) if (!ids.has(id)) known.delete(id);
      rows.forEach((row, index) => {
        draw(row);
        known.get(key(row)).place = index;
      });
      arrange();
    },
    // `last`: no more follow at once, so that they are put in order.
    put(rows, last = true) {
      for (const row of rows) moved = draw(row) || moved;
      if (!moved || !last) return;
      moved = false;
      arrange();
    },
    drop(ids) {
      for (const id of ids) known.delete(id);
      if (ids.length) arrange();
    },
    filter(test) {
      shows = test;
      for (const one of known.values()) one.shown = shows(one.row);
      arrange();
    },
    rows: () => [...known.values()].map((one) => one.row),
  };
}

// Numbers in texts count as numbers. One collator: made anew for each pair it would take most of the time of sorting.
export const inOrder = new Intl.Collator(undefined, { numeric: true }).compare;

function compare(a, b, way) {
  const none = (value) => value === null || value === undefined || value === "";
  if (none(a) || none(b)) return none(a) - none(b); // what is not known stands last, whichever way
  if (typeof a === "number" && typeof b === "number") return way * (a - b);
  return way * inOrder(String(a), String(b));
}

// -- time -------------------------------------------------------------------------------------------------------------

// Do it again and again until the signal, not while the page is out of sight.
export async function every(seconds, deed, signal) {
  while (!signal.aborted) {
    if (!document.hidden) await deed();
    await new Promise((go) => {
      const timer = setTimeout(done, seconds * 1000);
      signal.addEventListener("abort", done);
      document.addEventListener("visibilitychange", seen);
      function seen() {
        if (!document.hidden) done();
      }
      function done() {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        document.removeEventListener("visibilitychange", seen);
        go();
      }
    });
  }
}

const SLICE = 60;
const FRAME_MS = 8; // about half of what a picture may take: the rest is for laying it out

// Collects what comes and hands it over once for each picture that is drawn, of very much so much at a time that the page still answers.
// Nothing piles up while the page is out of sight.
export function gather(key, take) {
  const waiting = new Map();
  let asked = false;
  function ask() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      const began = performance.now();
      do {
        const things = [];
        for (const [name, thing] of waiting) {
          things.push(thing);
          waiting.delete(name);
          if (things.length === SLICE) break;
        }
        take(things, waiting.size === 0);
      } while (waiting.size && performance.now() - began < FRAME_MS);
      if (waiting.size) ask();
    });
  }
  return (thing) => {
    waiting.set(key(thing), thing);
    ask();
  };
}

// A table with rows that change one by one.

import { h, replace, visible } from "./dom.js";
import { collate } from "./format.js";
import { announce, region } from "./widgets.js";

const ROW_REM = 2.4; // height of a row of a long table, as in the style sheet
const MARGIN = 15; // rows above and below the visible ones

// Columns: { name, value(row) -> the value to show and to sort by, cell(row) -> node, text or list (default: value),
//   sign(row) -> text that changes when the cell must be drawn again (default: value), number: true, width: "6rem" (if `long`),
//   sort: false, head: true (names its row), hidden: true (its name is for screen readers) }
// Options: label, key(row) -> text, sorted: [column name, "ascending" | "descending"], empty: text without rows,
//   long: only visible rows are in the page, all of the same height; stack: on a narrow screen each row is a card; rowClass(row).
// Returns { element, set(rows), put(changed rows), drop(keys), filter(test), rows() }.
export function table(columns, { label, key, sorted = null, long = false, stack = false, empty = "None.", rowClass = () => "" }) {
  const entries = new Map(); // key -> { row, tr, cells, signs, place, by, shown, at }
  let ordered = []; // the shown entries, in order
  let drawn = new Set(); // the entries with a row in the page
  let order = sorted ? { column: columns.find((one) => one.name === sorted[0]), descending: sorted[1] === "descending" } : null;
  let shows = () => true;
  let moved = false;
  const roles = (role) => (long || stack ? { role } : {}); // a CSS display other than table's loses the roles
  const heads = columns.map((column) => {
    const sorts = column.sort !== false && !column.hidden;
    const name = sorts
      ? h("button", { type: "button", class: "sort", onclick: () => sortBy(column) }, column.name)
      : h("span", { class: column.hidden ? "unseen" : null }, column.name);
    return h("th", { scope: "col", class: column.number ? "number" : null, ...roles("columnheader") }, name);
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
  markOrder();

  function markOrder() {
    columns.forEach((column, index) => {
      if (column.sort === false || column.hidden) return;
      const direction = order?.column !== column ? "none" : order.descending ? "descending" : "ascending";
      heads[index].setAttribute("aria-sort", direction);
    });
  }

  function sortBy(column) {
    order = { column, descending: order?.column === column ? !order.descending : Boolean(column.number) };
    for (const entry of entries.values()) entry.by = column.value(entry.row);
    markOrder();
    arrange();
    announce(`sorted by ${column.name}, ${order.descending ? "descending" : "ascending"}`);
  }

  function arrange() {
    const direction = order?.descending ? -1 : 1;
    ordered = [...entries.values()].filter((entry) => entry.shown);
    ordered.sort((a, b) => (order ? compare(a.by, b.by, direction) : 0) || a.place - b.place);
    none.hidden = ordered.length > 0;
    if (long) {
      whole.setAttribute("aria-rowcount", ordered.length + 1);
      body.style.height = `${ordered.length * ROW_REM}rem`;
      addEventListener("scroll", refill, { passive: true });
      addEventListener("resize", refill, { passive: true });
    }
    fill();
  }

  // The range of visible rows with a margin, so that Tab and the mouse wheel find rows there. The range moves by many rows at a time.
  function visibleRange() {
    const height = ROW_REM * parseFloat(getComputedStyle(document.documentElement).fontSize) * MARGIN;
    const top = body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / height) - 1) * MARGIN;
    return [first, Math.max(first, (Math.ceil((innerHeight - top) / height) + 1) * MARGIN)];
  }

  function inRange([first, last]) {
    const focused = ordered.findIndex((entry) => entry.tr?.contains(document.activeElement));
    const some = ordered.slice(first, last);
    if (focused >= 0 && focused < first) some.unshift(ordered[focused]); // keeps the focus
    if (focused >= last) some.push(ordered[focused]);
    return some;
  }

  let scheduled = false;
  function refill() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      if (body.isConnected) fill(false);
      else for (const name of ["scroll", "resize"]) removeEventListener(name, refill);
    });
  }

  let range = null;
  function fill(changed = true) {
    const next = long && ordered.length > 4 * MARGIN ? visibleRange() : null;
    if (!changed && (!next || String(next) === String(range))) return;
    range = next;
    if (changed && long) ordered.forEach((entry, index) => (entry.at = index));
    const list = range ? inRange(range) : ordered;
    const focused = document.activeElement;
    let place = body.firstChild;
    for (const entry of list) {
      paint(entry);
      if (entry.tr === place) place = place.nextSibling;
      else body.insertBefore(entry.tr, place);
    }
    while (place) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
    drawn = new Set(list);
    if (focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
  }

  function makeRow(entry) {
    entry.cells = columns.map((column) =>
      h(column.head ? "th" : "td", {
        scope: column.head ? "row" : null,
        class: column.number ? "number" : null,
        "data-name": stack && !column.head && !column.hidden ? column.name : null,
        ...roles(column.head ? "rowheader" : "cell"),
      }),
    );
    entry.tr = h("tr", roles("row"), entry.cells);
  }

  // Draws the cells that changed.
  function paint(entry) {
    if (!entry.tr) makeRow(entry);
    const name = rowClass(entry.row);
    if (entry.tr.className !== name) entry.tr.className = name;
    if (long && entry.tr.dataset.at !== String(entry.at)) {
      entry.tr.dataset.at = entry.at;
      entry.tr.setAttribute("aria-rowindex", entry.at + 2);
      entry.tr.style.top = `${entry.at * ROW_REM}rem`;
    }
    columns.forEach((column, index) => {
      const sign = String((column.sign || column.value)(entry.row));
      if (entry.signs[index] === sign) return;
      entry.signs[index] = sign;
      const shown = column.cell ? column.cell(entry.row) : column.value(entry.row);
      replace(entry.cells[index], shown);
      if (long && typeof shown !== "object") entry.cells[index].title = visible(String(shown ?? ""));
    });
  }

  // Stores a changed row; true if it moves, appears or disappears.
  function update(row) {
    const id = key(row);
    const fresh = !entries.has(id);
    if (fresh) entries.set(id, { row, tr: null, cells: [], signs: [], place: entries.size, by: undefined, shown: false, at: 0 });
    const entry = entries.get(id);
    entry.row = row;
    if (drawn.has(entry)) paint(entry);
    const [by, shown] = [order?.column.value(row), shows(row)];
    const moves = fresh || by !== entry.by || shown !== entry.shown;
    [entry.by, entry.shown] = [by, shown];
    return moves;
  }

  return {
    element,
    set(rows) {
      const ids = new Set(rows.map(key));
      for (const id of entries.keys()) if (!ids.has(id)) entries.delete(id);
      rows.forEach((row, index) => {
        update(row);
        entries.get(key(row)).place = index;
      });
      arrange();
    },
    // `last`: no more rows follow immediately, so it is time to sort.
    put(rows, last = true) {
      for (const row of rows) moved = update(row) || moved;
      if (!moved || !last) return;
      moved = false;
      arrange();
    },
    drop(ids) {
      for (const id of ids) entries.delete(id);
      if (ids.length) arrange();
    },
    filter(test) {
      shows = test;
      for (const entry of entries.values()) entry.shown = shows(entry.row);
      arrange();
    },
    rows: () => [...entries.values()].map((entry) => entry.row),
  };
}

function compare(a, b, direction) {
  const unknown = (value) => value === null || value === undefined || value === "";
  if (unknown(a) || unknown(b)) return unknown(a) - unknown(b); // last, in both directions
  if (typeof a === "number" && typeof b === "number") return direction * (a - b);
  return direction * collate(String(a), String(b));
}

// What all pictures share: scales, ticks, axes, numbers in words, and points that a keyboard can walk through.
//
// A picture is drawn for the width it has, so that its letters keep their size, and again when that changes. Each stands in a figure with a
// caption and the same as a table: nobody needs to see it.

import { h, replace, s } from "./dom.js";

export const LINEAR = "linear";
export const LOG = "log";

// -- numbers ----------------------------------------------------------------------------------------------------------------------

// 4 digits that count, no exponent where a reader can do without.
export function digits(value, count = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e9 || size < 1e-6)) return value.toExponential(count - 1);
  if (size >= 10 ** count) return Math.round(value).toLocaleString("en").replaceAll(",", "\u202f");
  return String(Number(value.toPrecision(count)));
}

// How many there are: all digits, in groups.
export function whole(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en").replaceAll(",", "\u202f");
}

const TIMES = [
  { unit: "ns", ms: 1e-6 },
  { unit: "µs", ms: 1e-3 },
  { unit: "ms", ms: 1 },
  { unit: "s", ms: 1000 },
];

// The unit in which a time of this many milliseconds reads best.
export function timeUnit(ms) {
  return TIMES.findLast((one) => Math.abs(ms) >= one.ms) || TIMES[0];
}

export function time(ms, count = 4) {
  if (ms === null || ms === undefined) return "–";
  const { unit, ms: one } = timeUnit(ms || 1);
  return `${digits(ms / one, count)} ${unit}`;
}

export function seconds(value) {
  return value === null || value === undefined ? "–" : value < 60 ? time(value * 1000, 3) : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${digits(value, 3)} ${units[at]}`;
}

export function percent(share, count = 2) {
  return share === null || share === undefined ? "–" : `${digits(100 * share, count)} %`;
}

// -- scales -------------------------------------------------------------------------------------------------------------------------

// From values between low and high to places between from and to; kind LOG needs low above 0.
export function scale(kind, low, high, from, to) {
  const way = kind === LOG ? Math.log10 : (value) => value;
  let [first, last] = [way(low), way(high)];
  if (!(last > first)) {
    const room = kind === LOG ? 0.1 : Math.abs(first) * 0.1 || 1;
    [first, last] = [first - room, last + room];
  }
  const place = (value) => from + ((way(value) - first) / (last - first)) * (to - from);
  place.kind = kind;
  place.low = kind === LOG ? 10 ** first : first;
  place.high = kind === LOG ? 10 ** last : last;
  return place;
}

// Round values across a scale, about as many as asked.
export function ticks(place, wanted = 5) {
  if (place.kind === LOG) return logTicks(place.low, place.high, wanted);
  const rough = (place.high - place.low) / Math.max(1, wanted);
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((times) => times * ten).find((size) => size >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(place.low / step - 1e-9); at * step <= place.high + step * 1e-9; at += 1) found.push(Number((at * step).toPrecision(12)));
  return found;
}

function logTicks(low, high, wanted) {
  for (const steps of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9]]) {
    const found = [];
    for (let ten = Math.floor(Math.log10(low)); ten <= Math.ceil(Math.log10(high)); ten += 1) {
      for (const step of steps) {
        const value = Number((step * 10 ** ten).toPrecision(6));
        if (value >= low * 0.9999 && value <= high * 1.0001) found.push(value);
      }
    }
    if (found.length >= Math.min(3, wanted)) {
      const each = Math.ceil(found.length / (wanted * 1.6));
      return found.filter((_, at) => at % each === 0);
    }
  }
  return ticks(scale(LINEAR, low, high, 0, 1), wanted).filter((value) => value > 0);
}

// -- axes ---------------------------------------------------------------------------------------------------------------------------

// Ticks and their words along the bottom; `words` puts a value into letters.
export function bottomAxis(place, { from, to, y, label, words = digits, wanted, grid }) {
  const marks = ticks(place, wanted ?? Math.max(2, Math.round((to - from) / 90)));
  return s(
    "g",
    { class: "axis", "aria-hidden": "true" },
    s("line", { x1: from, x2: to, y1: y, y2: y }),
    marks.map((value) => [
      grid && s("line", { class: "grid", x1: place(value), x2: place(value), y1: grid, y2: y }),
      s("line", { x1: place(value), x2: place(value), y1: y, y2: y + 5 }),
      s("text", { x: place(value), y: y + 18, "text-anchor": "middle" }, words(value)),
    ]),
    s("text", { class: "name", x: (from + to) / 2, y: y + 36, "text-anchor": "middle" }, label),
  );
}

export function leftAxis(place, { x, to, label, words = digits, wanted = 4 }) {
  return s(
    "g",
    { class: "axis", "aria-hidden": "true" },
    ticks(place, wanted).map((value) => [
      s("line", { class: "grid", x1: x, x2: to, y1: place(value), y2: place(value) }),
      s("text", { x: x - 6, y: place(value) + 4, "text-anchor": "end" }, words(value)),
    ]),
    s("text", { class: "name", x: 0, y: 11 }, label),
  );
}

// -- figures --------------------------------------------------------------------------------------------------------------------------

// A picture with caption, what is pointed at in words, and the same as a table. draw(width, point) gives the svg; point(element, text) makes
// an element one that can be pointed at, with the mouse or with arrow keys.
export function figure({ caption, draw, table, tools }) {
  const reading = h("p", { class: "reading", "aria-hidden": "true" });
  const stage = h("div", { class: "stage" });
  let drawn = 0;
  const again = () => {
    const width = Math.floor(stage.clientWidth);
    if (width < 40 || !stage.isConnected) return;
    drawn = width;
    const points = [];
    const svg = draw(width, (element, text) => {
      points.push({ element, text });
      return element;
    });
    walk(svg, points, reading, caption);
    replace(stage, svg);
  };
  new ResizeObserver(() => {
    if (Math.abs(stage.clientWidth - drawn) > 1) again();
  }).observe(stage);
  const element = h("figure", { class: "chart" }, h("figcaption", {}, caption), tools, stage, reading, table && lazyTable(table));
  element.redraw = again;
  return element;
}

export function svg(width, height, ...children) {
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "plot" }, children);
}

// One stop for the tab key; arrows, Home and End go from point to point.
function walk(svg, points, reading, caption) {
  svg.setAttribute("role", "group");
  svg.setAttribute("aria-label", `${caption}${points.length ? `; ${points.length} points, arrow keys go through them` : ""}`);
  let at = 0;
  points.forEach(({ element, text }, place) => {
    element.setAttribute("tabindex", place === 0 ? "0" : "-1");
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", text);
    element.classList.add("point");
    const tell = () => (reading.textContent = text);
    element.addEventListener("focus", tell);
    element.addEventListener("pointerenter", tell);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !points.length) return;
    event.preventDefault();
    at = points.findIndex(({ element }) => element === document.activeElement);
    points[Math.max(at, 0)].element.setAttribute("tabindex", "-1");
    at = Math.min(points.length - 1, Math.max(0, at + step));
    points[at].element.setAttribute("tabindex", "0");
    points[at].element.focus();
  });
}

// The same numbers as a table, made when it is opened. table(): { heads, rows }; a cell is text or a node.
function lazyTable(table) {
  const details = h("details", {}, h("summary", {}, "As a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const { heads, rows } = table();
    details.append(scrolled("Table", plainTable(heads, rows)));
  });
  return details;
}

// `heads`: words; one that ends in "#" is over numbers. The first cell of a row is its head.
export function plainTable(heads, rows, caption) {
  const numeric = heads.map((head) => head.endsWith("#"));
  return h(
    "table",
    {},
    caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((head, at) => h("th", { scope: "col", class: numeric[at] ? "number" : null }, head.replace(/#$/, ""))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) => h(at ? "td" : "th", { scope: at ? null : "row", class: numeric[at] ? "number" : null }, cell ?? ""))))),
  );
}

// Text as it stands, line by line; wide lines scroll, with the keyboard too.
export function lines(label, text, more = "") {
  return h("pre", { tabindex: "0", role: "region", "aria-label": label, class: more || null }, text);
}

// Whatever is wider than the page scrolls by itself, with the keyboard too.
export function scrolled(label, ...children) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, children);
}

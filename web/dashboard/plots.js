// The pictures of a task and of comparisons. Values come in milliseconds where they are times.

import { LINEAR, LOG, bottomAxis, digits, figure, leftAxis, percent, scale, svg, time, timeUnit } from "./charts.js";
import { h, s } from "./dom.js";

const SIDE = { left: 52, right: 16, top: 18, bottom: 44 };

function timeAxis(most) {
  const { unit, ms } = timeUnit(most);
  return { unit, words: (value) => digits(value / ms, 4) };
}

// How the times lie: all of them counted into bars, with the median and its interval.
export function histogram({ bars, median, low, high, caption }) {
  const draw = (width, point) => {
    const height = 200;
    const edges = bars.edges_ms;
    const x = scale(bars.log ? LOG : LINEAR, edges[0], edges.at(-1), SIDE.left, width - SIDE.right);
    const y = scale(LINEAR, 0, Math.max(...bars.counts), height - SIDE.bottom, SIDE.top + 8);
    const { unit, words } = timeAxis(edges.at(-1));
    const floor = height - SIDE.bottom;
    const all = bars.counts.reduce((sum, count) => sum + count, 0);
    return svg(
      width,
      height,
      leftAxis(y, { x: SIDE.left, to: width - SIDE.right, label: width < 520 ? "" : "inferences", wanted: 3, words: (value) => (Number.isInteger(value) ? digits(value) : "") }),
      low !== null && high !== null && s("rect", { class: "interval", x: Math.min(x(low), x(high) - 2), width: Math.max(2, x(high) - x(low)), y: SIDE.top, height: floor - SIDE.top }),
      bars.counts.map((count, at) => {
        if (!count) return null;
        const [from, to] = [x(edges[at]), x(edges[at + 1])];
        const top = Math.min(y(count), floor - 2); // one inference far out can still be seen
        const bar = s("rect", { class: "column", x: from, width: Math.max(1, to - from - (to - from > 4 ? 1 : 0)), y: top, height: floor - top });
        return point(bar, `${time(edges[at])} to ${time(edges[at + 1])}: ${count} inferences, ${percent(count / all)}`);
      }),
      median !== null && s("line", { class: "median", x1: x(median), x2: x(median), y1: SIDE.top - 6, y2: floor }),
      median !== null && s("text", { class: "mark", x: x(median), y: 9, "text-anchor": x(median) > width * 0.7 ? "end" : x(median) < width * 0.3 ? "start" : "middle" }, `median ${time(median)}`),
      bottomAxis(x, { from: SIDE.left, to: width - SIDE.right, y: floor, label: `one inference, ${unit}${bars.log ? " (logarithmic)" : ""}`, words }),
    );
  };
  const table = () => ({
    heads: ["from", "to", "inferences#"],
    rows: bars.counts.map((count, at) => [time(bars.edges_ms[at]), time(bars.edges_ms[at + 1]), String(count)]).filter((row) => row[2] !== "0"),
  });
  return figure({ caption, draw, table });
}

// Each launch a row of its samples: where they lie, their middle half, their median, and what lies far out.
export function strip({ launches, log, low, high, caption }) {
  const row = launches.length > 12 ? 22 : 28;
  const draw = (width, point) => {
    const [left, top] = [width < 500 ? 34 : 82, 8];
    const floor = top + launches.length * row;
    const values = launches.flatMap((one) => one.timed.ns).map((ns) => ns / 1e6);
    const [least, most] = ends(values);
    const x = scale(log && least > 0 ? LOG : LINEAR, least, most, left, width - SIDE.right);
    const { unit, words } = timeAxis(most);
    return svg(
      width,
      floor + SIDE.bottom,
      low !== null && high !== null && s("rect", { class: "interval", x: Math.min(x(low), x(high) - 2), width: Math.max(2, x(high) - x(low)), y: top, height: floor - top }),
      launches.map((one, number) => {
        const middle = top + number * row + row / 2;
        const [inside, outside] = [[], []];
        one.timed.ns.forEach((ns, at) => {
          const value = ns / 1e6;
          const far = one.mild_ms && (value < one.mild_ms[0] || value > one.mild_ms[1]);
          (far ? outside : inside).push(`M${x(value).toFixed(1)} ${(middle + wobble(at) * row * 0.3).toFixed(1)}h0`);
        });
        const group = s(
          "g",
          {},
          s("rect", { class: "hit", x: 0, width, y: middle - row / 2, height: row }),
          s("text", { class: "mark", x: left - 10, y: middle + 4, "text-anchor": "end" }, width < 500 ? `${one.launch}` : `launch ${one.launch}`),
          one.low_ms !== null && s("rect", { class: "half", x: x(one.low_ms), width: Math.max(1, x(one.high_ms) - x(one.low_ms)), y: middle - row * 0.36, height: row * 0.72 }),
          s("path", { class: one.timed.ns.length < 200 ? "samples few" : "samples", d: inside.join("") }),
          s("path", { class: "outliers", d: outside.join("") }),
          one.median_ms !== null && s("line", { class: "median", x1: x(one.median_ms), x2: x(one.median_ms), y1: middle - row * 0.42, y2: middle + row * 0.42 }),
        );
        return point(group, launchWords(one));
      }),
      bottomAxis(x, { from: left, to: width - SIDE.right, y: floor, label: `one inference, ${unit}${x.kind === LOG ? " (logarithmic)" : ""}`, words }),
    );
  };
  const table = () => ({
    heads: ["launch", "median#", "middle half", "samples#", "outliers#", "warm-up#"],
    rows: launches.map((one) => [String(one.launch), time(one.median_ms), `${time(one.low_ms)} – ${time(one.high_ms)}`, String(one.count), String(one.outliers), String(one.warmups)]),
  });
  return figure({ caption, draw, table });
}

function launchWords(one) {
  const far = one.outliers ? `, ${one.outliers} outlier${one.outliers === 1 ? "" : "s"}` : "";
  return `Launch ${one.launch}: median ${time(one.median_ms)}, middle half ${time(one.low_ms)} to ${time(one.high_ms)}, ${one.count} samples${far}`;
}

// The same place for the same sample each time it is drawn.
function wobble(at) {
  return ((at * 0.6180339887498949) % 1) * 2 - 1;
}

function ends(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < least) least = value;
    if (value > most) most = value;
  }
  return [least, most];
}

// The first inferences of each launch, in their order: when has it settled? lines: [{ name, at: [], ms: [] }]
export function trace({ lines, median, caption, across }) {
  const draw = (width, point) => {
    const height = 220;
    const [least, most] = ends([...lines.flatMap((line) => line.ms), ...(median === null ? [] : [median])]);
    const last = Math.max(1, ...lines.map((line) => line.at.at(-1) ?? 0));
    const log = least > 0 && most > 8 * least;
    const x = scale(LINEAR, 0, last, SIDE.left + 6, width - SIDE.right);
    const y = scale(log ? LOG : LINEAR, log ? least : Math.max(0, least - (most - least) * 0.1), most, height - SIDE.bottom, SIDE.top + 4);
    const { unit, words } = timeAxis(most);
    return svg(
      width,
      height,
      leftAxis(y, { x: SIDE.left, to: width - SIDE.right, label: `${unit}${log ? ", logarithmic" : ""}`, words, wanted: 4 }),
      median !== null && s("line", { class: "median across", x1: SIDE.left, x2: width - SIDE.right, y1: y(median), y2: y(median) }),
      lines.map((line) => {
        const d = line.at.map((at, number) => `${number ? "L" : "M"}${x(at).toFixed(1)} ${y(line.ms[number]).toFixed(1)}`).join("");
        return s("path", { class: "curve", d });
      }),
      lines.map((line, number) => {
        const dot = s("circle", { class: "dot", cx: x(line.at[0]), cy: y(line.ms[0]), r: 4 });
        return point(dot, `${line.name}: first ${time(line.ms[0])}, last of ${line.count ?? line.at.length} ${time(line.ms.at(-1))}`);
      }),
      bottomAxis(x, { from: SIDE.left, to: width - SIDE.right, y: height - SIDE.bottom, label: across, words: (value) => (Number.isInteger(value) ? digits(value) : "") }),
    );
  };
  const table = () => ({
    heads: ["launch", "inferences#", "first#", "last#", "slowest#"],
    rows: lines.map((line) => [line.name, String(line.count ?? line.at.length), time(line.ms[0]), time(line.ms.at(-1)), time(ends(line.ms)[1])]),
  });
  return figure({ caption, draw, table });
}

// A value over the blocks of a measurement, launch after launch. blocks: [{ launch, from_s, wall_s, value, words }]
export function steps({ blocks, unit, most, caption }) {
  const draw = (width, point) => {
    const height = 120;
    const to = Math.max(...blocks.map((block) => block.from_s + block.wall_s));
    const x = scale(LINEAR, 0, to, SIDE.left, width - SIDE.right);
    const y = scale(LINEAR, 0, Math.max(most ?? 0, ...blocks.map((block) => block.value)), height - SIDE.bottom, SIDE.top + 4);
    const floor = height - SIDE.bottom;
    return svg(
      width,
      height,
      leftAxis(y, { x: SIDE.left, to: width - SIDE.right, label: unit, wanted: 2 }),
      blocks.map((block) => {
        const [from, end] = [x(block.from_s), x(block.from_s + block.wall_s)];
        const bar = s("rect", { class: block.launch % 2 ? "column" : "column other", x: from, width: Math.max(1.5, end - from - 0.5), y: Math.min(y(block.value), floor - 1), height: Math.max(1, floor - y(block.value)) });
        return point(bar, block.words);
      }),
      bottomAxis(x, { from: SIDE.left, to: width - SIDE.right, y: floor, label: "seconds since the first launch's window began" }),
    );
  };
  const table = () => ({ heads: ["launch", "at#", `${unit}#`], rows: blocks.map((block) => [String(block.launch), seconds3(block.from_s), digits(block.value, 3)]) });
  return figure({ caption, draw, table });
}

const seconds3 = (value) => `${digits(value, 3)} s`;

// Stretches of time beside each other. spans: [{ name, from, to, kind, words }] in seconds.
export function timeline({ spans, caption, label }) {
  const row = 26;
  const draw = (width, point) => {
    const left = Math.min(170, width * 0.34);
    const [first, last] = [Math.min(...spans.map((span) => span.from)), Math.max(...spans.map((span) => span.to))];
    const x = scale(LINEAR, first, Math.max(last, first + 1e-3), left, width - SIDE.right);
    const floor = 4 + spans.length * row;
    const room = Math.floor((left - 8) / 7.5);
    return svg(
      width,
      floor + SIDE.bottom,
      spans.map((span, number) => {
        const top = 4 + number * row;
        const shown = span.name.length > room ? `${span.name.slice(0, room - 1)}…` : span.name;
        return point(
          s(
            "g",
            {},
            s("rect", { class: "hit", x: 0, width, y: top, height: row }),
            s("text", { class: "mark", x: left - 8, y: top + row / 2 + 4, "text-anchor": "end" }, shown),
            s("rect", { class: `span ${span.kind ?? ""}`, x: x(span.from), width: Math.max(2, x(span.to) - x(span.from)), y: top + 5, height: row - 10, rx: 3 }),
          ),
          span.words,
        );
      }),
      bottomAxis(x, { from: left, to: width - SIDE.right, y: floor, label, wanted: Math.max(2, Math.round((width - left) / 110)) }),
    );
  };
  return figure({ caption, draw, table: () => ({ heads: ["what", "from#", "took#", ""], rows: spans.map((span) => [span.name, seconds3(span.from), seconds3(span.to - span.from), span.words]) }) });
}

// Ratios with their intervals, one below the other; 1 is the same. rows: [{ name, word, ratio, low, high, words }]
export function forest({ rows, caption, margin = 0.01 }) {
  const row = 38;
  const draw = (width, point) => {
    const narrow = width < 620;
    const left = narrow ? 12 : Math.min(340, width * 0.36);
    const right = narrow ? 12 : 100;
    const height = narrow ? row + 16 : row;
    const values = rows.flatMap((one) => [one.low ?? one.ratio, one.high ?? one.ratio, one.ratio]).filter((value) => value > 0);
    const [least, most] = ends([...values, 1 / 1.05, 1.05]);
    const x = scale(LOG, least / 1.03, most * 1.03, left, width - right);
    const floor = 24 + rows.length * height;
    const room = narrow ? Math.floor(width / 7.4) - 12 : Math.floor((left - 14) / 7);
    const short = (name) => (name.length > room ? `${name.slice(0, room - 1)}…` : name);
    return svg(
      width,
      floor + SIDE.bottom,
      s("text", { class: "name", x: x(1) - 8, y: 12, "text-anchor": "end" }, "← faster"),
      s("text", { class: "name", x: x(1) + 8, y: 12 }, "slower →"),
      s("rect", { class: "interval", x: x(1 - margin), width: x(1 + margin) - x(1 - margin), y: 18, height: floor - 18 }),
      s("line", { class: "one", x1: x(1), x2: x(1), y1: 18, y2: floor }),
      rows.map((one, number) => {
        const top = 24 + number * height;
        const y = narrow ? top + 30 : top + row / 2;
        const kind = one.word.toLowerCase();
        return point(
          s(
            "g",
            { class: `pair ${kind}` },
            s("rect", { class: "hit", x: 0, width, y: top, height }),
            narrow
              ? s("text", { class: "mark", x: 2, y: top + 14 }, short(one.name), s("tspan", { class: "word", dx: 8 }, one.word))
              : [
                  s("text", { class: "mark", x: left - 14, y: one.more ? y - 3 : y + 4, "text-anchor": "end" }, short(one.name)),
                  one.more && s("text", { x: left - 14, y: y + 11, "text-anchor": "end" }, short(one.more)),
                  s("text", { class: "mark word", x: width - right + 12, y: y + 4 }, one.word),
                ],
            one.low !== null && s("path", { class: "whisker", d: `M${x(one.low)} ${y - 5}v10m0 -5H${x(one.high)}m0 -5v10` }),
            one.ratio !== null && shape(kind, x(one.ratio), y),
          ),
          one.words,
        );
      }),
      bottomAxis(x, { from: left, to: width - right, y: floor, label: "B's time by A's (logarithmic)", words: (value) => `${digits(value, 3)}×` }),
    );
  };
  const table = () => ({
    heads: ["B beside A", "verdict", "ratio#", "95 % interval"],
    rows: rows.map((one) => [[one.name, one.more].filter(Boolean).join(" × "), one.word, digits(one.ratio, 4), one.low === null ? "–" : `${digits(one.low, 4)} – ${digits(one.high, 4)}`]),
  });
  return figure({ caption, draw, table });
}

// A mark of its own for each word, so that colour says nothing alone.
function shape(kind, x, y) {
  if (kind === "faster") return s("path", { class: "dot", d: `M${x - 7} ${y}l9 -6v12z` });
  if (kind === "slower") return s("path", { class: "dot", d: `M${x + 7} ${y}l-9 -6v12z` });
  if (kind === "same") return s("rect", { class: "dot", x: x - 5, y: y - 5, width: 10, height: 10 });
  return s("circle", { class: "dot hollow", cx: x, cy: y, r: 5 });
}

// Time against something else that counts; those that no other beats in both are joined and named. points: [{ name, x, y, front, words }]
export function pareto({ points, label, words, better, caption }) {
  const draw = (width, point) => {
    const height = Math.max(280, Math.min(420, width * 0.5));
    const [left, floor] = [62, height - SIDE.bottom];
    const xs = ends(points.map((one) => one.x));
    const ys = ends(points.map((one) => one.y));
    const log = (least, most) => least > 0 && most > 8 * least;
    const room = ([least, most], kind) => (kind === LOG ? [least / 1.25, most * 1.25] : [least - (most - least) * 0.08, most + (most - least) * 0.08]);
    const [kindX, kindY] = [log(...xs) ? LOG : LINEAR, log(...ys) ? LOG : LINEAR];
    const x = scale(kindX, ...room(xs, kindX), left, width - SIDE.right);
    const y = scale(kindY, ...room(ys, kindY), floor, SIDE.top + 6);
    const { unit, words: inTime } = timeAxis(xs[1]);
    const front = points.filter((one) => one.front).sort((one, other) => one.x - other.x);
    const path = front.map((one, at) => (at ? `H${x(one.x).toFixed(1)}V${y(one.y).toFixed(1)}` : `M${x(one.x).toFixed(1)} ${y(one.y).toFixed(1)}`)).join("");
    const taken = [];
    return svg(
      width,
      height,
      leftAxis(y, { x: left, to: width - SIDE.right, label: `${label} (${better})${kindY === LOG ? ", logarithmic" : ""}`, words, wanted: 5 }),
      s("path", { class: "front", d: path }),
      points.map((one) => {
        const [px, py] = [x(one.x), y(one.y)];
        const dot = one.front ? s("circle", { class: "dot", cx: px, cy: py, r: 6 }) : s("circle", { class: "dot beaten", cx: px, cy: py, r: 4.5 });
        return point(dot, one.words);
      }),
      front.map((one) => {
        const [px, py] = [x(one.x), y(one.y)];
        if (taken.some(([ox, oy]) => Math.abs(ox - px) < 130 && Math.abs(oy - py) < 14)) return null;
        taken.push([px, py]);
        const end = px > width * 0.6;
        return s("text", { class: "mark", x: end ? px - 10 : px + 10, y: py - 8, "text-anchor": end ? "end" : "start" }, one.short);
      }),
      bottomAxis(x, { from: left, to: width - SIDE.right, y: floor, label: `median of one inference, ${unit} (less is better)${kindX === LOG ? ", logarithmic" : ""}`, words: inTime }),
    );
  };
  const table = () => ({ heads: ["what", "median#", `${label}#`, "on the front"], rows: points.map((one) => [one.name, time(one.x), words(one.y), one.front ? "yes" : "no"]) });
  return figure({ caption, draw, table });
}

export const empty = (text) => h("p", { class: "quiet" }, text);

// Comparisons: which result is faster and with what certainty, all results in one matrix, and Pareto fronts.
//
//   #/compare?a=c-…&b=c-…/3&b=…         campaigns or tasks          &base=NAME  ratios of the matrix      &axis=energy
//   #/compare?by=device&of=c-…&a=…&b=…  devices of campaigns
//
// The address holds the whole state of the page.

import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { againstWords, bytes, collate, configuration, count, digits, time } from "../format.js";
import { chart, plainTable, problem, SIMULATED } from "../widgets.js";

export const title = "Compare";

const AXES = {
  energy: ["Energy per inference", (cell) => cell.joules, (value) => `${digits(value * 1000, 3)} mJ`],
  memory: ["Memory while running", (cell) => cell.memory_mb, (value) => bytes(value * 1024 * 1024)],
  load: ["Load time", (cell) => cell.load_ms, time],
  size: ["Model size", (cell) => cell.model_bytes, bytes],
  quality: ["Quality", (cell) => cell.quality, (value) => digits(value, 3)],
  error: ["Difference from the reference", (cell) => cell.max_error, (value) => digits(value, 3)],
};
const MARKS = { FASTER: "◀ faster", SLOWER: "▶ slower", SAME: "■ same", AMBIGUOUS: "○ ambiguous", NONE: "– not compared" };

export async function show(main, parts, { signal, query }) {
  const { campaigns } = await get("/api/v1/campaigns?limit=200", signal);
  const choice = {
    a: query.get("a") ?? "",
    b: query.getAll("b").filter(Boolean),
    by: query.get("by") === "device" ? "device" : "results",
    of: query.getAll("of").filter(Boolean),
  };
  const latest = campaigns.slice(0, 1).map((one) => one.campaign_id);
  const names = choice.by === "device" ? (choice.of.length ? choice.of : latest) : [choice.a, ...choice.b].filter(Boolean);
  const results = h("div", { "aria-live": "polite" }, h("p", { class: "quiet" }, "Loading …"));
  replace(main, h("h1", {}, "Compare"), picker(campaigns, choice, names, []), results);
  if (!names.length) {
    replace(results, h("p", {}, campaigns.length ? "Choose campaigns, single tasks (c-…/3), or devices of a campaign." : "No results yet: submit a campaign first."));
    return;
  }
  try {
    const of = new URLSearchParams(names.map((name) => ["of", name]));
    const base = query.get("base") ? `&base=${encodeURIComponent(query.get("base"))}` : "";
    const matrix = await get(`/api/v1/matrix?${of}${base}`, signal);
    main.querySelector("form").replaceWith(picker(campaigns, choice, names, matrix.cells));
    const search = comparison(choice, names);
    const { comparisons } = choice.a && choice.b.length ? await get(`/api/v1/compare?${search(choice.b)}`, signal) : { comparisons: [] };
    const simulated = matrix.cells.some((cell) => cell.verdict === "simulated");
    replace(
      results,
      simulated && h("p", { class: "warning" }, SIMULATED),
      comparisons.map((one, at) => comparisonView(one, `/api/v1/compare/chart?${search([choice.b[at]])}`, signal)),
      !comparisons.length && h("p", { class: "quiet" }, choice.by === "device" ? "Choose two devices above to see which is faster." : "Choose a result to compare with above."),
      matrixView(matrix, query),
      frontView(matrix, of, query, signal),
    );
  } catch (error) {
    if (!signal.aborted) replace(results, problem(error));
  }
}

function comparison({ a, by }, names) {
  return (b) => {
    const search = new URLSearchParams([["a", a], ...b.map((name) => ["b", name])]);
    if (by === "device") for (const [key, value] of [["by", "device"], ...names.map((name) => ["of", name])]) search.append(key, value);
    return search;
  };
}

// -- choosing -------------------------------------------------------------------------------------------------------------------------

function picker(campaigns, choice, names, cells) {
  const titles = new Map(campaigns.map((one) => [one.campaign_id, `${one.name}${one.simulated ? " (simulation)" : ""} · ${one.campaign_id} · ${new Date(one.created).toLocaleDateString()}`]));
  const unique = (values) => [...new Set(values.filter(Boolean))];
  const results = unique([...titles.keys(), ...cells.map((cell) => cell.job)]);
  const devices = unique(cells.map((cell) => cell.device));
  const select = (name, value, label, options, empty) =>
    h("label", {}, label, h("select", { name }, empty && h("option", { value: "" }, empty), unique([...options, value]).map((one) => h("option", { value: one, selected: one === value }, titles.get(one) ?? one))));
  const byDevice = choice.by === "device";
  const form = h(
    "form",
    { class: "picker", "aria-label": "Choose what to compare" },
    h("label", {}, "Compare", h("select", { name: "by" }, h("option", { value: "results", selected: !byDevice }, "campaigns or tasks"), h("option", { value: "device", selected: byDevice }, "devices of a campaign"))),
    byDevice && select("of", names[0], "of", [...titles.keys()]),
    select("a", choice.a, "A, the base", byDevice ? devices : results, "–"),
    (byDevice ? [choice.b[0]] : [...choice.b, ""].slice(0, 6)).map((name, at) => select("b", name, at ? "and" : "B", byDevice ? devices : results, "–")),
  );
  form.addEventListener("change", () => navigate(form));
  form.addEventListener("submit", (event) => event.preventDefault());
  return form;
}

function navigate(form) {
  const data = new FormData(form);
  const search = new URLSearchParams();
  if (data.get("by") === "device") {
    search.append("by", "device");
    if (data.get("of")) search.append("of", data.get("of"));
  }
  const before = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const same = (before.get("by") === "device") === (data.get("by") === "device");
  for (const name of ["a", "b"]) for (const value of same ? data.getAll(name) : []) if (value) search.append(name, value);
  location.hash = `#/compare?${search}`;
}

// A select with its value in the address.
function parameterSelect(query, name, options, value) {
  const change = (event) => {
    const search = new URLSearchParams(query);
    search.delete(name);
    if (event.target.value) search.append(name, event.target.value);
    location.hash = `#/compare?${search}`;
  };
  return h("select", { onchange: change }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
}

// -- A and B --------------------------------------------------------------------------------------------------------------------------

function comparisonView({ a, b, pairs }, chartPath, signal) {
  const verdicts = pairs.map(verdict);
  const sums = Object.keys(MARKS).map((word) => [verdicts.filter((one) => one === word).length, MARKS[word].slice(2)]);
  const summary = sums.filter(([number]) => number).map(([number, word]) => `${number} ${word}`).join(", ");
  const rows = pairs.map((pair) => [
    pairName(pair),
    h("span", { class: `verdict ${pair.verdict.toLowerCase()}` }, MARKS[verdict(pair)]),
    taskTime(pair.a_job, pair.a_median_ms),
    taskTime(pair.b_job, pair.b_median_ms),
    digits(pair.ratio, 4),
    pair.ratio_low === null ? "–" : `${digits(pair.ratio_low, 4)} – ${digits(pair.ratio_high, 4)}`,
    [pair.verdict === "AMBIGUOUS" || pair.ratio_low === null ? pair.why : "", pair.note].filter(Boolean).join("; "),
  ]);
  return h(
    "section",
    { class: "comparison" },
    h("h2", {}, `${b} compared with ${a}`),
    h("p", {}, pairs.length ? `${count(pairs.length, "pair")}: ${summary}.` : "There is nothing to compare: one side has no rows."),
    verdicts.some((one) => one !== "NONE") && chart(chartPath, "B's time divided by A's. Below 1, B is faster. Whiskers are 95 % intervals; the band is ± 1 %.", signal),
    rows.length > 0 && plainTable("Pairs", ["B compared with A", "Verdict", "A#", "B#", "Ratio#", "95 % interval#", "Notes"], rows),
  );
}

// Pairs without a ratio cannot be compared at all, unlike ambiguous pairs.
function verdict(pair) {
  return pair.ratio === null ? "NONE" : pair.verdict;
}

function taskTime(job, ms) {
  return job ? h("a", { href: taskLink(job) }, ms === null ? "no time" : time(ms)) : "–";
}

function taskLink(job) {
  const [campaign, n] = job.split("/");
  return `#/tasks/${encodeURIComponent(campaign)}/${encodeURIComponent(n)}`;
}

// "model × unit × device", with "A → B" where the sides differ.
function pairName(pair) {
  const both = (read) => [...new Set(["a", "b"].map((side) => read((name) => pair[`${side}_${name}`])).filter(Boolean))].join(" → ");
  return [
    both((side) => side("model")),
    both((side) => configuration(side("unit"), side("threads"), side("batch"))),
    both((side) => side("device") && `${side("device")}${side("simulated") ? " (simulation)" : ""}`),
  ].filter(Boolean).join(" × ");
}

// -- the matrix -----------------------------------------------------------------------------------------------------------------------

function matrixView({ cells, base, in_turns: turned }, query) {
  if (!cells.length) return h("p", {}, "No task has ended yet.");
  const places = [...new Set(cells.map(place))].sort(collate);
  const models = [...new Set(cells.map((cell) => cell.model))];
  const bases = [...new Set(["model", "variant", "device", "unit"].flatMap((key) => cells.map((cell) => cell[key])).filter(Boolean))];
  const several = new Set(cells.map((cell) => cell.job.split("/")[0])).size > 1;
  const rows = models.map((model) => [model, ...places.map((name) => cells.filter((cell) => cell.model === model && place(cell) === name).map((cell) => cellView(cell, several)))]);
  return h(
    "section",
    {},
    h("h2", {}, "Matrix"),
    h("label", { class: "tool" }, "Ratios to ", parameterSelect(query, "base", [["", "no base"], ...bases.map((name) => [name, name])], base)),
    plainTable("Matrix", ["Model", ...places], rows),
    turned.length > 0 && [h("h3", {}, "Measured in turns"), h("ul", { class: "plain-list" }, turned.map(turnedLine))],
  );
}

const THAN = { FASTER: "than", SLOWER: "than", SAME: "as", AMBIGUOUS: "against" };

// "net int8 × CPU (ONNX) × mini: FASTER than net fp32, ratio 0.81 (0.79 – 0.83) over 3 sittings"
function turnedLine(pair) {
  const place = [configuration(pair.b_unit, pair.b_threads, pair.b_batch), pair.b_device].filter(Boolean).join(" × ");
  const ends = pair.ratio_low === null ? "" : ` (${digits(pair.ratio_low, 4)} – ${digits(pair.ratio_high, 4)})`;
  return h(
    "li",
    {},
    h("a", { href: taskLink(pair.b_job) }, `${pair.b_model} × ${place}`),
    ": ",
    h("span", { class: `verdict ${pair.verdict.toLowerCase()}` }, pair.verdict),
    ` ${THAN[pair.verdict]} ${againstWords(pair.a_model, pair.a_unit, pair.b_model, pair.b_unit)}`,
    pair.ratio !== null && `, ratio of wall times ${digits(pair.ratio, 4)}${ends}`,
    pair.sittings !== null && ` over ${pair.sittings} sittings`,
  );
}

function place(cell) {
  return `${cell.device || "no device"}${cell.verdict === "simulated" ? " (simulation)" : ""} · ${configuration(cell.unit, cell.threads, cell.batch)}`;
}

function cellView(cell, several) {
  const median = cell.median_ms === null ? h("span", { class: "state failed" }, cell.remark.split(",")[0]) : [h("strong", {}, time(cell.median_ms, 3)), cell.ratio !== null && ` ${digits(cell.ratio, 3)}×`];
  const doubt = cell.median_ms !== null && cell.verdict && cell.verdict !== "valid";
  return h(
    "div",
    { class: "square" },
    cell.job ? h("a", { href: taskLink(cell.job) }, median) : median,
    cell.batch !== null && cell.per_s !== null && h("small", {}, ` ${digits(cell.per_s, 3)} per s`),
    several && h("small", { class: "quiet" }, ` ${cell.job}`),
    doubt && h("small", { class: "doubt" }, ` ⚠ ${cell.verdict}`),
    cell.low_ms !== null && [h("br"), h("small", { class: "quiet" }, `${time(cell.low_ms, 3)} – ${time(cell.high_ms, 3)}`)],
  );
}

// -- Pareto fronts --------------------------------------------------------------------------------------------------------------------

function frontView({ cells, fronts }, of, query, signal) {
  const axes = Object.keys(AXES).filter((name) => fronts[name]);
  if (!axes.length) return null;
  const axis = axes.includes(query.get("axis")) ? query.get("axis") : axes[0];
  const [, read, show] = AXES[axis];
  const best = fronts[axis].map((job) => cells.find((cell) => cell.job === job)).filter((cell) => cell && read(cell) !== null);
  return h(
    "section",
    {},
    h("h2", {}, "Pareto front"),
    h("label", { class: "tool" }, "Time against ", parameterSelect(query, "axis", axes.map((name) => [name, AXES[name][0].toLowerCase()]), axis)),
    chart(`/api/v1/matrix/chart?${of}&axis=${axis}`, "On the front, nothing else is better in one of the two without being worse in the other.", signal),
    h("p", {}, "On the front, fastest first:"),
    h("ol", {}, best.map((cell) => h("li", {}, h("a", { href: taskLink(cell.job) }, `${cell.model} × ${place(cell)}`), `: ${time(cell.median_ms)}, ${show(read(cell))}`))),
  );
}

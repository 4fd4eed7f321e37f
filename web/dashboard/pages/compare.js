// Results beside each other: which is faster and how sure that is, everything in one matrix, and what no other beats in two things at once.
//
//   #/compare?a=c-…&b=c-…/3&b=…        campaigns or tasks          &base=NAME  ratios of the matrix      &axis=energy  &model=NAME
//   #/compare?by=device&of=c-…&a=…&b=…  devices of campaigns
//
// The address says all that is shown, so that it can be kept and sent.

import { get } from "../api.js";
import { bytes, digits, plainTable, scrolled, time } from "../charts.js";
import { h, replace } from "../dom.js";
import { forest, pareto } from "../plots.js";
import { on, SIMULATED } from "../widgets.js";

export const title = "Compare";

const AXES = {
  energy: { name: "energy of one inference", read: (cell) => cell.joules, words: (value) => `${digits(value * 1000, 3)} mJ`, better: "less is better" },
  memory: { name: "memory while it runs", read: (cell) => cell.memory_mb, words: (value) => bytes(value * 1024 * 1024), better: "less is better" },
  size: { name: "size of the model", read: (cell) => cell.model_bytes, words: bytes, better: "less is better" },
  quality: { name: "quality (ROUGE-L)", read: (cell) => cell.rouge_l, words: (value) => digits(value, 3), better: "more is better" },
  error: { name: "difference from the reference", read: (cell) => cell.max_error, words: (value) => digits(value, 3), better: "less is better" },
};
const MARKS = { FASTER: "◀ faster", SLOWER: "▶ slower", SAME: "■ same", AMBIGUOUS: "○ ambiguous", NONE: "– not compared" };

export async function show(main, parts, { signal, query }) {
  const { campaigns } = await get("/api/v1/campaigns?limit=200", signal);
  const asked = {
    a: query.get("a") ?? "",
    b: query.getAll("b").filter(Boolean),
    by: query.get("by") === "device" ? "device" : "results",
    of: query.getAll("of").filter(Boolean),
  };
  const results = h("div", { "aria-live": "polite" }, h("p", { class: "quiet" }, "Loading …"));
  const names = asked.by === "device" ? (asked.of.length ? asked.of : campaigns.slice(0, 1).map((one) => one.campaign_id)) : [asked.a, ...asked.b].filter(Boolean);
  let cells = null;
  replace(main, h("h1", {}, "Compare"), picker(campaigns, asked, names, null), results);
  if (!names.length) {
    replace(results, h("p", {}, campaigns.length ? "Choose what to put beside each other. Campaigns, single tasks (c-…/3), or the devices of a campaign." : "No results yet: submit a campaign first."));
    return;
  }
  try {
    const search = new URLSearchParams(names.map((name) => ["of", name]));
    if (query.get("base")) search.append("base", query.get("base"));
    cells = await get(`/api/v1/matrix?${search}`, signal);
    main.querySelector("form").replaceWith(picker(campaigns, asked, names, cells));
    const compared = asked.a && asked.b.length ? await get(`/api/v1/compare?${comparison(asked, names)}`, signal) : null;
    const pretend = cells.cells.some((cell) => cell.verdict === "simulated") && h("p", { class: "warning" }, SIMULATED);
    replace(results, pretend, compared ? compared.comparisons.map((one) => beside(one)) : hint(asked), matrix(cells, query), front(cells, query));
  } catch (error) {
    if (signal.aborted) return;
    replace(results, h("div", { class: "problem", role: "alert" }, h("p", {}, error.message), h("p", {}, error.hint)));
  }
}

function comparison(asked, names) {
  const search = new URLSearchParams([["a", asked.a], ...asked.b.map((name) => ["b", name])]);
  if (asked.by === "device") {
    search.append("by", "device");
    for (const name of names) search.append("of", name);
  }
  return search;
}

function hint({ by }) {
  return h("p", { class: "quiet" }, by === "device" ? "Choose two devices above to see which is faster." : "Choose something to put beside it, above.");
}

// -- what is compared ---------------------------------------------------------------------------------------------------------------

function picker(campaigns, asked, names, cells) {
  const words = new Map(campaigns.map((one) => [one.campaign_id, `${one.name}${one.simulated ? " (simulation)" : ""} · ${one.campaign_id} · ${new Date(one.created).toLocaleDateString()}`]));
  const known = new Set([...words.keys(), ...(cells?.cells ?? []).map((cell) => cell.job).filter(Boolean)]);
  const devices = [...new Set((cells?.cells ?? []).map((cell) => cell.device).filter(Boolean))];
  const choice = (name, value, label, options, empty) =>
    h(
      "label",
      {},
      label,
      h("select", { name }, empty && h("option", { value: "" }, empty), options.map((one) => h("option", { value: one, selected: one === value }, words.get(one) ?? one))),
    );
  const more = (value) => [...new Set([...words.keys(), ...known, ...(value ? [value] : [])])];
  const form = h(
    "form",
    { class: "picker", "aria-label": "What is compared" },
    h(
      "label",
      {},
      "Compare",
      h("select", { name: "by", onchange: () => send(form) }, h("option", { value: "results", selected: asked.by === "results" }, "campaigns or tasks"), h("option", { value: "device", selected: asked.by === "device" }, "devices of a campaign")),
    ),
    asked.by === "device"
      ? [choice("of", names[0], "of", [...words.keys()]), choice("a", asked.a, "A, the base", [...new Set([...devices, asked.a].filter(Boolean))], "–"), choice("b", asked.b[0], "B", [...new Set([...devices, ...asked.b])], "–")]
      : [choice("a", asked.a, "A, the base", more(asked.a), "–"), [...asked.b, ""].slice(0, 6).map((name, at) => choice("b", name, at ? "and" : "B", more(name), "–"))],
  );
  form.addEventListener("change", () => send(form));
  form.addEventListener("submit", (event) => event.preventDefault());
  return form;
}

function send(form) {
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

// Another address for the same page with one thing changed.
function turned(query, name, value) {
  const search = new URLSearchParams(query);
  search.delete(name);
  if (value) search.append(name, value);
  location.hash = `#/compare?${search}`;
}

// -- A and B --------------------------------------------------------------------------------------------------------------------------

function beside({ a, b, pairs }) {
  const counts = {};
  for (const pair of pairs) counts[word(pair)] = (counts[word(pair)] ?? 0) + 1;
  const told = Object.keys(MARKS).filter((word) => counts[word]).map((word) => `${counts[word]} ${MARKS[word].slice(2)}`);
  const shown = pairs.filter((pair) => pair.ratio !== null);
  const rows = shown.map((pair) => ({ ...parted(pair), word: pair.verdict, ratio: pair.ratio, low: pair.ratio_low, high: pair.ratio_high, words: sentence(pair) }));
  return h(
    "section",
    { class: "beside" },
    h("h2", {}, `${b} beside ${a}`),
    h("p", {}, told.length ? `${pairs.length} pair${pairs.length === 1 ? "" : "s"}: ${told.join(", ")}.` : "There is nothing to compare: one side has no rows."),
    rows.length > 0 && forest({ rows, caption: "How long B takes, beside A. Left of the line it is faster; the band is ± 1 %, within which nobody would care. A whisker is the 95 % interval." }),
    pairs.length > 0 &&
      scrolled(
        "Pairs",
        plainTable(
          ["B beside A", "verdict", "A#", "B#", "ratio#", "95 % interval#", "what is to be known"],
          pairs.map((pair) => [
            named(pair),
            h("span", { class: `verdict ${pair.verdict.toLowerCase()}` }, MARKS[word(pair)]),
            side(pair.a_job, pair.a_median_ms),
            side(pair.b_job, pair.b_median_ms),
            digits(pair.ratio, 4),
            pair.ratio_low === null ? "–" : `${digits(pair.ratio_low, 4)} – ${digits(pair.ratio_high, 4)}`,
            [pair.verdict === "AMBIGUOUS" || pair.ratio_low === null ? pair.why : "", pair.note].filter(Boolean).join("; "),
          ]),
        ),
      ),
  );
}

// A pair that may not be compared at all is not ambiguous: nothing can be said of it, and `why` says why.
function word(pair) {
  return pair.ratio === null ? "NONE" : pair.verdict;
}

function side(job, ms) {
  return job ? h("a", { href: taskLink(job) }, ms === null ? "no time" : time(ms)) : "–";
}

function taskLink(job) {
  const [campaign, n] = job.split("/");
  return `#/tasks/${encodeURIComponent(campaign)}/${encodeURIComponent(n)}`;
}

function both(one, other) {
  const told = [...new Set([one, other].filter((value) => value !== null && value !== ""))];
  return told.join(" → ");
}

function devices(pair) {
  const mark = (name, simulated) => (name && simulated ? `${name} (simulation)` : name);
  return both(mark(pair.a_device, pair.a_simulated), mark(pair.b_device, pair.b_simulated));
}

// The models on one line, where they ran on another; where both ran alike, that alone.
function parted(pair) {
  return {
    name: both(pair.a_model, pair.b_model),
    more: [both(on(pair.a_unit, pair.a_threads, pair.a_batch), on(pair.b_unit, pair.b_threads, pair.b_batch)), devices(pair)].filter(Boolean).join(" · "),
  };
}

function named(pair) {
  return [both(pair.a_model, pair.b_model), both(on(pair.a_unit, pair.a_threads, pair.a_batch), on(pair.b_unit, pair.b_threads, pair.b_batch)), devices(pair)].filter(Boolean).join(" × ");
}

function sentence(pair) {
  const change = pair.ratio < 1 ? `takes ${digits(100 * (1 - pair.ratio), 3)} % less time` : `takes ${digits(100 * (pair.ratio - 1), 3)} % more time`;
  const interval = pair.ratio_low === null ? "" : `, between ${digits(pair.ratio_low, 4)} and ${digits(pair.ratio_high, 4)} times A's with 95 % confidence`;
  return `${named(pair)}: ${pair.verdict}. B ${change}${interval}. ${pair.note}`;
}

// -- everything in one table ------------------------------------------------------------------------------------------------------------

function matrix({ cells, base }, query) {
  if (!cells.length) return h("p", {}, "No task of it has ended yet.");
  const places = [...new Map(cells.map((cell) => [place(cell), cell])).keys()].sort((one, other) => one.localeCompare(other, undefined, { numeric: true }));
  const models = [...new Set(cells.map((cell) => cell.model))];
  const bases = [...new Set([...models, ...cells.map((cell) => cell.variant), ...cells.map((cell) => cell.device), ...cells.map((cell) => cell.unit)].filter(Boolean))];
  const select = h("select", { onchange: (event) => turned(query, "base", event.target.value) }, h("option", { value: "" }, "no base"), bases.map((name) => h("option", { value: name, selected: name === base }, name)));
  const several = new Set(cells.map((cell) => cell.job.split("/")[0])).size > 1;
  const rows = models.map((model) => [
    model,
    ...places.map((name) => {
      const found = cells.filter((cell) => cell.model === model && place(cell) === name);
      return found.length ? found.map((cell) => square(cell, several)) : "";
    }),
  ]);
  return h(
    "section",
    {},
    h("h2", {}, "Matrix"),
    h("label", { class: "tool" }, "Ratios to ", select),
    scrolled("Matrix", plainTable(["model", ...places], rows)),
  );
}

function place(cell) {
  return `${cell.device || "no device"}${cell.verdict === "simulated" ? " (simulation)" : ""} · ${on(cell.unit, cell.threads, cell.batch)}`;
}

function square(cell, several) {
  const content = cell.median_ms === null ? [h("span", { class: "state failed" }, cell.remark.split(",")[0])] : [h("strong", {}, time(cell.median_ms, 3)), cell.ratio !== null && h("span", {}, ` ${digits(cell.ratio, 3)}×`)];
  const doubt = cell.median_ms !== null && cell.verdict && cell.verdict !== "valid" && h("small", { class: "doubt" }, ` ⚠ ${cell.verdict}`);
  const spread = cell.low_ms !== null && h("small", { class: "quiet" }, `${time(cell.low_ms, 3)} – ${time(cell.high_ms, 3)}`);
  const rate = cell.batch !== null && cell.per_s !== null && h("small", {}, ` ${digits(cell.per_s, 3)} per s`);
  return h("div", { class: "square" }, cell.job ? h("a", { href: taskLink(cell.job) }, content) : content, rate, several && h("small", { class: "quiet" }, ` ${cell.job}`), doubt, spread && [h("br"), spread]);
}

// -- what no other beats ------------------------------------------------------------------------------------------------------------------

function front({ cells, fronts }, query) {
  const axes = Object.keys(AXES).filter((name) => fronts[name]);
  if (!axes.length) return null;
  const axis = axes.includes(query.get("axis")) ? query.get("axis") : axes[0];
  const { name, read, words, better } = AXES[axis];
  const best = new Set(fronts[axis]);
  const jobs = cells.filter((cell) => cell.median_ms !== null && read(cell) !== null);
  const several = new Set(jobs.map((cell) => cell.job.split("/")[0])).size > 1;
  const models = new Set(jobs.map((cell) => cell.model)).size > 1;
  const twice = new Set(fronts[axis]).size > new Set(jobs.filter((cell) => best.has(cell.job)).map((cell) => cell.model)).size;
  const points = jobs.map((cell) => {
    const whole = `${cell.model} × ${place(cell)}${several ? ` (${cell.job})` : ""}`;
    return { x: cell.median_ms, y: read(cell), front: best.has(cell.job), name: whole, short: [models && cell.model, (twice || !models) && `${cell.device}, ${on(cell.unit, cell.threads, cell.batch)}`].filter(Boolean).join(" · "), words: `${whole}: ${time(cell.median_ms)}, ${name} ${words(read(cell))}${best.has(cell.job) ? "; on the front" : ""}`, job: cell.job };
  });
  const select = h("select", { onchange: (event) => turned(query, "axis", event.target.value) }, axes.map((one) => h("option", { value: one, selected: one === axis }, AXES[one].name)));
  const winners = fronts[axis].map((job) => points.find((point) => point.job === job)).filter(Boolean);
  return h(
    "section",
    {},
    h("h2", {}, "Time against something else"),
    h("label", { class: "tool" }, "Time against ", select),
    pareto({ points, label: name, words, better, caption: "Filled marks are the front: nothing else here is better in one of the two without being worse in the other." }),
    h("p", {}, "On the front, the quickest first:"),
    h("ol", {}, winners.map((point) => h("li", {}, h("a", { href: taskLink(point.job) }, point.name), `: ${time(point.x)}, ${words(point.y)}`))),
  );
}

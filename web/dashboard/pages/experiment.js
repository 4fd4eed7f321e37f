// One experiment: its schedule, its versions, its results over time, and its actions.

import { get, post, put, remove } from "../api.js";
import { h, replace } from "../dom.js";
import { bytes, configuration, count, percent, time } from "../format.js";
import { act, announce, confirm, facts, instant, lines, plainTable, problem, simulation } from "../widgets.js";
import { finding } from "./experiments.js";

const RUNS = 30;
const UNITS = [["d", 86_400], ["h", 3600], ["m", 60], ["s", 1]];

export async function show(main, name, signal) {
  const base = `/api/v1/experiments/${encodeURIComponent(name)}`;
  let one = await get(base, signal);
  if (signal.aborted) return;
  document.title = `${one.name} · Sark`;

  const run = h("button", { type: "button", onclick: () => act(run, runNow) }, "Run now");
  const change = h("a", { class: "button", href: `#/submit?experiment=${encodeURIComponent(one.name)}` }, "Change …");
  const erase = h("button", { class: "danger", type: "button", onclick: () => act(erase, deleteIt) }, "Delete …");
  const summary = h("div");
  const history = h("section", { "aria-labelledby": "history-head" }, h("h2", { id: "history-head" }, "Results over time"), h("p", { class: "quiet" }, "Loading …"));
  replace(
    main,
    h("p", { class: "small" }, h("a", { href: "#/experiments" }, "Experiments")),
    h("div", { class: "line" }, h("h1", { class: "grow" }, one.name), run, change, erase),
    summary,
    scheduleForm(),
    history,
    h("section", { "aria-labelledby": "versions-head" }, h("h2", { id: "versions-head" }, "Versions"), [...one.versions].reverse().map(versionPart)),
  );
  drawSummary();
  try {
    drawHistory(await get(`${base}/history?limit=${RUNS}`, signal));
  } catch (error) {
    if (!signal.aborted) history.append(problem(error));
  }

  function drawSummary() {
    replace(
      summary,
      facts([
        ["Saved first", instant(one.created)],
        ["Versions", one.latest],
        ["Runs", one.runs],
        ["Schedule", one.schedule || "on request"],
        ["Next run", instant(one.due)],
        ["Alarm from", percent(one.alarm)],
        ["Webhook", one.webhook && "set on the machine itself"],
        ["Last finding", one.last_finding && finding(one.last_finding)],
      ]),
    );
  }

  function drawHistory(view) {
    const runs = view.runs.map((each) => [
      h("a", { href: `#/campaigns/${encodeURIComponent(each.campaign)}` }, instant(each.begun)),
      `@${each.version}`,
      each.scheduled ? "schedule" : "hand",
      [finding(each.finding) || "not ended", each.accepted && h("span", { class: "quiet" }, " accepted")],
      each.why,
    ]);
    const cells = view.cells.map((cell) => [
      h("h3", {}, `${cell.model} × ${configuration(cell.unit, cell.threads, cell.batch)} on ${cell.device || "no device"} `, cell.simulated && simulation()),
      plainTable(
        `${cell.model} over time`,
        ["Run", "Version", "Median#", "Ratio to the last good#", "Verdict", "Finding"],
        cell.points.map((point) => [instant(point.begun), `@${point.version}`, point.median_ms === null ? "" : time(point.median_ms, 4), point.ratio === null ? "" : point.ratio.toFixed(3), point.verdict || point.status, point.finding]),
      ),
    ]);
    replace(
      history,
      h("h2", { id: "history-head" }, "Results over time"),
      view.total ? plainTable("Runs", ["Run", "Version", "By", "Finding", "Remark"], runs) : h("p", { class: "quiet" }, "It has not run yet."),
      view.total > view.count && h("p", { class: "quiet" }, `The latest ${view.count} of ${view.total} runs.`),
      cells,
    );
  }

  function versionPart(version) {
    const models = version.models.map((model) => `${model.name} (${bytes(model.size)}, ${model.sha256.slice(0, 12)}…)`);
    return h("details", {}, h("summary", {}, `@${version.version}, `, instant(version.created), `: ${count(version.models.length, "model")}`), h("p", { class: "small quiet" }, models.join(", ")), lines(`Version ${version.version}`, version.campaign));
  }

  // -- actions ---------------------------------------------------------------------------------------------------------------
  async function runNow() {
    const begun = await post(`${base}/run`, {});
    location.hash = `#/campaigns/${encodeURIComponent(begun.campaign)}`;
  }

  async function deleteIt() {
    const yes = await confirm({
      title: "Delete this experiment?",
      text: `${one.name}: its ${count(one.latest, "version")}, schedule and history are deleted. Its campaigns and their results stay. This cannot be undone.`,
      action: "Delete experiment",
      danger: true,
    });
    if (!yes) return;
    await remove(base);
    announce(`${one.name} is deleted`);
    location.hash = "#/experiments";
  }

  function scheduleForm() {
    const field = (label, attributes) => {
      const input = h("input", { autocomplete: "off", size: "8", ...attributes });
      return [input, h("label", {}, `${label} `, input)];
    };
    const [each, eachLabel] = field("Run every", { placeholder: "1d", value: interval(one.every_s), required: true });
    const [at, atLabel] = field("at (UTC)", { placeholder: "03:00", value: one.at ?? "" });
    const [alarm, alarmLabel] = field("alarm from", { placeholder: "1%", value: `${Number((100 * one.alarm).toFixed(4))}%` });
    const set = h("button", {}, "Set schedule");
    const off = h("button", { class: "plain", type: "button", hidden: one.due === null, onclick: () => act(off, async () => changed(await remove(`${base}/schedule`))) }, "Remove schedule");
    const submit = (event) => {
      event.preventDefault();
      const given = { every: each.value.trim(), at: at.value.trim() || null, alarm: alarm.value.trim() || null };
      act(set, async () => changed(await put(`${base}/schedule`, JSON.stringify(given), "application/json")));
    };
    const changed = (view) => {
      one = { ...one, ...view };
      off.hidden = one.due === null;
      drawSummary();
      announce(one.schedule ? `Runs ${one.schedule}` : "No schedule");
    };
    return h("form", { class: "line", "aria-label": "Schedule", onsubmit: submit }, eachLabel, atLabel, alarmLabel, set, off);
  }
}

// Seconds in the form used in a schedule: 86400 is "1d".
function interval(seconds) {
  if (seconds === null) return "";
  const [unit, size] = UNITS.find(([, size]) => seconds % size === 0) ?? ["s", 1];
  return `${seconds / size}${unit}`;
}

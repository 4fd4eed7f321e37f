// One campaign, live: its tasks, why some wait or failed, and actions.

import { setOffline } from "../app.js";
import { get, post, remove, save, stream } from "../api.js";
import { h, replace, replaceChanged } from "../dom.js";
import { configuration, count, duration, time } from "../format.js";
import { matrix } from "../matrix.js";
import { table } from "../table.js";
import { act, announce, badge, bar, batch, confirm, facts, instant, lines, setText, shortId, simulation, SIMULATED } from "../widgets.js";
import { statusOf } from "./campaigns.js";

export const title = "Campaign";

const ENDED = new Set(["succeeded", "failed", "cancelled"]);
const PARTS = [
  ["succeeded", "done"],
  ["failed", "failed"],
  ["cancelled", "cancelled"],
  ["running", "running"],
  ["waiting", "waiting"],
];
const MAX_REASONS = 12;
const PAGE = 500; // results fetched at a time

export async function show(main, parts, { signal, query }) {
  const id = parts[0] || "";
  if (!id) {
    location.replace("#/");
    return;
  }
  const base = `/api/v1/campaigns/${encodeURIComponent(id)}`;
  let campaign = await get(base, signal);
  if (signal.aborted) return;
  document.title = `${campaign.name} · Sark`;
  const tasks = new Map();
  const rows = new Map(); // number of a task that succeeded -> median and verdict; null: unknown
  let fetching = false;
  let stale = true; // whether the reasons must be drawn again

  // -- static parts -------------------------------------------------------------------------------------------------
  const state = h("span");
  const elapsed = h("span");
  const detail = h("p", { class: "problem", hidden: true });
  const counts = h("p", { class: "legend", role: "status" });
  const strip = h("div", { class: "parts", "aria-hidden": "true" }, PARTS.map(([name]) => h("span", { class: name })));
  const cancel = h("button", { class: "danger", type: "button", onclick: () => act(cancel, cancelAll) }, "Cancel campaign …");
  const retry = h("button", { type: "button", hidden: true, onclick: () => act(retry, retryFailed) }, "Retry failed tasks …");
  const erase = h("button", { class: "danger", type: "button", hidden: true, onclick: () => act(erase, deleteAll) }, "Delete …");
  const rescore = h("button", { type: "button", class: "plain", hidden: true, onclick: () => act(rescore, scoreAgain) }, "Score again");
  const clone = h("a", { class: "button", href: `#/submit?from=${encodeURIComponent(campaign.campaign_id)}` }, "Clone …");
  const download = (label, path, name) => {
    const button = h("button", { class: "plain", type: "button", onclick: () => act(button, () => save(path, name)) }, label);
    return button;
  };
  const rescored = h("section", { "aria-label": "Scored again" });
  const reasons = h("div", { class: "reasons-list" });
  const only = h("select", { "aria-label": "Task state" }, h("option", { value: "" }, "all tasks"), PARTS.map(([name, words]) => h("option", { value: name }, words)));
  const find = h("input", { type: "search", "aria-label": "Model, unit or device contains", placeholder: "model, unit, device", autocomplete: "off" });
  const place = h("div");
  const views = { matrix: matrix(), list: list(cancelOne, campaign.simulated, hasVariants(campaign.spec)) };
  let view = query.get("view") === "list" ? "list" : "matrix";
  const choose = Object.keys(views).map((name) => h("button", { type: "button", onclick: () => showView(name) }, name === "matrix" ? "Matrix" : "List"));
  replace(
    main,
    h("p", { class: "small" }, h("a", { href: "#/" }, "Campaigns"), " / ", h("code", {}, campaign.campaign_id)),
    h("div", { class: "line" }, h("h1", { class: "grow" }, campaign.name, campaign.simulated && [" ", simulation()]), state, cancel, retry, clone, erase),
    campaign.simulated && h("p", { class: "warning" }, SIMULATED),
    detail,
    strip,
    counts,
    facts([
      ["Started", instant(campaign.created)],
      ["Duration", elapsed],
      ["Models", count(campaign.models.length, "model")],
      ["Evaluated by", [...new Set(campaign.examples.map((each) => `${each.title} (${count(each.count, "example")}): ${each.metrics.join(", ")}`))].join("; ")],
      ["Priority", campaign.priority],
      ["Attempts per task", campaign.attempts],
      ["Results at", campaign.spec.results && `${campaign.spec.results}/${id}`],
      ["Time limit", campaign.limit_s === null ? "" : duration(campaign.limit_s)],
    ]),
    h(
      "div",
      { class: "line" },
      download("CSV", `${base}/results?format=csv`, `${id}.csv`),
      download("JSON Lines", `${base}/results?format=jsonl`, `${id}.jsonl`),
      download("Signed raw data", `${base}/results?format=raw`, `${id}-raw.json`),
      download("Report", `${base}/report`, `${id}.html`),
      h("a", { href: `#/compare?a=${encodeURIComponent(id)}` }, "Compare"),
      rescore,
    ),
    rescored,
    reasons,
    h("div", { class: "line" }, h("h2", { class: "grow" }, "Tasks"), only, find, h("div", { class: "segments", role: "group", "aria-label": "View" }, choose)),
    place,
  );
  only.addEventListener("change", narrow);
  find.addEventListener("input", narrow);
  showView(view);
  drawSummary();

  // -- live updates --------------------------------------------------------------------------------------------------------
  const changed = batch(
    (task) => task.task,
    (updates, last) => {
      if (signal.aborted) return;
      for (const task of updates) {
        stale = stale || hasReason(task) || hasReason(tasks.get(task.task));
        keep(task);
      }
      views[view].put(updates, last);
      if (last) drawSummary();
      if (updates.some((task) => task.state === "succeeded" && !rows.has(task.n))) fetchRows();
    },
  );
  const clock = setInterval(() => setText(elapsed, duration(seconds())), 1000);
  signal.addEventListener("abort", () => clearInterval(clock));
  await stream(
    `${base}/events`,
    (name, value) => {
      if (name === "task") changed(value);
      else if (name === "campaign") {
        const ended = value.ended && !campaign.ended;
        campaign = { ...campaign, ...value };
        drawSummary();
        if (ended) announce(`The campaign has ended: ${value.status}`);
      }
    },
    setOffline,
    signal,
  );

  function seconds() {
    return ((campaign.ended ? Date.parse(campaign.ended) : Date.now()) - Date.parse(campaign.created)) / 1000;
  }

  function keep(task) {
    if (task.state === "succeeded") Object.assign(task, rows.get(task.n) ?? { median_ms: null, verdict: "" }); // not the last progress report
    tasks.set(task.task, task);
  }

  // Medians and verdicts of finished tasks, which the stream does not send: fetched once each, a page at a time.
  async function fetchRows() {
    if (fetching) return;
    fetching = true;
    try {
      for (;;) {
        const open = [...tasks.values()].filter((task) => task.state === "succeeded" && !rows.has(task.n)).map((task) => task.n);
        if (!open.length || signal.aborted) return;
        const first = Math.min(...open);
        const page = await get(`${base}/results?after=${first - 1}&limit=${open.length === 1 ? 1 : PAGE}`, signal);
        rows.set(first, null); // so that a task without a row is not fetched again
        for (const row of page.results) {
          const doubt = row.Verdict && row.Verdict !== "valid" && row.Verdict !== "simulated" ? row.Verdict : "";
          rows.set(Number(row.JobId.slice(row.JobId.lastIndexOf("/") + 1)), { median_ms: row.InferenceMsMedian, verdict: doubt });
        }
        [...tasks.values()].filter((task) => task.state === "succeeded" && task.median_ms === null && rows.get(task.n)).forEach(changed);
      }
    } catch (error) {
      if (!signal.aborted && error.status) throw error;
    } finally {
      fetching = false;
    }
  }

  // Everything above the tasks.
  function drawSummary() {
    const now = statusOf(campaign);
    replaceChanged(state, now, badge(now));
    setText(elapsed, duration(seconds()));
    detail.hidden = !campaign.detail && now !== "halted";
    setText(detail, campaign.detail || `No scheduler process runs. Start one: sark-node watch ${id}`);
    cancel.hidden = Boolean(campaign.ended);
    erase.hidden = !campaign.ended;
    const sums = Object.fromEntries(PARTS.map(([name]) => [name, 0]));
    for (const task of tasks.values()) sums[part(task)] += 1;
    retry.hidden = !campaign.ended || campaign.status === "adopted" || !(sums.failed + sums.cancelled);
    rescore.hidden = !(campaign.examples.length && sums.succeeded);
    const parts = PARTS.filter(([name]) => sums[name]).map(([name, label]) => `${sums[name]} ${label}`);
    const strange = [...tasks.values()].filter((task) => task.trust === "stranger").length;
    if (strange) parts.push(`${strange} run by strangers`);
    setText(counts, tasks.size ? `${count(tasks.size, "task")}: ${parts.join(", ")}` : campaign.ended ? "no tasks" : "waiting for devices");
    PARTS.forEach(([name], index) => {
      const grow = String(sums[name]);
      if (strip.children[index].style.flexGrow !== grow) strip.children[index].style.flexGrow = grow;
    });
    if (stale) drawReasons(reasons, [...tasks.values()]);
    stale = false;
  }

  function showView(to) {
    view = to;
    choose.forEach((button, index) => button.setAttribute("aria-pressed", String(Object.keys(views)[index] === to)));
    replace(place, views[to].element);
    narrow();
    views[to].put([...tasks.values()]);
  }

  function narrow() {
    const text = find.value.toLowerCase();
    const test = (task) => (!only.value || part(task) === only.value) && (!text || `${task.model} ${configuration(task.unit, task.threads, task.batch)} ${task.device}`.toLowerCase().includes(text));
    views[view].filter(test);
  }

  // -- actions -------------------------------------------------------------------------------------------------------------
  async function cancelAll() {
    const open = [...tasks.values()].filter((task) => !ENDED.has(task.state)).length;
    const yes = await confirm({
      title: "Cancel this campaign?",
      text: `${tasks.size ? count(open, "open task") : "All tasks"} of ${campaign.name} will be stopped. Results so far are kept.`,
      action: "Cancel campaign",
      danger: true,
    });
    if (yes) await post(`${base}/cancel`, {});
  }

  // Scores with the metrics installed on the server's machine. Signed records do not change.
  async function scoreAgain() {
    replace(rescored, h("p", { class: "quiet" }, "Scoring the answers again …"));
    let made;
    try {
      made = await post(`${base}/score`, {});
    } catch (error) {
      replace(rescored);
      throw error;
    }
    const summary = `Scored the answers of ${count(made.tasks.length, "task")} again: ${made.changed} changed`;
    const moved = made.tasks.filter((task) => task.changed || task.why);
    replace(
      rescored,
      h("h2", {}, summary),
      h("ul", { class: "plain-list" }, moved.slice(0, MAX_REASONS).map((task) => h("li", {}, task.words))),
      moved.length > MAX_REASONS && h("p", { class: "quiet" }, `and ${moved.length - MAX_REASONS} more: see the tasks`),
      made.outdated && h("p", { class: "warning" }, `The results at ${made.outdated} have the old scores. Send them again: sark-node results ${id} --send URL`),
    );
    announce(summary);
  }

  async function deleteAll() {
    const yes = await confirm({
      title: "Delete this campaign?",
      text: `${campaign.name}: its results, signed records and events are deleted, here and on the devices that ran it. This cannot be undone.`,
      action: "Delete campaign",
      danger: true,
    });
    if (!yes) return;
    await remove(base);
    announce(`${campaign.name} is deleted`);
    location.hash = "#/";
  }

  async function cancelOne(task, button) {
    const yes = await confirm({
      title: `Cancel task ${task.n}?`,
      text: `${task.model} × ${configuration(task.unit, task.threads, task.batch)}${task.device ? ` on ${task.device}` : ""}: ${task.progress}`,
      action: "Cancel task",
      danger: true,
    });
    if (yes) await act(button, () => post(`${base}/tasks/${task.n}/cancel`, {}));
  }

  async function retryFailed() {
    const failed = [...tasks.values()].filter((task) => task.state === "failed" || task.state === "cancelled").length;
    const yes = await confirm({
      title: "Retry failed tasks?",
      text: `A new campaign will run the ${count(failed, "failed or cancelled task")} of ${campaign.name}. This campaign does not change.`,
      action: "Retry",
    });
    if (!yes) return;
    const made = await post(`${base}/retry`, {});
    location.hash = `#/campaigns/${encodeURIComponent(made.campaign)}`;
  }
}

// The part of the progress strip to which a task belongs.
function part(task) {
  if (ENDED.has(task.state)) return task.state;
  return task.state === "running" || task.state === "leased" ? "running" : "waiting";
}

function hasReason(task) {
  return task !== undefined && ["waiting", "failed"].includes(part(task));
}

// Why tasks wait or failed, with tasks of the same reason grouped.
function drawReasons(place, tasks) {
  const reasons = new Map();
  for (const task of tasks.filter(hasReason)) {
    const kind = part(task);
    // queue positions and times differ even between tasks that wait for the same reason
    const text = kind === "failed" ? task.progress : task.progress.replace(/ \d+(st|nd|rd|th)/g, "").replace(/~[\d:.]+( s)?/g, "a while");
    const key = `${kind} ${text}`;
    if (!reasons.has(key)) reasons.set(key, { kind, text, numbers: [], detail: kind === "failed" ? task.detail : "" });
    reasons.get(key).numbers.push(task.n);
  }
  const all = [...reasons.values()];
  const section = (kind, heading) => {
    const list = all.filter((reason) => reason.kind === kind).sort((a, b) => b.numbers.length - a.numbers.length);
    if (!list.length) return null;
    const items = list.slice(0, MAX_REASONS).map(({ text, numbers, detail }) =>
      h("li", {}, text, " ", h("span", { class: "quiet small" }, `${numbers.length === 1 ? "task" : `${numbers.length} tasks:`} ${ranges(numbers)}`), detail.includes("\n") && lines("Details", detail, "small")),
    );
    return [h("h2", {}, heading), h("ul", { class: "plain-list" }, items), list.length > MAX_REASONS && h("p", { class: "quiet" }, `and ${list.length - MAX_REASONS} more: see the list`)];
  };
  replaceChanged(place, JSON.stringify(all), section("waiting", "Waiting tasks"), section("failed", "Failed tasks"));
}

// [1, 2, 3, 7] -> "1–3, 7"
function ranges(list) {
  const runs = [];
  for (const n of [...list].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else runs.push([n, n]);
  }
  const shown = runs.slice(0, 8).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`));
  return shown.join(", ") + (runs.length > 8 ? " …" : "");
}

// Whether the campaign's tasks differ in threads or batches, which are then shown with the unit.
function hasVariants({ measure, models }) {
  return Boolean(measure?.batch || measure?.threads?.some((one) => one !== "physical") || models?.some((one) => one.batch));
}

// The table of all tasks.
function list(cancelOne, simulated, variants) {
  return table(
    [
      { name: "Task", head: true, number: false, width: "3.5rem", value: (task) => task.n, sign: (task) => task.n, cell: (task) => h("a", { href: `#/tasks/${task.task}` }, task.n) },
      { name: "Model", width: "minmax(7rem, 1.2fr)", value: (task) => task.model },
      { name: "Unit", width: variants ? "minmax(18rem, 2fr)" : "minmax(6rem, 1fr)", value: (task) => configuration(task.unit, task.threads, task.batch) },
      { name: "Device", width: "minmax(5rem, 1fr)", value: (task) => task.device, cell: (task) => [task.device, task.worker && [" ", shortId(task.worker)]] },
      { name: "Trust", width: "5rem", value: (task) => task.trust },
      { name: "State", width: "7.5rem", value: (task) => task.state, cell: (task) => badge(task.state) },
      { name: "Progress", sort: false, width: "minmax(10rem, 2.4fr)", value: (task) => task.progress },
      { name: "Progress bar", hidden: true, width: "5rem", value: (task) => (ENDED.has(task.state) ? null : task.fraction), cell: (task) => bar(ENDED.has(task.state) ? null : task.fraction) },
      { name: "Median", number: true, width: simulated ? "11rem" : "5.5rem", value: (task) => task.median_ms, cell: (task) => [task.median_ms !== null && time(task.median_ms, 3), task.simulated && task.median_ms !== null && [" ", simulation()]] },
      { name: "Verdict", width: "6.5rem", value: (task) => task.verdict || "", cell: (task) => task.verdict && `⚠ ${task.verdict}` },
      {
        name: "Actions",
        hidden: true,
        width: "5.2rem",
        value: (task) => ENDED.has(task.state),
        cell: (task) => {
          if (ENDED.has(task.state)) return null;
          const button = h("button", { class: "plain small", type: "button", "aria-label": `Cancel task ${task.n}`, onclick: () => cancelOne(task, button) }, "Cancel");
          return button;
        },
      },
    ],
    { label: "Tasks", key: (task) => task.task, sorted: ["Task", "ascending"], long: true, empty: "No task matches." },
  );
}

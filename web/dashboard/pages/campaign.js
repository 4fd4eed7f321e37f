// One campaign, live: where its tasks stand, who waits and why, and what can be done about it.

import { down } from "../app.js";
import { get, post, save, stream } from "../api.js";
import { h, replace } from "../dom.js";
import { matrix } from "../matrix.js";
import { announce, ask, badge, bar, count, doing, duration, facts, gather, instant, ms, on, setText, simulation, SIMULATED, table } from "../widgets.js";
import { stands } from "./campaigns.js";

export const title = "Campaign";

export const ENDED = new Set(["succeeded", "failed", "cancelled"]);
const PARTS = [
  ["succeeded", "done"],
  ["failed", "failed"],
  ["cancelled", "cancelled"],
  ["running", "running"],
  ["waiting", "waiting"],
];
const LONGEST = 12; // groups that are told of one by one
const PAGE = 500; // results that are asked for at a time

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
  const medians = new Map(); // by number
  let asking = false;
  let stale = true; // who waits or failed is to be told anew

  // -- what stands still -------------------------------------------------------------------------------------------------
  const state = h("span");
  const took = h("span");
  const detail = h("p", { class: "problem", hidden: true });
  const counts = h("p", { class: "legend", role: "status" });
  const strip = h("div", { class: "parts", "aria-hidden": "true" }, PARTS.map(([name]) => h("span", { class: name })));
  const cancel = h("button", { class: "danger", type: "button", onclick: () => doing(cancel, cancelAll) }, "Cancel campaign …");
  const retry = h("button", { type: "button", hidden: true, onclick: () => doing(retry, again) }, "Run what failed again …");
  const clone = h("a", { class: "button", href: `#/submit?from=${encodeURIComponent(campaign.campaign_id)}` }, "Clone …");
  const file = (words, path, name) => {
    const button = h("button", { class: "plain", type: "button", onclick: () => doing(button, () => save(path, name)) }, words);
    return button;
  };
  const waits = h("div", { class: "stories" });
  const only = h("select", { "aria-label": "Tasks in state" }, h("option", { value: "" }, "all tasks"), PARTS.map(([name, words]) => h("option", { value: name }, words)));
  const find = h("input", { type: "search", "aria-label": "Model, unit or device holds", placeholder: "model, unit, device", autocomplete: "off" });
  const place = h("div");
  const views = { matrix: matrix(), list: list(cancelOne, campaign.simulated, inWays(campaign.spec)) };
  let view = query.get("view") === "list" ? "list" : "matrix";
  const choose = Object.keys(views).map((name) => h("button", { type: "button", onclick: () => turn(name) }, name === "matrix" ? "Matrix" : "List"));
  replace(
    main,
    h("p", { class: "small" }, h("a", { href: "#/" }, "Campaigns"), " / ", h("code", {}, campaign.campaign_id)),
    h("div", { class: "line" }, h("h1", { class: "grow" }, campaign.name, campaign.simulated && [" ", simulation()]), state, cancel, retry, clone),
    campaign.simulated && h("p", { class: "warning" }, SIMULATED),
    detail,
    strip,
    counts,
    facts([
      ["Begun", instant(campaign.created)],
      ["Took", took],
      ["Models", count(campaign.models.length, "model")],
      ["Priority", campaign.priority],
      ["Tries for a task", campaign.attempts],
      ["Time limit", campaign.limit_s === null ? "" : duration(campaign.limit_s)],
    ]),
    h(
      "div",
      { class: "line" },
      file("CSV", `${base}/results?format=csv`, `${id}.csv`),
      file("JSON Lines", `${base}/results?format=jsonl`, `${id}.jsonl`),
      file("Raw, signed", `${base}/results?format=raw`, `${id}-raw.json`),
      file("Report", `${base}/report`, `${id}.html`),
      h("a", { href: `#/compare?a=${encodeURIComponent(id)}` }, "Compare"),
    ),
    waits,
    h("div", { class: "line" }, h("h2", { class: "grow" }, "Tasks"), only, find, h("div", { class: "segments", role: "group", "aria-label": "View" }, choose)),
    place,
  );
  only.addEventListener("change", narrow);
  find.addEventListener("input", narrow);
  turn(view);
  told();

  // -- what moves --------------------------------------------------------------------------------------------------------
  const changed = gather(
    (task) => task.task,
    (some, last) => {
      if (signal.aborted) return;
      for (const task of some) {
        stale = stale || hasStory(task) || hasStory(tasks.get(task.task));
        keep(task);
      }
      views[view].put(some, last);
      if (last) told();
      if (some.some((task) => task.state === "succeeded" && task.median_ms === null)) measured();
    },
  );
  const clock = setInterval(() => setText(took, duration(seconds())), 1000);
  signal.addEventListener("abort", () => clearInterval(clock));
  await stream(
    `${base}/events`,
    (name, value) => {
      if (name === "task") changed(value);
      else if (name === "campaign") {
        const ended = value.ended && !campaign.ended;
        campaign = { ...campaign, ...value };
        told();
        if (ended) announce(`the campaign has ended: ${value.status}`);
      }
    },
    down,
    signal,
  );

  function seconds() {
    return ((campaign.ended ? Date.parse(campaign.ended) : Date.now()) - Date.parse(campaign.created)) / 1000;
  }

  function keep(task) {
    if (task.state === "succeeded" && medians.has(task.n)) task.median_ms = medians.get(task.n);
    tasks.set(task.task, task);
  }

  // What the tasks that are done came to, which their rows do not tell: asked for once for each, a page at a time.
  async function measured() {
    if (asking) return;
    asking = true;
    try {
      for (;;) {
        const open = [...tasks.values()].filter((task) => task.state === "succeeded" && !medians.has(task.n)).map((task) => task.n);
        if (!open.length || signal.aborted) return;
        const first = Math.min(...open);
        const page = await get(`${base}/results?after=${first - 1}&limit=${open.length === 1 ? 1 : PAGE}`, signal);
        medians.set(first, null); // also where nothing is told of it: it is not asked for again
        for (const row of page.results) medians.set(Number(row.JobId.slice(row.JobId.lastIndexOf("/") + 1)), row.InferenceMsMedian);
        const some = [...tasks.values()].filter((task) => task.state === "succeeded" && task.median_ms === null && medians.get(task.n));
        some.forEach(changed); // drawn a few at a time, as all that comes is
      }
    } catch (error) {
      if (!signal.aborted && error.status) throw error;
    } finally {
      asking = false;
    }
  }

  // Everything above the tasks, as they stand now.
  function told() {
    const now = stands(campaign);
    if (state.dataset.now !== now) {
      state.dataset.now = now;
      replace(state, badge(now));
    }
    setText(took, duration(seconds()));
    detail.hidden = !campaign.detail && now !== "halted";
    setText(detail, campaign.detail || `Nobody carries it on now: sark-node watch ${id}`);
    cancel.hidden = Boolean(campaign.ended);
    const sums = Object.fromEntries(PARTS.map(([name]) => [name, 0]));
    for (const task of tasks.values()) sums[part(task)] += 1;
    retry.hidden = !campaign.ended || campaign.status === "adopted" || !(sums.failed + sums.cancelled);
    const words = PARTS.filter(([name]) => sums[name]).map(([name, what]) => `${sums[name]} ${what}`);
    const all = tasks.size ? `${count(tasks.size, "task")}: ${words.join(", ")}` : campaign.ended ? "no tasks" : "waiting for devices to be seen";
    setText(counts, all);
    PARTS.forEach(([name], index) => {
      const grow = String(sums[name]);
      if (strip.children[index].style.flexGrow !== grow) strip.children[index].style.flexGrow = grow;
    });
    if (stale) tell(waits, [...tasks.values()]);
    stale = false;
  }

  function turn(to) {
    view = to;
    choose.forEach((button, index) => button.setAttribute("aria-pressed", String(Object.keys(views)[index] === to)));
    replace(place, views[to].element);
    narrow();
    views[to].put([...tasks.values()]);
  }

  function narrow() {
    const words = find.value.toLowerCase();
    const state = only.value;
    const test = (task) => (!state || part(task) === state) && (!words || `${task.model} ${on(task.unit, task.threads, task.batch)} ${task.device}`.toLowerCase().includes(words));
    views[view].filter(test);
  }

  // -- deeds -------------------------------------------------------------------------------------------------------------
  async function cancelAll() {
    const open = [...tasks.values()].filter((task) => !ENDED.has(task.state)).length;
    const yes = await ask({
      title: "Cancel this campaign?",
      text: `${count(open, "task")} of ${campaign.name} that have not ended will be stopped. What is done stays.`,
      action: "Cancel it",
      danger: true,
    });
    if (yes) await post(`${base}/cancel`, {});
  }

  async function cancelOne(task, button) {
    const yes = await ask({
      title: `Cancel task ${task.n}?`,
      text: `${task.model} × ${on(task.unit, task.threads, task.batch)}${task.device ? ` on ${task.device}` : ""}: ${task.progress}`,
      action: "Cancel it",
      danger: true,
    });
    if (yes) await doing(button, () => post(`${base}/tasks/${task.n}/cancel`, {}));
  }

  async function again() {
    const some = [...tasks.values()].filter((task) => task.state === "failed" || task.state === "cancelled").length;
    const yes = await ask({
      title: "Run these again?",
      text: `A new campaign with ${count(some, "task")} of ${campaign.name} that failed or ${some === 1 ? "was" : "were"} cancelled. This one stays as it is.`,
      action: "Run them again",
    });
    if (!yes) return;
    const made = await post(`${base}/retry`, {});
    location.hash = `#/campaigns/${encodeURIComponent(made.campaign_id || made.campaign)}`;
  }
}

// In which part of the strip a task is.
function part(task) {
  if (ENDED.has(task.state)) return task.state;
  return task.state === "running" || task.state === "leased" ? "running" : "waiting";
}

function hasStory(task) {
  return task !== undefined && ["waiting", "failed"].includes(part(task));
}

// Who waits and why, who failed and why: those with the same story together.
function tell(place, tasks) {
  const stories = new Map();
  for (const task of tasks) {
    const kind = part(task);
    if (kind !== "waiting" && kind !== "failed") continue;
    // places and times differ from task to task: the same story all the same
    const words = kind === "failed" ? task.progress : task.progress.replace(/ \d+(st|nd|rd|th)/g, "").replace(/~[\d:.]+( s)?/g, "a while");
    const key = `${kind} ${words}`;
    if (!stories.has(key)) stories.set(key, { kind, words, some: [], why: kind === "failed" ? task.detail : "" });
    stories.get(key).some.push(task.n);
  }
  const list = [...stories.values()];
  const sign = JSON.stringify(list);
  if (place.dataset.sign === sign) return;
  place.dataset.sign = sign;
  const section = (kind, heading) => {
    const here = list.filter((story) => story.kind === kind).sort((a, b) => b.some.length - a.some.length);
    if (!here.length) return null;
    const lines = here.slice(0, LONGEST).map((story) => {
      const [first, ...rest] = story.why.split("\n");
      return h("li", {}, story.words, " ", h("span", { class: "quiet small" }, `${story.some.length === 1 ? "task" : `${story.some.length} tasks:`} ${numbers(story.some)}`), rest.length > 0 && first && h("pre", { class: "small", tabindex: "0", role: "region", "aria-label": "In whole" }, story.why));
    });
    return [h("h2", {}, heading), h("ul", { class: "plain-list" }, lines), here.length > LONGEST && h("p", { class: "quiet" }, `and ${here.length - LONGEST} more: see the list`)];
  };
  replace(place, section("waiting", "Who waits, and why"), section("failed", "What failed, and why"));
}

// [1, 2, 3, 7] -> "1–3, 7"
function numbers(list) {
  const runs = [];
  for (const n of [...list].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else runs.push([n, n]);
  }
  const shown = runs.slice(0, 8).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`));
  return shown.join(", ") + (runs.length > 8 ? " …" : "");
}

// Whether its tasks differ in threads or batches, which stand beside the unit then.
function inWays({ measure, models }) {
  return Boolean(measure?.batch || measure?.threads?.some((one) => one !== "physical") || models?.some((one) => one.batch));
}

// Every task in a line.
function list(cancelOne, simulated, ways) {
  return table(
    [
      { name: "Task", head: true, number: false, width: "3.5rem", value: (task) => task.n, sign: (task) => task.n, cell: (task) => h("a", { href: `#/tasks/${task.task}` }, task.n) },
      { name: "Model", width: "minmax(7rem, 1.2fr)", value: (task) => task.model },
      { name: "Unit", width: ways ? "minmax(18rem, 2fr)" : "minmax(6rem, 1fr)", value: (task) => on(task.unit, task.threads, task.batch) },
      { name: "Device", width: "minmax(5rem, 1fr)", value: (task) => task.device },
      { name: "State", width: "7.5rem", value: (task) => task.state, cell: (task) => badge(task.state) },
      { name: "How it stands", sort: false, width: "minmax(10rem, 2.4fr)", value: (task) => task.progress },
      { name: "Share", hidden: true, width: "5rem", value: (task) => (ENDED.has(task.state) ? null : task.fraction), cell: (task) => bar(ENDED.has(task.state) ? null : task.fraction) },
      { name: "Median", number: true, width: simulated ? "11rem" : "5.5rem", value: (task) => task.median_ms, cell: (task) => [ms(task.median_ms), task.simulated && task.median_ms !== null && [" ", simulation()]] },
      {
        name: "Deeds",
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
    { label: "Tasks", key: (task) => task.task, sorted: ["Task", "ascending"], long: true, empty: "No task is like that." },
  );
}

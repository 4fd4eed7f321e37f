// A new campaign: a form next to its text. The text is the campaign, and the form edits it. Errors are shown at their lines. The plan for
// the current devices is shown before the campaign can be submitted.

import { get, Problem, put as putText, send, text as fetchText } from "../api.js";
import { campaignForm } from "../campaignform.js";
import { h, replace } from "../dom.js";
import { bytes, configuration, count, duration } from "../format.js";
import { act, confirm, lines, plainTable } from "../widgets.js";
import { put } from "../yamltext.js";

export const title = "Submit";

const DRAFT = "sark-draft";
const STARTER = `campaign: my-campaign
models: []
units: [CPU (ONNX)]
measure:
  runs: 100   # timed inferences, over all launches
  loads: 6    # launches; six or more give an interval
`;
const TYPING_MS = 350;
const PLAN_MS = 700;

export async function show(main, parts, { signal, query }) {
  const from = query.get("from"); // a campaign to clone
  const named = query.get("experiment"); // an experiment to change
  const initial = named ? await latest(named, signal) : from ? await fetchText(`/api/v1/campaigns/${encodeURIComponent(from)}/file`, signal) : sessionStorage.getItem(DRAFT);
  const editor = textEditor(initial ?? STARTER);
  const errors = h("div", { role: "status", "aria-live": "polite", class: "mistakes" });
  const planned = h("section", { "aria-labelledby": "plan-head", "aria-live": "polite" });
  const button = h("button", { type: "button", disabled: true }, "Submit");
  const wait = h("select", { id: "wait" }, [["60s", "1 minute"], ["10m", "10 minutes"], ["2h", "2 hours"]].map(([value, words]) => h("option", { value }, words)));
  const keep = h("button", { type: "button", class: named ? "" : "plain", disabled: true, onclick: () => act(keep, saveIt) }, named ? `Save as the next version of ${named}` : "Save as experiment …");
  const outcome = h("p", { role: "status" });
  const state = { checked: null, checkedText: null, plan: null };

  // change(values) returns the keys to write, such as { units: [...] }; undefined removes a key. One edit follows the other: each starts
  // from the text that the one before it wrote.
  let edits = Promise.resolve();
  const form = campaignForm({ edit: (change) => (edits = edits.catch(() => {}).then(() => apply(change))) });

  async function apply(change) {
    const checked = await current();
    if (!checked?.given || signal.aborted) return;
    let text = editor.text();
    for (const [key, value] of Object.entries(change(checked.given))) text = put(text, key, value);
    editor.set(text);
    await check();
  }

  // The checked form of the present text; null if it cannot be checked.
  async function current() {
    while (state.checkedText !== editor.text()) {
      const mine = check();
      const checked = await mine;
      if (checked || mine === latestCheck || signal.aborted) return checked; // else a newer check aborted this one
    }
    return state.checked;
  }

  let checking = new AbortController();
  let latestCheck = null;
  function check() {
    return (latestCheck = checkNow());
  }

  async function checkNow() {
    checking.abort();
    checking = new AbortController();
    const text = editor.text();
    sessionStorage.setItem(DRAFT, text);
    discardPlan(text);
    try {
      const checked = await send("/api/v1/validate?models=false", text, "text/yaml", { signal: checking.signal });
      if (signal.aborted) return null;
      Object.assign(state, { checked, checkedText: text });
      showErrors(checked.mistakes);
      keep.disabled = !checked.valid;
      form.fill(checked.given, checked.formats, !/^\s*[{[]/.test(text));
      clearTimeout(state.soon);
      if (checked.valid) state.soon = setTimeout(() => plan(text), PLAN_MS);
      else replace(planned, h("h2", { id: "plan-head" }, "Plan"), h("p", { class: "quiet" }, "The plan is made when the text has no errors."));
      return checked;
    } catch (error) {
      if (error.name !== "AbortError" && !signal.aborted) replace(errors, h("p", { class: "wrong" }, `${error.message}. ${error.hint ?? ""}`));
      return null;
    }
  }

  function discardPlan(text) {
    clearTimeout(state.soon);
    if (state.plan?.text === text) return;
    state.plan = null;
    button.disabled = true;
    keep.disabled = state.checkedText !== text || !state.checked?.valid;
    button.textContent = "Submit";
  }

  function showErrors(mistakes) {
    editor.mark(new Set(mistakes.map((one) => one.line)));
    replace(
      errors,
      mistakes.length
        ? mistakes.map((one) => h("p", { class: "wrong" }, h("button", { type: "button", class: "plain", onclick: () => editor.go(one.line) }, `Line ${one.line}`), ` ${one.what}`, one.hint && h("span", { class: "quiet" }, `: ${one.hint}`)))
        : h("p", { class: "right" }, "✓ No errors."),
    );
  }

  let planning = new AbortController();
  async function plan(text) {
    planning.abort();
    planning = new AbortController();
    const mine = planning.signal;
    replace(planned, h("h2", { id: "plan-head" }, "Plan"), h("p", { class: "quiet" }, "Checking the models and asking the devices …"));
    try {
      const made = await send("/api/v1/plan", text, "text/yaml", { signal: mine });
      if (signal.aborted || editor.text() !== text) return;
      state.plan = { text, made };
      replace(planned, planView(made, () => plan(editor.text())));
      button.disabled = false;
      button.textContent = made.covered === made.cells.length ? `Submit ${count(made.tasks, "task")}` : `Submit anyway: ${made.covered} of ${count(made.cells.length, "cell")} have a device now`;
    } catch (error) {
      if (mine.aborted || signal.aborted) return;
      const line = /^campaign\.yaml:(\d+): (.*)$/s.exec(error.message);
      if (line) showErrors([{ line: Number(line[1]), what: line[2], hint: error.hint }]);
      replace(planned, h("h2", { id: "plan-head" }, "Plan"), h("p", { class: "wrong" }, "The campaign cannot be planned: ", error.message), error.hint && h("p", { class: "quiet" }, error.hint), h("button", { type: "button", class: "plain", onclick: () => plan(editor.text()) }, "Retry"));
    }
  }

  button.addEventListener("click", async () => {
    if (state.plan?.text !== editor.text()) return;
    button.disabled = true;
    replace(outcome, "Submitting …");
    state.plan.key ??= key();
    try {
      const made = await send(`/api/v1/campaigns?wait=${wait.value}`, state.plan.text, "text/yaml", { headers: { "Idempotency-Key": state.plan.key } });
      sessionStorage.removeItem(DRAFT);
      location.hash = `#/campaigns/${encodeURIComponent(made.campaign_id)}`;
    } catch (error) {
      button.disabled = false;
      replace(outcome, h("span", { class: "wrong" }, error instanceof Problem ? `${error.message}. ${error.hint}` : String(error)));
    }
  });
  async function saveIt() {
    const text = editor.text();
    const field = h("input", { name: "experiment", required: true, maxlength: "64", autocomplete: "off", value: state.checked?.given?.campaign ?? "" });
    const question = { title: "Save as an experiment", text: "It can be run again by hand or on a schedule. A name that exists gets a new version.", action: "Save", more: [h("p", {}, h("label", {}, "Name ", field))] };
    const name = named ?? ((await confirm(question)) && field.value.trim());
    if (!name) return;
    const made = await putText(`/api/v1/experiments/${encodeURIComponent(name)}`, text, "text/yaml");
    sessionStorage.removeItem(DRAFT);
    location.hash = `#/experiments/${encodeURIComponent(made.experiment)}`;
  }

  let typing;
  editor.area.addEventListener("input", () => {
    discardPlan(editor.text());
    clearTimeout(typing);
    typing = setTimeout(check, TYPING_MS);
  });
  signal.addEventListener("abort", () => {
    checking.abort();
    planning.abort();
    clearTimeout(typing);
    clearTimeout(state.soon);
  });

  replace(
    main,
    h("h1", {}, named ? `Change ${named}` : "New campaign"),
    h("div", { class: "twosided" }, form.element, h("section", { "aria-labelledby": "text-head" }, h("h2", { id: "text-head" }, "Text"), h("p", { class: "quiet" }, "This text is submitted, as in a campaign.yaml. The form edits it, and you can edit it too."), editor.element, errors)),
    planned,
    h("section", {}, h("p", {}, h("label", { for: "wait" }, "Wait for a matching device for "), wait), h("p", { class: "line" }, button, keep), outcome),
  );
  form.offer(signal);
  await check();
}

// The campaign of an experiment's latest version.
async function latest(experiment, signal) {
  return (await get(`/api/v1/experiments/${encodeURIComponent(experiment)}`, signal)).versions.at(-1).campaign;
}

function key() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// -- the plan -------------------------------------------------------------------------------------------------------------------------

function planView(made, again) {
  const name = (id) => made.devices[id] ?? id;
  const sources = [...new Set(made.cells.map((cell) => cell.run_from).filter(Boolean))];
  const total = made.total_s === null ? "total time unknown" : `about ${duration(made.total_s)} in total (from ${sources.join(" and ")})`;
  const rows = made.cells.map((cell) => [
    cell.model,
    configuration(cell.unit, cell.threads, cell.batch),
    cell.covered ? h("span", { class: "state succeeded" }, "covered") : h("span", { class: "state failed" }, "no device"),
    String(cell.tasks),
    cell.serve.length ? listed(cell.serve.map(name)) : cell.fit.length ? `none now; ${count(cell.fit.length, "device")} would match` : "none matches",
    !cell.serve.length ? "–" : cell.start_s === null ? "unknown" : cell.start_s < 1 ? "now" : `in ${duration(cell.start_s)}`,
    cell.run_s === null ? "unknown" : `about ${duration(cell.run_s)}`,
    cell.fetch ? bytes(cell.fetch) : "–",
  ]);
  const reasons = new Map();
  for (const cell of made.cells) if (!cell.covered) reasons.set(cell.why, [...(reasons.get(cell.why) ?? []), `${cell.model} × ${cell.unit}`]);
  const preempted = [...new Set(made.cells.flatMap((cell) => cell.gives_way))];
  return [
    h("h2", { id: "plan-head" }, "Plan"),
    h("p", {}, `${made.covered} of ${count(made.cells.length, "cell")} covered: ${count(made.tasks, "task")}; ${Object.keys(made.devices).length} of ${count(made.seen, "device")} match. Expected: ${total}; ${made.fetch ? `${bytes(made.fetch)} to download` : "nothing to download"}.`),
    plainTable("Plan", ["Model", "Unit", "Covered", "Tasks#", "Devices", "Starts", "Each takes", "Download#"], rows),
    [...reasons].map(([why, cells]) => h("div", { class: "judged warn-edge" }, h("h3", {}, `No device for ${listed([...new Set(cells)])}`), lines("Reason", why))),
    preempted.length > 0 && h("div", { class: "judged warn-edge" }, h("h3", {}, "Running tasks would be preempted"), h("ul", {}, preempted.map((text) => h("li", {}, text)))),
    !made.complete && h("p", { class: "quiet" }, "Not all devices could be asked: the plan covers those that answered."),
    made.notes.map((note) => h("p", { class: "quiet" }, note)),
    h("p", { class: "quiet" }, `Plan ${made.plan}. Nothing is reserved. `, h("button", { type: "button", class: "plain", onclick: again }, "Plan again")),
  ];
}

function listed(names) {
  return names.length > 4 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
}

// -- the text -------------------------------------------------------------------------------------------------------------------------

function textEditor(text) {
  const area = h("textarea", { id: "text", class: "code", rows: "22", spellcheck: "false", wrap: "off", autocapitalize: "off", "aria-label": "The campaign as YAML" });
  const numbers = h("pre", { class: "gutter", "aria-hidden": "true" });
  area.value = text;
  let marked = new Set();
  const drawNumbers = () =>
    replace(
      numbers,
      area.value.split("\n").map((_, at) => h("span", { class: marked.has(at + 1) ? "bad" : null }, `${marked.has(at + 1) ? "✗" : " "}${String(at + 1).padStart(3)}\n`)),
    );
  const follow = () => (numbers.scrollTop = area.scrollTop);
  area.addEventListener("scroll", follow);
  area.addEventListener("input", drawNumbers);
  drawNumbers();
  return {
    area,
    element: h("div", { class: "editor" }, numbers, area),
    text: () => area.value,
    set(value) {
      area.value = value;
      drawNumbers();
      follow();
    },
    mark(lines) {
      marked = lines;
      area.setAttribute("aria-invalid", String(lines.size > 0));
      drawNumbers();
    },
    go(line) {
      const all = area.value.split("\n");
      const from = all.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
      area.focus();
      area.setSelectionRange(from, from + (all[line - 1] ?? "").length);
    },
  };
}

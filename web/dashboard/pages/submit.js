// A new campaign: a form and its text side by side. The text is the campaign; the form only edits it. What is wrong stands at its line, and
// what it would do on the devices of now is shown before it can be submitted.

import { Problem, get, send, text as fetched } from "../api.js";
import { bytes, lines, plainTable, scrolled, seconds } from "../charts.js";
import { h, replace } from "../dom.js";
import { campaignForm } from "../campaignform.js";
import { put } from "../yamltext.js";

export const title = "Submit";

const DRAFT = "sark-draft";
const STARTER = `campaign: my-campaign
models: []
units: [CPU (ONNX)]
measure:
  runs: 100   # timed inferences, shared out over the loads
  loads: 6    # fresh processes; from six on the median has an interval
`;
const TYPING_MS = 350;
const SETTLED_MS = 700;

export async function show(main, parts, { signal, query }) {
  const from = query.get("from"); // a past campaign to begin with
  const begun = from ? await fetched(`/api/v1/campaigns/${encodeURIComponent(from)}/file`, signal) : sessionStorage.getItem(DRAFT);
  const editor = textEditor(begun ?? STARTER);
  const said = h("div", { role: "status", "aria-live": "polite", class: "mistakes" });
  const planned = h("section", { "aria-labelledby": "plan-head", "aria-live": "polite" });
  const button = h("button", { type: "button", disabled: true }, "Submit");
  const wait = h("select", { id: "wait" }, [["60s", "a minute"], ["10m", "ten minutes"], ["2h", "two hours"]].map(([value, words]) => h("option", { value }, words)));
  const outcome = h("p", { role: "status" });
  const state = { checked: null, of: null, plan: null };

  const form = campaignForm({
    // change(given) gives the keys to write: { units: [...] }; undefined takes a key out
    async edit(change) {
      const checked = await fresh();
      if (!checked?.given || signal.aborted) return;
      let text = editor.text();
      for (const [key, value] of Object.entries(change(checked.given))) text = put(text, key, value);
      editor.set(text);
      await check();
    },
  });

  async function fresh() {
    return state.of === editor.text() ? state.checked : check();
  }

  let asking = new AbortController();
  async function check() {
    asking.abort();
    asking = new AbortController();
    const text = editor.text();
    sessionStorage.setItem(DRAFT, text);
    unplan(text);
    try {
      const checked = await send("/api/v1/validate?models=false", text, "text/yaml", { signal: asking.signal });
      if (signal.aborted) return null;
      Object.assign(state, { checked, of: text });
      tell(checked.mistakes);
      form.fill(checked.given, !/^\s*[{[]/.test(text));
      clearTimeout(state.soon);
      if (checked.valid) state.soon = setTimeout(() => plan(text), SETTLED_MS);
      else replace(planned, h("h2", { id: "plan-head" }, "Plan"), h("p", { class: "quiet" }, "It is made as soon as the text is right."));
      return checked;
    } catch (error) {
      if (error.name !== "AbortError" && !signal.aborted) replace(said, h("p", { class: "wrong" }, `${error.message}. ${error.hint ?? ""}`));
      return null;
    }
  }

  function unplan(text) {
    clearTimeout(state.soon);
    if (state.plan?.text === text) return;
    state.plan = null;
    button.disabled = true;
    button.textContent = "Submit";
  }

  function tell(mistakes) {
    editor.mark(new Set(mistakes.map((one) => one.line)));
    replace(
      said,
      mistakes.length
        ? mistakes.map((one) => h("p", { class: "wrong" }, h("button", { type: "button", class: "plain", onclick: () => editor.go(one.line) }, `line ${one.line}`), ` ${one.what}`, one.hint && h("span", { class: "quiet" }, `: ${one.hint}`)))
        : h("p", { class: "right" }, "✓ The text is right."),
    );
  }

  let planning = new AbortController();
  async function plan(text) {
    planning.abort();
    planning = new AbortController();
    const mine = planning.signal;
    replace(planned, h("h2", { id: "plan-head" }, "Plan"), h("p", { class: "quiet" }, "Looking at its models, and asking the devices …"));
    try {
      const made = await send("/api/v1/plan", text, "text/yaml", { signal: mine });
      if (signal.aborted || editor.text() !== text) return;
      state.plan = { text, made };
      replace(planned, planView(made, () => plan(editor.text())));
      button.disabled = false;
      button.textContent = made.covered === made.cells.length ? `Submit ${tasks(made.tasks)}` : `Submit all the same: ${made.covered} of ${made.cells.length} cells have a device now`;
    } catch (error) {
      if (mine.aborted || signal.aborted) return;
      const line = /^campaign\.yaml:(\d+): (.*)$/s.exec(error.message);
      if (line) tell([{ line: Number(line[1]), what: line[2], hint: error.hint }]);
      replace(planned, h("h2", { id: "plan-head" }, "Plan"), h("p", { class: "wrong" }, "No plan: ", error.message), error.hint && h("p", { class: "quiet" }, error.hint), h("button", { type: "button", class: "plain", onclick: () => plan(editor.text()) }, "Try again"));
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
  let typing;
  editor.area.addEventListener("input", () => {
    unplan(editor.text());
    clearTimeout(typing);
    typing = setTimeout(check, TYPING_MS);
  });
  signal.addEventListener("abort", () => {
    asking.abort();
    planning.abort();
    clearTimeout(typing);
    clearTimeout(state.soon);
  });

  replace(
    main,
    h("h1", {}, "New campaign"),
    h("div", { class: "twosided" }, form.element, h("section", { "aria-labelledby": "text-head" }, h("h2", { id: "text-head" }, "As text"), h("p", { class: "quiet" }, "This is what is submitted, and what a campaign.yaml holds. The form edits it, and so can you."), editor.element, said)),
    planned,
    h("section", {}, h("p", {}, h("label", { for: "wait" }, "Wait for a device that fits for "), wait), h("p", {}, button), outcome),
  );
  form.offer(signal);
  await check();
}

function key() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const tasks = (count) => `${count} task${count === 1 ? "" : "s"}`;

// -- the plan -------------------------------------------------------------------------------------------------------------------------

function planView(made, again) {
  const devices = Object.keys(made.devices).length;
  const names = (ids) => ids.map((id) => made.devices[id] ?? id);
  const sources = [...new Set(made.cells.map((cell) => cell.run_from).filter(Boolean))];
  const total = made.total_s === null ? "time in all not known" : `about ${seconds(made.total_s)} in all (from ${sources.join(" and ")})`;
  const cells = made.cells.map((cell) => [
    cell.model,
    `${cell.unit}${cell.threads === null ? "" : `, ${cell.threads} thread${cell.threads === 1 ? "" : "s"}`}${cell.batch === null ? "" : `, batch ${cell.batch}`}`,
    cell.covered ? h("span", { class: "state succeeded" }, "covered") : h("span", { class: "state failed" }, "no device"),
    String(cell.tasks),
    cell.serve.length ? listed(names(cell.serve)) : cell.fit.length ? `none now; ${cell.fit.length} fit` : "none fits",
    !cell.serve.length ? "–" : cell.start_s === null ? "not known" : cell.start_s < 1 ? "now" : `in ${seconds(cell.start_s)}`,
    cell.run_s === null ? "not known" : `about ${seconds(cell.run_s)}`,
    cell.fetch ? bytes(cell.fetch) : "–",
  ]);
  const reasons = new Map();
  for (const cell of made.cells) if (!cell.covered) reasons.set(cell.why, [...(reasons.get(cell.why) ?? []), `${cell.model} × ${cell.unit}`]);
  const ways = [...new Set(made.cells.flatMap((cell) => cell.gives_way))];
  return [
    h("h2", { id: "plan-head" }, "Plan"),
    h("p", {}, `${made.covered} of ${made.cells.length} cell${made.cells.length === 1 ? "" : "s"} covered: ${tasks(made.tasks)}; ${devices} of ${made.seen} device${made.seen === 1 ? "" : "s"} seen fit. Expected: ${total}; ${made.fetch ? `${bytes(made.fetch)} to fetch` : "nothing to fetch"}.`),
    scrolled("Plan", plainTable(["model", "unit", "covered", "tasks#", "would be served by", "starts", "each takes", "fetch#"], cells)),
    [...reasons].map(([why, alike]) => h("div", { class: "judged warn-edge" }, h("h3", {}, `Why not: ${listed([...new Set(alike)])}`), lines("Why not", why))),
    ways.length > 0 && h("div", { class: "judged warn-edge" }, h("h3", {}, "Somebody's run would have to give way"), h("ul", {}, ways.map((way) => h("li", {}, way)))),
    !made.complete && h("p", { class: "quiet" }, "There are more devices than can be looked at: this holds for those that were seen."),
    made.notes.map((note) => h("p", { class: "quiet" }, note)),
    h("p", { class: "quiet" }, `Plan ${made.plan}; nothing is held or promised. `, h("button", { type: "button", class: "plain", onclick: again }, "Look again")),
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
  const count = () =>
    replace(
      numbers,
      area.value.split("\n").map((_, at) => h("span", { class: marked.has(at + 1) ? "bad" : null }, `${marked.has(at + 1) ? "✗" : " "}${String(at + 1).padStart(3)}\n`)),
    );
  const follow = () => (numbers.scrollTop = area.scrollTop);
  area.addEventListener("scroll", follow);
  area.addEventListener("input", count);
  count();
  return {
    area,
    element: h("div", { class: "editor" }, numbers, area),
    text: () => area.value,
    set(value) {
      area.value = value;
      count();
      follow();
    },
    mark(lines) {
      marked = lines;
      area.setAttribute("aria-invalid", String(lines.size > 0));
      count();
    },
    go(line) {
      const all = area.value.split("\n");
      const from = all.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
      area.focus();
      area.setSelectionRange(from, from + (all[line - 1] ?? "").length);
    },
  };
}

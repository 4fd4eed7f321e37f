// The gates that this home knows, and this home's worker with its owner's actions.

import { online } from "../app.js";
import { get, post } from "../api.js";
import { h, replace, replaceChanged } from "../dom.js";
import { bytes, count, duration, time } from "../format.js";
import { LATE_S, sensors } from "../sensors.js";
import { act, badge, confirm, every, facts, plainTable, setText, shortId } from "../widgets.js";

export const title = "Gate and worker";

const EVERY_S = 5;
const SKIP = 11; // requests skipped for gates that report nothing
const ADMITS = { open: "anyone", ticket: "pool members and holders of a ticket", list: "listed peers" };

export async function show(main, parts, { signal }) {
  const gates = h("div", {}, h("p", { class: "quiet" }, "Loading …"));
  const worker = h("div", {}, h("p", { class: "quiet" }, "Loading …"));
  replace(main, h("h1", {}, "Gate and worker"), h("section", { "aria-label": "Gates" }, gates), h("section", { "aria-label": "Worker" }, h("h2", {}, "This home's worker"), worker));
  const previous = new Map(); // gate -> its last status
  const cards = new Map(); // gate -> its element
  const own = workerPart();
  replace(worker, own.element);

  const loadWorker = online(async () => own.put(await get("/api/v1/worker", signal)), signal);
  let skip = 0;
  const loadGates = online(async () => {
    if (skip-- > 0) return;
    const reply = await get("/api/v1/gate", signal);
    if (!reply.gates.some((gate) => gate.status)) skip = SKIP;
    for (const peer of cards.keys()) if (!reply.gates.some((gate) => gate.peer === peer)) cards.delete(peer);
    for (const gate of reply.gates) {
      if (!cards.has(gate.peer)) cards.set(gate.peer, gatePart(gate));
      cards.get(gate.peer).put(gate, previous.get(gate.peer));
      previous.set(gate.peer, gate.status || undefined);
    }
    const shown = reply.gates.map((gate) => cards.get(gate.peer).element);
    const same = gates.children.length === shown.length && shown.every((one, index) => gates.children[index] === one);
    if (!shown.length) replace(gates, h("p", {}, "No gate is known. Start one: ", h("code", {}, "sark-node gate"), ", or name one: ", h("code", {}, "sark-node serve --gate /ip4/…")));
    else if (!same) replace(gates, shown);
  }, signal);
  await Promise.all([every(EVERY_S, loadWorker, signal), every(EVERY_S, loadGates, signal)]);
}

// -- a gate -------------------------------------------------------------------------------------------------------------------

function gatePart(first) {
  const state = h("span");
  const body = h("div");
  const element = h("div", {}, h("div", { class: "line" }, h("h2", {}, first.own ? "This home's gate" : "Gate", " ", shortId(first.peer)), state), body);
  return {
    element,
    put(gate, before) {
      const now = gate.status;
      replace(state, badge(!gate.reached ? "unreachable" : now?.draining ? "draining" : "active", !gate.reached ? "does not answer" : now?.draining ? "draining: no new reservations" : "up"));
      const where = ["Address", gate.addresses.map((address) => h("div", {}, h("code", {}, `${address}/p2p/${gate.peer}`)))];
      if (!now) {
        replace(body, facts([where]), gate.error && h("p", { class: "hint" }, `${gate.error}\n${gate.hint}`));
        return;
      }
      replace(body, statusView(now, before, where), counters(now), circuits(now), peers(now));
    },
  };
}

// Growth per second since the last status, or null.
function rate(now, before, name) {
  const seconds = before ? now.uptime_s - before.uptime_s : 0;
  return seconds < 0.2 || now[name] < before[name] ? null : (now[name] - before[name]) / seconds;
}

function statusView(now, before, where) {
  const relayed = rate(now, before, "relayed_bytes");
  const load = rate(now, before, "cpu_s");
  const caps = now.caps;
  return facts([
    where,
    ["Up for", duration(now.uptime_s)],
    ["Version", `${now.version}, start ${now.incarnation}`],
    ["Admission", ADMITS[now.admit] || now.admit],
    ["Peers", `${now.connected} connected`],
    ["Index", `${count(now.adverts, "device")}, ${count(now.shards, "shard")}, ${bytes(now.advert_bytes)}`],
    ["Reservations", caps ? `${now.reservations} of ${caps.reservations} in use; ${now.reservations_made} granted so far` : "no relay"],
    ["Circuits", caps && `${now.circuits} of ${caps.circuits}; ${now.circuits_begun} so far; each at most ${bytes(caps.circuit_bytes)} and ${duration(caps.circuit_s)}`],
    ["Relayed", caps && bytes(now.relayed_bytes) + (relayed ? `, ${bytes(Math.round(relayed))}/s now` : "") + (caps.bytes_per_s ? `, at most ${bytes(caps.bytes_per_s)}/s` : "")],
    ["Memory", bytes(now.memory_bytes)],
    ["CPU", `${duration(now.cpu_s)}${load === null ? "" : `, ${(100 * load).toFixed(0)} % of a core now`}; loop lag up to ${time(1000 * now.lag_s, 2)}`],
  ]);
}

function counters(now) {
  const card = (heading, counts) => {
    const rows = Object.entries(counts).sort((a, b) => b[1] - a[1]);
    return h("div", { class: "card" }, h("h3", {}, heading), rows.length ? plainTable(heading, ["Reason", "Count#"], rows) : h("p", { class: "quiet" }, "None so far."));
  };
  return h("div", { class: "cards" }, card("Refused requests", now.refused), now.caps && card("Ended circuits", now.circuits_ended));
}

function circuits(now) {
  if (!now.busiest.length) return null;
  const head = ["From", "To", "For", "Carried"];
  const rows = now.busiest.map((one) => [shortId(one.source), shortId(one.target), duration(one.seconds), bytes(one.bytes)]);
  return section(`Circuits, busiest first (${now.circuits})`, head, rows);
}

function peers(now) {
  if (!now.peers.length) return null;
  const rows = now.peers.map((one) => [shortId(one.peer), one.address ? h("code", {}, one.address) : "through a gate", one.reserved ? "yes" : ""]);
  return section(`Peers (${now.connected})`, ["Peer", "Address", "Reservation"], rows);
}

function section(heading, heads, rows) {
  return [h("h3", {}, heading), plainTable(heading, heads, rows)];
}

// -- the worker ------------------------------------------------------------------------------------------------------------------

function workerPart() {
  const state = h("span");
  const words = h("span", { role: "status" });
  const none = h("p", { class: "hint", hidden: true });
  const held = h("p", { class: "hint", hidden: true });
  const live = h("div");
  const jobs = h("div");
  const line = h("p", { class: "line" }, state, words);
  const now = h("input", { type: "checkbox" });
  const finish = h("input", { type: "checkbox" });
  const stop = () => h("p", {}, h("label", {}, now, " Also stop running tasks; their schedulers run them elsewhere"));
  const rest = () => h("p", {}, h("label", {}, finish, " Also run queued tasks instead of returning them"));
  const actions = {
    pause: ["Pause …", "Pause this worker?", "It takes no new work until you resume it, even after a restart. Running tasks continue; queued tasks are returned.", [stop]],
    resume: ["Resume", null],
    drain: ["Drain …", "Drain this worker?", "It takes no new work, finishes running tasks, delivers the results and leaves the swarm. Its process ends.", [rest, stop]],
    reset: ["Examine now", null],
  };
  const buttons = Object.fromEntries(
    Object.entries(actions).map(([action, [label, question, text, more]]) => {
      const button = h("button", { type: "button", class: action === "drain" ? "danger" : "plain", onclick: () => act(button, () => send(action, question, text, more)) }, label);
      return [action, button];
    }),
  );
  const row = h("div", { class: "line", hidden: true }, Object.values(buttons));
  const element = h("div", {}, none, line, held, row, live, jobs);
  line.hidden = true;

  async function send(action, question, text, more) {
    now.checked = finish.checked = false;
    if (question && !(await confirm({ title: question, text, action: action === "pause" ? "Pause" : "Drain", danger: action === "drain", more: more.map((make) => make()) }))) return;
    put(await post(`/api/v1/worker/${action}`, { now: now.checked, finish: action === "drain" && finish.checked }));
  }

  function put(worker) {
    none.hidden = !worker.error;
    setText(none, worker.error ? `${worker.error}; ${worker.hint}` : "");
    line.hidden = row.hidden = jobs.hidden = live.hidden = Boolean(worker.error);
    if (worker.error) return;
    replace(state, badge(worker.state));
    const work = worker.running || worker.queue ? `${worker.running} running, ${worker.queue} waiting` : "idle";
    setText(words, [worker.why, work, worker.reach].filter(Boolean).join("; "));
    held.hidden = !worker.still_held.length;
    setText(held, worker.still_held.join("\n"));
    replaceChanged(live, JSON.stringify(worker.reading), worker.reading && reading(worker.reading));
    buttons.resume.hidden = worker.state !== "draining";
    buttons.pause.hidden = buttons.drain.hidden = worker.state === "draining";
    buttons.reset.hidden = worker.state !== "faulty";
    const sign = JSON.stringify(worker.jobs.map((job) => ({ ...job, since_s: Math.round(job.since_s) })));
    const rows = worker.jobs.map((job) => [job.task, job.model, job.mine ? "this home" : shortId(job.principal), job.team, job.priority, job.phase && job.state === "running" ? `${job.state}, ${job.phase}` : job.state, duration(job.since_s)]);
    replaceChanged(jobs, sign, rows.length > 0 && section("Running and queued tasks", ["Task", "Model", "User", "Team", "Priority", "State", "For"], rows));
  }

  return { element, put };
}

function reading(now) {
  const late = now.age_s > LATE_S && h("p", { class: "warning" }, `read ${duration(now.age_s)} ago`);
  return [h("h3", {}, "Sensors"), sensors(now).map((group) => facts(group)), late];
}

// This home's gate, or those it joined by, and this home's worker with what its owner can say to it.

import { down } from "../app.js";
import { get, post } from "../api.js";
import { h, replace } from "../dom.js";
import { ask, badge, count, doing, duration, every, facts, region, setText, size, tail } from "../widgets.js";

export const title = "Gate and worker";

const EVERY_S = 5;
const SELDOM = 11; // looks that are left out
const ADMITS = { open: "anybody", ticket: "members of its pools", list: "named peers" };

export async function show(main, parts, { signal }) {
  const gates = h("div", {}, h("p", { class: "quiet" }, "Asking …"));
  const worker = h("div", {}, h("p", { class: "quiet" }, "Asking …"));
  replace(main, h("h1", {}, "Gate and worker"), h("section", { "aria-label": "Gates" }, gates), h("section", { "aria-label": "Worker" }, h("h2", {}, "This home's worker"), worker));
  const before = new Map(); // gate -> how it stood last
  const cards = new Map(); // gate -> what shows it
  const own = workerPart();
  replace(worker, own.element);

  // what cannot be reached is told in the corner; anything else takes the page's place
  const quietly = (deed) => async () => {
    try {
      await deed();
      down(false);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status) throw error;
      down(true);
    }
  };
  const lookAtWorker = quietly(async () => own.put(await get("/api/v1/worker", signal)));
  let rest = 0;
  const lookAtGates = quietly(async () => {
    if (rest-- > 0) return;
    const told = await get("/api/v1/gate", signal);
    if (!told.gates.some((gate) => gate.status)) rest = SELDOM; // a gate that tells us nothing is not asked again and again
    for (const peer of cards.keys()) if (!told.gates.some((gate) => gate.peer === peer)) cards.delete(peer);
    for (const gate of told.gates) {
      if (!cards.has(gate.peer)) cards.set(gate.peer, gatePart(gate));
      cards.get(gate.peer).put(gate, before.get(gate.peer));
      before.set(gate.peer, gate.status || undefined);
    }
    const shown = told.gates.map((gate) => cards.get(gate.peer).element);
    const same = gates.children.length === shown.length && shown.every((one, index) => gates.children[index] === one);
    if (!shown.length) replace(gates, h("p", {}, "No gate is known here. Start one: ", h("code", {}, "sark-node gate"), ", or name one: ", h("code", {}, "sark-node serve --gate /ip4/…")));
    else if (!same) replace(gates, shown);
  });
  await Promise.all([every(EVERY_S, lookAtWorker, signal), every(EVERY_S, lookAtGates, signal)]);
}

// -- a gate -------------------------------------------------------------------------------------------------------------------

function gatePart(first) {
  const state = h("span");
  const body = h("div");
  const element = h("div", {}, h("div", { class: "line" }, h("h2", {}, first.own ? "This home's gate" : "Gate", " ", tail(first.peer)), state), body);
  return {
    element,
    put(gate, before) {
      const now = gate.status;
      replace(state, badge(!gate.reached ? "unreachable" : now?.draining ? "draining" : "active", !gate.reached ? "does not answer" : now?.draining ? "draining: accepts nothing new" : "up"));
      const where = ["Address", gate.addresses.map((address) => h("div", {}, h("code", {}, `${address}/p2p/${gate.peer}`)))];
      if (!now) {
        replace(body, facts([where]), gate.error && h("p", { class: "hint" }, `${gate.error}\n${gate.hint}`));
        return;
      }
      replace(body, status(now, before, where), counters(now), circuits(now), peers(now));
    },
  };
}

// What grew since the last look, for each second; null where it cannot be told.
function rate(now, before, name) {
  const seconds = before ? now.uptime_s - before.uptime_s : 0;
  return seconds < 0.2 || now[name] < before[name] ? null : (now[name] - before[name]) / seconds;
}

function status(now, before, where) {
  const bytes = rate(now, before, "relayed_bytes");
  const load = rate(now, before, "cpu_s");
  const caps = now.caps;
  return facts([
    where,
    ["Up for", duration(now.uptime_s)],
    ["Version", `${now.version}, start ${now.incarnation}`],
    ["Admits", ADMITS[now.admit] || now.admit],
    ["Peers", `${now.connected} connected`],
    ["Index", `${count(now.adverts, "device")}, ${count(now.shards, "shard")}, ${size(now.advert_bytes)}`],
    ["Reservations", caps ? `${now.reservations} of ${caps.reservations} held; ${now.reservations_made} made so far` : "no relay"],
    ["Circuits", caps && `${now.circuits} of ${caps.circuits}; ${now.circuits_begun} so far; each ${size(caps.circuit_bytes)}, ${duration(caps.circuit_s)} at most`],
    ["Relayed", caps && size(now.relayed_bytes) + (bytes ? `, ${size(Math.round(bytes))}/s now` : "") + (caps.bytes_per_s ? `, ${size(caps.bytes_per_s)}/s at most` : "")],
    ["Memory", size(now.memory_bytes)],
    ["Processor", `${now.cpu_s.toFixed(1)} s${load === null ? "" : `, ${(100 * load).toFixed(0)} % of a core now`}; loop ${(1000 * now.lag_s).toFixed(0)} ms late at worst`],
  ]);
}

function counters(now) {
  const lines = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1]).map(([what, many]) => h("tr", {}, h("th", { scope: "row" }, what), h("td", { class: "number" }, many)));
  const card = (heading, counts, none) =>
    h("div", { class: "card" }, h("h3", {}, heading), Object.keys(counts).length ? h("table", { "aria-label": heading }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Why"), h("th", { scope: "col", class: "number" }, "Times"))), h("tbody", {}, lines(counts))) : h("p", { class: "quiet" }, none));
  return h("div", { class: "cards" }, card("Refused", now.refused, "Nothing so far."), now.caps && card("Circuits that ended", now.circuits_ended, "None so far."));
}

function circuits(now) {
  if (!now.busiest.length) return null;
  const head = ["From", "To", "For", "Carried"];
  const rows = now.busiest.map((one) => [tail(one.source), tail(one.target), duration(one.seconds), size(one.bytes)]);
  return plain(`Circuits, busiest first (${now.circuits})`, head, rows);
}

function peers(now) {
  if (!now.peers.length) return null;
  const rows = now.peers.map((one) => [tail(one.peer), one.address ? h("code", {}, one.address) : "through a gate", one.reserved ? "yes" : ""]);
  return plain(`Peers (${now.connected})`, ["Peer", "Address", "Reservation"], rows);
}

function plain(heading, head, rows) {
  return [
    h("h3", {}, heading),
    region(heading, h("table", { "aria-label": heading }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell))))))),
  ];
}

// -- the worker ------------------------------------------------------------------------------------------------------------------

function workerPart() {
  const state = h("span");
  const words = h("span", { role: "status" });
  const none = h("p", { class: "hint", hidden: true });
  const held = h("p", { class: "hint", hidden: true });
  const jobs = h("div");
  const line = h("p", { class: "line" }, state, words);
  const now = h("input", { type: "checkbox" });
  const finish = h("input", { type: "checkbox" });
  const stop = () => h("p", {}, h("label", {}, now, " Stop what runs, too: its scheduler has it run elsewhere"));
  const rest = () => h("p", {}, h("label", {}, finish, " Run what waits here, too, instead of giving it back"));
  const deeds = {
    pause: ["Pause …", "Pause this worker?", "It takes no new work until told to resume, also over restarts. What runs goes on; what waits is given back.", [stop]],
    resume: ["Resume", null],
    drain: ["Drain …", "Drain this worker?", "It takes no new work, lets what runs end, hands over the results and leaves the swarm: its process ends.", [rest, stop]],
    reset: ["Examine now", null],
  };
  const buttons = Object.fromEntries(
    Object.entries(deeds).map(([action, [label, question, text, more]]) => {
      const button = h("button", { type: "button", class: action === "drain" ? "danger" : "plain", onclick: () => doing(button, () => say(action, question, text, more)) }, label);
      return [action, button];
    }),
  );
  const row = h("div", { class: "line", hidden: true }, Object.values(buttons));
  const element = h("div", {}, none, line, held, row, jobs);
  line.hidden = true;

  async function say(action, question, text, more) {
    now.checked = finish.checked = false;
    if (question && !(await ask({ title: question, text, action: action === "pause" ? "Pause it" : "Drain it", danger: action === "drain", more: more.map((make) => make()) }))) return;
    put(await post(`/api/v1/worker/${action}`, { now: now.checked, finish: action === "drain" && finish.checked }));
  }

  function put(here) {
    none.hidden = !here.error;
    setText(none, here.error ? `${here.error}; ${here.hint}` : "");
    line.hidden = row.hidden = jobs.hidden = Boolean(here.error);
    if (here.error) return;
    replace(state, badge(here.state));
    const work = here.running || here.queue ? `${here.running} running, ${here.queue} waiting` : "idle";
    setText(words, [here.why, work, here.reach].filter(Boolean).join("; "));
    held.hidden = !here.still_held.length;
    setText(held, here.still_held.join("\n"));
    buttons.resume.hidden = here.state !== "draining";
    buttons.pause.hidden = buttons.drain.hidden = here.state === "draining";
    buttons.reset.hidden = here.state !== "faulty";
    const sign = JSON.stringify(here.jobs.map((job) => ({ ...job, since_s: Math.round(job.since_s) })));
    if (jobs.dataset.sign === sign) return;
    jobs.dataset.sign = sign;
    const rows = here.jobs.map((job) => [job.task, job.model, job.mine ? "this home" : tail(job.principal), job.team, job.priority, job.phase && job.state === "running" ? `${job.state}, ${job.phase}` : job.state, duration(job.since_s)]);
    replace(jobs, rows.length > 0 && plain("Runs and tickets", ["Task", "Model", "For", "Team", "Priority", "State", "Since"], rows));
  }

  return { element, put };
}

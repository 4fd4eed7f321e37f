// The devices of the swarm, live: state, hardware, connection and current work.

import { setOffline } from "../app.js";
import { stream } from "../api.js";
import { h, replace } from "../dom.js";
import { bytes, count, percent, time } from "../format.js";
import { sensors } from "../sensors.js";
import { table } from "../table.js";
import { announce, badge, problem, setText, shortId, simulation } from "../widgets.js";

export const title = "Fleet";

const EXAMPLES = ["ram >= 8 GiB", "units has CPU (ONNX)", "arch == arm64"];

export async function show(main, parts, { signal, query }) {
  const where = query.getAll("where");
  const devices = table(
    [
      {
        name: "Device",
        head: true,
        value: (one) => one.name,
        sign: (one) => one.name + one.device + one.clash + one.unmet.join(),
        cell: (one) => [
          one.name,
          " ",
          one.simulated && [simulation(), " "],
          shortId(one.peer),
          h("div", { class: "small quiet id" }, one.device),
          one.clash && h("div", { class: "small" }, one.clash),
          one.unmet.length > 0 && h("ul", { class: "plain-list small" }, one.unmet.map((why) => h("li", {}, why))),
        ],
      },
      {
        name: "State",
        value: stateOf,
        sign: (one) => stateOf(one) + one.why + one.unreachable,
        cell: (one) => [badge(stateOf(one)), (one.why || one.unreachable) && h("div", { class: "small quiet" }, one.why || one.unreachable)],
      },
      {
        name: "Trust",
        value: (one) => (one.serves ? "serves you" : one.trust || ""),
        sign: (one) => `${one.trust} ${one.serves}`,
        cell: (one) => [one.serves ? "serves you, not trusted yet" : one.trust, one.serves && h("div", { class: "small" }, h("code", {}, `sark-node trust ${one.peer}`))],
      },
      {
        name: "Work",
        value: (one) => (one.running ?? -1) * 1000 + (one.queue ?? 0),
        sign: (one) => JSON.stringify([one.running, one.queue, one.tasks, one.reading]),
        cell: work,
      },
      {
        name: "Units",
        value: (one) => one.units.map((unit) => unit.unit).join(", "),
        cell: (one) => h("ul", { class: "chips" }, one.units.map((unit) => h("li", { title: unit.runtime }, unit.unit))),
      },
      { name: "System", value: (one) => [one.soc, one.os].filter(Boolean).join(", "), cell: (one) => [h("div", {}, one.soc || one.arch), h("div", { class: "small quiet" }, one.os)] },
      { name: "Cores", number: true, value: (one) => one.cores },
      { name: "RAM", number: true, value: (one) => one.ram, cell: (one) => bytes(one.ram) },
      {
        name: "Coverage",
        number: true,
        value: (one) => one.coverage?.share,
        sign: (one) => JSON.stringify(one.coverage),
        cell: (one) => one.coverage && [h("div", {}, percent(one.coverage.share)), h("div", { class: "small quiet" }, `${one.coverage.held} of ${one.coverage.sittings}`)],
      },
      { name: "Connection", value: (one) => one.path?.rtt_ms, sign: connection, cell: (one) => h("span", { class: one.via ? "relayed" : null }, connection(one)) },
      {
        name: "Warm models",
        value: (one) => one.warm.length,
        sign: (one) => JSON.stringify(one.warm),
        cell: (one) => one.warm.length > 0 && h("ul", { class: "chips" }, one.warm.map((model) => h("li", { title: model.sha256 }, model.name || `${model.sha256.slice(0, 10)}…`))),
      },
    ],
    { label: "Devices", key: (one) => one.peer, stack: true, empty: "No device has joined yet: sark-node join", rowClass: (one) => (one.fits ? "" : "dim") },
  );
  const headline = h("p", { class: "quiet" }, "Looking for devices …");
  const explained = h("pre", { hidden: true, tabindex: "0", role: "region", "aria-label": "Why devices match or not" });
  const wrong = h("div");
  replace(main, h("h1", {}, "Fleet"), form(where), headline, wrong, explained, devices.element, legend());
  devices.element.hidden = true;

  const search = new URLSearchParams(where.map((clause) => ["where", clause]));
  const take = (name, update) => {
    if (name === "problem") {
      replace(wrong, problem({ message: update.detail, hint: update.hint }));
      setText(headline, "Retrying …");
      return;
    }
    if (name !== "fleet") return;
    if (wrong.firstChild) replace(wrong);
    devices.element.hidden = false;
    if (update.whole) {
      devices.set(update.peers);
      announce(`${count(update.count, "device")}, ${update.fit} match`);
    } else {
      devices.drop(update.gone);
      devices.put(update.peers);
    }
    const hosts = new Set(devices.rows().map((one) => one.device)).size;
    const fits = where.length ? `, ${update.fit} ${update.fit === 1 ? "matches" : "match"}` : "";
    const subject = hosts === update.count ? count(update.count, "device") : `${count(update.count, "worker")} on ${count(hosts, "device")}`;
    const simulated = devices.rows().filter((one) => one.simulated).length;
    const note = simulated ? `, ${simulated === update.count ? "all" : simulated} simulated` : "";
    setText(headline, `${subject}${note}${fits}; updated ${new Date(update.at).toLocaleTimeString()}`);
    explained.hidden = !update.explain;
    setText(explained, update.explain);
  };
  try {
    await stream(`/api/v1/fleet?${search}`, take, setOffline, signal);
  } catch (error) {
    if (signal.aborted) return;
    if (error.status !== 422) throw error;
    replace(wrong, problem(error)); // an invalid clause: keep the form, so that the user can correct it
    headline.remove();
  }
}

function form(where) {
  const field = h("input", { name: "where", class: "grow", autocomplete: "off", spellcheck: "false", value: where.join("; "), placeholder: EXAMPLES[0], "aria-describedby": "clauses-help" });
  const go = (event) => {
    event.preventDefault();
    const clauses = field.value.split(";").map((text) => text.trim()).filter(Boolean);
    location.hash = `#/fleet${clauses.length ? `?${new URLSearchParams(clauses.map((clause) => ["where", clause]))}` : ""}`;
  };
  return h(
    "form",
    { onsubmit: go, role: "search", "aria-label": "Filter devices" },
    h("div", { class: "line" }, h("label", { class: "line grow" }, "Filter", field), h("button", {}, "Apply"), where.length > 0 && h("a", { href: "#/fleet" }, "Clear")),
    h("p", { id: "clauses-help", class: "hint small" }, "Clauses separated by ; that a device must all meet, such as ", EXAMPLES.map((text, index) => [index ? ", " : "", h("code", {}, text)])),
  );
}

function legend() {
  return h(
    "p",
    { class: "small quiet lead" },
    h("strong", {}, "Work"),
    ": while a device runs a task of this home, also the readings of its sensors, for the whole device. — marks a missing sensor. ",
    h("strong", {}, "Coverage"),
    ": how often the 95 % intervals of a device's results hold, by its own sittings. Results of the same measurement at least ten minutes apart are sittings; coverage counts those whose interval holds the median of the others. The target is 95 %. If fewer hold, one sitting says too little: use ",
    h("code", {}, "sittings: 3"),
    ". Empty: fewer than 5 sittings.",
  );
}

function stateOf(one) {
  return one.unreachable ? "unreachable" : one.state || "up";
}

function connection(one) {
  if (!one.path) return "";
  const route = one.path.direct ? "direct" : `via gate ${one.via}`;
  const ms = one.path.rtt_ms;
  return ms === null ? route : `${route}, ${time(ms, 2)}`;
}

function work(one) {
  if (one.running === null) return "";
  const waits = one.queue ? `, ${one.queue} waiting` : "";
  const words = one.running || one.queue ? `${one.running} running${waits}` : "idle";
  const links = one.tasks.map((task) =>
    h("li", {}, h("a", { href: `#/tasks/${encodeURIComponent(task.campaign)}/${task.n}`, title: `${task.model} × ${task.unit}` }, `${task.model}: ${task.phase || "waiting"}`)),
  );
  return [words, links.length > 0 && h("ul", { class: "plain-list small" }, links), one.reading && live(one.reading)];
}

function live(reading) {
  const late = reading.late && h("div", { class: "warning" }, `read at ${new Date(reading.at).toLocaleTimeString()}`);
  const parts = sensors(reading).map((group) => h("div", {}, group.map(([name, value]) => h("span", { class: "sensor" }, `${name} ${value}`))));
  return h("div", { class: "sensors small quiet" }, parts, late);
}

// The devices of the swarm, live: how each is, what it has, by which way it is reached, what it runs.

import { down } from "../app.js";
import { stream } from "../api.js";
import { h, replace } from "../dom.js";
import { announce, badge, count, problem, setText, simulation, size, table, tail } from "../widgets.js";

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
        sign: (one) => one.name + one.device + one.unmet.join(),
        cell: (one) => [
          one.name,
          " ",
          one.simulated && [simulation(), " "],
          tail(one.peer),
          h("div", { class: "small quiet id" }, one.device),
          one.unmet.length > 0 && h("ul", { class: "plain-list small" }, one.unmet.map((why) => h("li", {}, why))),
        ],
      },
      {
        name: "State",
        value: stands,
        sign: (one) => stands(one) + one.why + one.unreachable,
        cell: (one) => [badge(stands(one)), (one.why || one.unreachable) && h("div", { class: "small quiet" }, one.why || one.unreachable)],
      },
      {
        name: "Runs",
        value: (one) => (one.running ?? -1) * 1000 + (one.queue ?? 0),
        sign: (one) => JSON.stringify([one.running, one.queue, one.tasks]),
        cell: runs,
      },
      {
        name: "Units",
        value: (one) => one.units.map((unit) => unit.unit).join(", "),
        cell: (one) => h("ul", { class: "chips" }, one.units.map((unit) => h("li", { title: unit.runtime }, unit.unit))),
      },
      { name: "System", value: (one) => [one.soc, one.os].filter(Boolean).join(", "), cell: (one) => [h("div", {}, one.soc || one.arch), h("div", { class: "small quiet" }, one.os)] },
      { name: "Cores", number: true, value: (one) => one.cores },
      { name: "RAM", number: true, value: (one) => one.ram, cell: (one) => size(one.ram) },
      { name: "Path", value: (one) => one.path?.rtt_ms, sign: path, cell: (one) => h("span", { class: one.via ? "relayed" : null }, path(one)) },
      {
        name: "Warm models",
        value: (one) => one.warm.length,
        sign: (one) => JSON.stringify(one.warm),
        cell: (one) => one.warm.length > 0 && h("ul", { class: "chips" }, one.warm.map((model) => h("li", { title: model.sha256 }, model.name || `${model.sha256.slice(0, 10)}…`))),
      },
    ],
    { label: "Devices", key: (one) => one.peer, stack: true, empty: "No device has joined yet: sark-node join", rowClass: (one) => (one.fits ? "" : "dim") },
  );
  const headline = h("p", { class: "quiet" }, "Looking around …");
  const explained = h("pre", { hidden: true, tabindex: "0", role: "region", "aria-label": "Why devices fit or not" });
  const wrong = h("div");
  replace(main, h("h1", {}, "Fleet"), form(where), headline, wrong, explained, devices.element);
  devices.element.hidden = true;

  const search = new URLSearchParams(where.map((clause) => ["where", clause]));
  const take = (name, told) => {
    if (name === "problem") {
      replace(wrong, problem({ message: told.detail, hint: told.hint }));
      setText(headline, "Trying again …");
      return;
    }
    if (name !== "fleet") return;
    if (wrong.firstChild) replace(wrong);
    devices.element.hidden = false;
    if (told.whole) {
      devices.set(told.peers);
      announce(`${count(told.count, "device")}, ${told.fit} fit`);
    } else {
      devices.drop(told.gone);
      devices.put(told.peers);
    }
    const hosts = new Set(devices.rows().map((one) => one.device)).size;
    const fits = where.length ? `, ${told.fit} ${told.fit === 1 ? "fits" : "fit"}` : "";
    const who = hosts === told.count ? count(told.count, "device") : `${count(told.count, "worker")} on ${count(hosts, "device")}`;
    const pretend = devices.rows().filter((one) => one.simulated).length;
    const not = pretend ? `, ${pretend === told.count ? "all" : pretend} of them ${pretend === 1 ? "a simulation that is" : "simulations that are"} not there` : "";
    setText(headline, `${who}${not}${fits}; looked at ${new Date(told.at).toLocaleTimeString()}`);
    explained.hidden = !told.explain;
    setText(explained, told.explain);
  };
  try {
    await stream(`/api/v1/fleet?${search}`, take, down, signal);
  } catch (error) {
    if (signal.aborted) return;
    if (error.status !== 422) throw error;
    replace(wrong, problem(error)); // a clause that cannot be read: the form is there to mend it
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
    { onsubmit: go, role: "search", "aria-label": "Which devices" },
    h("div", { class: "line" }, h("label", { class: "line grow" }, "Clauses", field), h("button", {}, "Show what fits"), where.length > 0 && h("a", { href: "#/fleet" }, "Clear")),
    h("p", { id: "clauses-help", class: "hint small" }, "All of them, separated by ; such as ", EXAMPLES.map((text, index) => [index ? ", " : "", h("code", {}, text)])),
  );
}

function stands(one) {
  return one.unreachable ? "unreachable" : one.state || "up";
}

function path(one) {
  if (!one.path) return "";
  const way = one.path.direct ? "direct" : `via gate ${one.via}`;
  const ms = one.path.rtt_ms;
  return ms === null ? way : `${way}, ${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
}

function runs(one) {
  if (one.running === null) return "";
  const waits = one.queue ? `, ${one.queue} waiting` : "";
  const words = one.running || one.queue ? `${one.running} running${waits}` : "idle";
  const ours = one.tasks.map((task) =>
    h("li", {}, h("a", { href: `#/tasks/${encodeURIComponent(task.campaign)}/${task.n}`, title: `${task.model} × ${task.unit}` }, `${task.model}: ${task.phase || "has a place"}`)),
  );
  return [words, ours.length > 0 && h("ul", { class: "plain-list small" }, ours)];
}

// The form next to a campaign's text: the keys that most campaigns need, with the values that the fleet offers. It has no state of its own:
// it is filled from the text, and writes each change into the text.

import { get, send } from "./api.js";
import { h, replace, replaceChanged } from "./dom.js";
import { bytes, count } from "./format.js";

// edit(change): change(values) returns the top keys to write. Returns { element, fill(values, editable), offer(signal) }.
export function campaignForm({ edit }) {
  const busy = h("p", { role: "status", class: "quiet" });
  const parts = [modelsPart(edit, busy), unitsPart(edit), devicesPart(edit), measurePart(edit)];
  const name = h("input", { id: "f-name", onchange: (event) => edit(() => ({ campaign: event.target.value.trim() || undefined })) });
  const locked = h("p", { class: "quiet" });
  const all = h("fieldset", { class: "bare" }, h("legend", { class: "hidden" }, "The campaign"), h("p", {}, h("label", { for: "f-name" }, "Name "), name), parts.map((part) => part.element));
  const offered = { models: [], units: [], formats: null, peers: null, error: "" };
  let values = {};
  const fillParts = () => {
    for (const part of parts) part.fill(values, offered);
  };
  return {
    element: h("section", { "aria-labelledby": "form-head", class: "campaignform" }, h("h2", { id: "form-head" }, "Form"), locked, busy, all),
    // `formats`: formats of the models' files, if all are known; `editable`: the text has the form that this form writes
    fill(given, formats, editable) {
      const reason = !given ? "The text has errors: correct it there first." : "jobs" in given ? "The text uses model_url and jobs, which the form cannot edit." : editable ? "" : "The text is JSON, which the form cannot edit.";
      all.disabled = reason !== "";
      locked.textContent = reason;
      if (reason) return;
      values = given;
      offered.formats = formats;
      show(name, typeof given.campaign === "string" ? given.campaign : "");
      fillParts();
    },
    async offer(signal) {
      const load = async (path, take) => {
        try {
          take(await get(path, signal));
        } catch (error) {
          if (path.includes("/peers")) offered.error = `${error.message}. ${error.hint ?? ""}`;
        }
        if (!signal.aborted) fillParts();
      };
      await Promise.all([
        load("/api/v1/models?limit=200", ({ models }) => (offered.models = models)),
        load("/api/v1/units", ({ units }) => (offered.units = units)),
        load("/api/v1/peers?limit=1000", ({ peers }) => (offered.peers = peers)),
      ]);
    },
  };
}

const tree = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
const list = (value) => (Array.isArray(value) ? value : value === undefined || value === null ? [] : [value]);

// The value of a top key with some keys changed; undefined removes a key, and also the top key if it is then empty.
function changed(given, more) {
  const whole = { ...tree(given), ...more };
  for (const key of Object.keys(whole)) if (whole[key] === undefined) delete whole[key];
  return Object.keys(whole).length ? whole : undefined;
}

// Shows a value, unless the user is typing in the field.
function show(input, value) {
  if (document.activeElement !== input) input.value = value;
}

function small(label, onclick, title = null) {
  return h("button", { type: "button", class: "plain small", "aria-label": title, onclick }, label);
}

// -- models -----------------------------------------------------------------------------------------------------------------------------

function modelsPart(edit, busy) {
  const shown = h("ul", { class: "plainlist" });
  const uploaded = h("select", { id: "f-uploaded", onchange: () => uploaded.value && add(JSON.parse(uploaded.value)).then(() => (uploaded.value = "")) });
  const url = h("input", { id: "f-url", type: "text", inputmode: "url", placeholder: "https://… or hf://ORG/REPO/FILE", autocomplete: "off" });
  const file = h("input", { id: "f-file", type: "file" });
  const choice = h("p", { hidden: true }, h("label", { for: "f-uploaded" }, "Uploaded models "), uploaded);
  const add = (entry) => edit((given) => ({ models: [...list(given.models), entry] }));
  const take = async () => {
    if (!url.value.trim()) return;
    await add(url.value.trim());
    url.value = "";
  };
  url.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    take();
  });
  file.addEventListener("change", async () => {
    const [one] = file.files;
    if (!one) return;
    replace(busy, `Uploading ${one.name} (${bytes(one.size)}) …`);
    try {
      const { sha256, name } = await send(`/api/v1/models?name=${encodeURIComponent(one.name)}`, one, "application/octet-stream");
      await add({ name, path: `sha256:${sha256}` });
      replace(busy, `${one.name} is uploaded.`);
    } catch (error) {
      replace(busy, `${one.name} could not be uploaded: ${error.message}. ${error.hint ?? ""}`);
    }
    file.value = "";
  });
  return {
    element: h(
      "fieldset",
      {},
      h("legend", {}, "Models"),
      shown,
      h("p", {}, h("label", { for: "f-file" }, "Upload a file "), file),
      h("p", {}, h("label", { for: "f-url" }, "or add a URL "), url, " ", h("button", { type: "button", class: "plain", onclick: take }, "Add")),
      choice,
    ),
    fill(given, offered) {
      const models = list(given.models);
      const remove = (at) => () => edit((values) => ({ models: list(values.models).filter((_, other) => other !== at) }));
      replace(shown, models.map((entry, at) => h("li", {}, named(entry), " ", small("Remove", remove(at), `Remove ${named(entry)}`))), !models.length && h("li", { class: "quiet" }, "None yet."));
      choice.hidden = !offered.models.length;
      const option = (one) => h("option", { value: JSON.stringify({ name: one.name, path: `sha256:${one.sha256}` }) }, `${one.name} (${bytes(one.size)}, ${one.sha256.slice(0, 8)}…)`);
      replaceChanged(uploaded, JSON.stringify(offered.models), h("option", { value: "" }, "–"), offered.models.map(option));
    },
  };
}

function named(entry) {
  if (typeof entry === "string") return entry;
  const { name, path, url, package: from, variant, variants, files } = tree(entry);
  const forms = [...Object.keys(tree(variants)), ...Object.keys(tree(files))].join(", ") || variant;
  return `${String(name ?? (from ? `${from}: ${path}` : path ?? url) ?? JSON.stringify(entry))}${forms ? ` (${forms})` : ""}`;
}

// -- units ------------------------------------------------------------------------------------------------------------------------------

function unitsPart(edit) {
  const offers = h("div", {}, h("p", { class: "quiet" }, "Loading the devices' units …"));
  const others = h("div", {});
  const more = h("details", {}, h("summary", {}, "Units that no device has"), others);
  const turn = (unit, on) => edit((given) => ({ units: on ? [...list(given.units), unit] : list(given.units).filter((one) => one !== unit) }));
  return {
    element: h("fieldset", {}, h("legend", {}, "Compute units"), offers, more),
    fill(given, { units, formats, peers }) {
      const chosen = list(given.units).map(String);
      const devices = new Map(); // unit -> ids of the devices that have it
      const known = new Map(units.map((one) => [one.unit, one.formats])); // unit -> formats; null: not known
      const runs = new Map(known);
      for (const peer of peers ?? []) {
        for (const one of peer.units) {
          devices.set(one.unit, (devices.get(one.unit) ?? new Set()).add(peer.device));
          const plain = one.unit.replace(/^(GPU|TensorRT) \d+ /, "$1 "); // one of several GPUs
          const others = runs.get(one.unit);
          if (known.has(plain)) runs.set(one.unit, known.get(plain));
          else runs.set(one.unit, one.formats && others !== null ? [...new Set([...(others ?? []), ...one.formats])] : null);
        }
      }
      const all = [...new Set([...runs.keys(), ...chosen])];
      const offered = all.filter((unit) => devices.has(unit) || (!devices.size && chosen.includes(unit)));
      const rest = all.filter((unit) => !offered.includes(unit));
      // why a unit can measure none of the models; empty: it may be able to measure one
      const unfit = (unit) => {
        const taken = runs.get(unit);
        return !formats || !taken || formats.some((form) => taken.includes(form)) ? "" : `runs ${words(taken)}, not ${words(formats)}`;
      };
      const box = (unit) =>
        h(
          "label",
          { class: unfit(unit) ? "check unfit" : "check" },
          h("input", { type: "checkbox", value: unit, onchange: (event) => turn(unit, event.target.checked) }),
          ` ${unit} `,
          h("span", { class: "quiet" }, [devices.has(unit) && count(devices.get(unit).size, "device"), unfit(unit)].filter(Boolean).join("; ")),
        );
      const sign = JSON.stringify([all.map((unit) => [unit, unfit(unit)]), offered.map((unit) => [unit, devices.get(unit)?.size])]);
      if (replaceChanged(offers, sign, offered.map(box), !offered.length && h("p", { class: "quiet" }, "No devices yet."))) {
        replace(others, rest.map(box));
        if (chosen.some((unit) => rest.includes(unit))) more.open = true;
      }
      for (const one of more.parentElement.querySelectorAll("input")) {
        one.checked = chosen.includes(one.value);
        one.disabled = !one.checked && unfit(one.value) !== ""; // one that is chosen can be unchecked
      }
    },
  };
}

const words = (forms) => (forms.length > 1 ? `${forms.slice(0, -1).join(", ")} and ${forms.at(-1)}` : forms[0]);

// -- devices ----------------------------------------------------------------------------------------------------------------------------

function devicesPart(edit) {
  const where = h("textarea", { id: "f-where", rows: "3", spellcheck: "false", placeholder: "ram >= 8 GiB\nsoc ~ \"Apple M*\"", "aria-describedby": "f-where-help" });
  const spread = h("select", { id: "f-spread" }, [["device", "every matching device"], ["class", "one device of each class"], ["any", "any matching device for each task"], ["worker", "every worker, even several on one machine"]].map(([value, text]) => h("option", { value }, text)));
  const table = h("div", { class: "quiet" }, "Looking for devices …");
  const clauses = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
  const write = (more) => edit((given) => ({ devices: changed(given.devices, more(tree(given.devices))) }));
  where.addEventListener("change", () => write(() => ({ where: clauses(where.value).length ? clauses(where.value) : undefined })));
  spread.addEventListener("change", () => write((now) => ({ spread: spread.value === "device" ? undefined : spread.value, limit: spread.value === "any" ? undefined : now.limit })));
  const only = (peer) => write((now) => ({ where: [...list(now.where).filter((clause) => !/^name\s/.test(String(clause))), `name == ${/^[\w.-]+$/.test(peer.name) ? peer.name : JSON.stringify(peer.name)}`] }));
  const line = (peer) => h("li", {}, `${peer.name} · ${[peer.soc, peer.ram && bytes(peer.ram), peer.state].filter(Boolean).join(" · ")} `, small("Only this one", () => only(peer), `Only ${peer.name}`));
  return {
    element: h(
      "fieldset",
      {},
      h("legend", {}, "Devices"),
      h("p", {}, h("label", { for: "f-where" }, "Requirements, one on each line"), where),
      h("p", { id: "f-where-help", class: "quiet" }, "Write attribute, operator, value. Attributes: ram, cores, soc, os, arch, gpu, vram, name, label.…"),
      h("p", {}, h("label", { for: "f-spread" }, "On "), spread),
      table,
    ),
    fill(given, { peers, error }) {
      const devices = tree(given.devices);
      show(where, list(devices.where).join("\n"));
      spread.value = ["class", "any", "worker"].includes(devices.spread) ? devices.spread : !devices.spread && given.replicas > 1 ? "any" : "device";
      if (!peers && !error) return;
      table.classList.toggle("quiet", !peers?.length);
      const view = peers?.length ? h("details", {}, h("summary", {}, count(peers.length, "worker")), h("ul", { class: "plainlist" }, peers.slice(0, 100).map(line))) : peers ? "No device has joined yet: sark-node join" : `The devices cannot be reached: ${error}`;
      replaceChanged(table, JSON.stringify([peers, error]), view);
    },
  };
}

// -- measuring --------------------------------------------------------------------------------------------------------------------------

function measurePart(edit) {
  const number = (text) => (text.trim() === "" ? undefined : Number(text));
  const entries = (text) => {
    const all = text.split(",").map((one) => one.trim()).filter(Boolean).map((one) => (/^\d+$/.test(one) ? Number(one) : one));
    return all.length ? all : undefined;
  };
  const write = (more) => edit((given) => ({ measure: changed(given.measure, more) }));
  const exact = { runs: undefined, loads: undefined };
  const input = (id, attributes, take) => h("input", { id: `f-${id}`, ...attributes, onchange: (event) => take(event.target.value) });
  const amount = (id, max, take) => input(id, { type: "number", min: id === "priority" ? "0" : "1", max }, (text) => take(number(text)));
  const runs = amount("runs", "1000000", (value) => write({ runs: value, precision: undefined }));
  const loads = amount("loads", "100", (value) => write({ loads: value, precision: undefined }));
  const precision = input("precision", { placeholder: "2%", size: "6" }, (text) => write({ ...exact, precision: text.trim() || undefined }));
  const threads = input("threads", { placeholder: "physical, 1, 4" }, (text) => write({ threads: entries(text) }));
  const batch = input("batch", { placeholder: "1, 8, 32", "aria-describedby": "f-batch-help" }, (text) => write({ batch: entries(text) }));
  const checks = h("input", { id: "f-check", type: "checkbox", onchange: () => write({ check: checks.checked ? undefined : "none" }) });
  const replicas = amount("replicas", "16", (value) => edit(() => ({ replicas: value })));
  const priority = amount("priority", "100", (value) => edit(() => ({ priority: value })));
  const turn = (value) => write(value === "precision" ? { ...exact, precision: precision.value || "2%" } : { precision: undefined, runs: number(runs.value) ?? 100, loads: number(loads.value) ?? 6 });
  const modes = ["runs", "precision"].map((value) => h("input", { type: "radio", name: "f-mode", value, onchange: () => turn(value) }));
  const fields = (...parts) => h("div", { class: "fields" }, parts);
  const label = (one, text) => h("label", { for: one.id }, text);
  return {
    element: h(
      "fieldset",
      {},
      h("legend", {}, "Measurement"),
      fields(h("label", { class: "check" }, modes[0], " fixed number of"), label(runs, "inferences"), runs, label(loads, "in launches"), loads),
      fields(h("label", { class: "check" }, modes[1], " until the median is known to"), label(precision, "±"), precision),
      fields(label(threads, "Threads, one task each"), threads),
      fields(label(batch, "Batch sizes, one task each"), batch),
      h("p", { id: "f-batch-help", class: "quiet" }, "For models with a dynamic first dimension. Empty: the model's own."),
      fields(h("label", { class: "check" }, checks, " Compare the outputs with a reference")),
      fields(label(replicas, "Replicas"), replicas, label(priority, "Priority"), priority),
    ),
    fill(given) {
      const measure = tree(given.measure);
      const precise = "precision" in measure;
      for (const mode of modes) mode.checked = (mode.value === "precision") === precise;
      runs.disabled = loads.disabled = precise;
      precision.disabled = !precise;
      show(runs, precise ? "" : (measure.runs ?? 100));
      show(loads, precise ? "" : (measure.loads ?? 6));
      show(precision, measure.precision ?? "");
      show(threads, list(measure.threads).join(", "));
      show(batch, list(measure.batch).join(", "));
      checks.checked = measure.check !== "none";
      show(replicas, given.replicas ?? 1);
      show(priority, given.priority ?? 50);
    },
  };
}

// The form next to a campaign's text: what most campaigns need, with what the fleet offers. It has no state of its own: it is filled from
// the text, and each change is written into the text.

import { get, send } from "./api.js";
import { h, replace } from "./dom.js";
import { bytes, count } from "./format.js";

// edit(change): change(values) gives the top keys to write. Gives { element, fill(values, editable), offer(signal) }.
export function campaignForm({ edit }) {
  const busy = h("p", { role: "status", class: "quiet" });
  const parts = { models: modelsPart(edit, busy), units: unitsPart(edit), devices: devicesPart(edit), measure: measurePart(edit) };
  const name = h("input", { id: "f-name", onchange: (event) => edit(() => ({ campaign: event.target.value.trim() || undefined })) });
  const locked = h("p", { class: "quiet" });
  const all = h(
    "fieldset",
    { class: "bare" },
    h("legend", { class: "hidden" }, "The campaign"),
    h("p", {}, h("label", { for: "f-name" }, "Name "), name),
    Object.values(parts).map((part) => part.element),
  );
  return {
    element: h("section", { "aria-labelledby": "form-head", class: "campaignform" }, h("h2", { id: "form-head" }, "Form"), locked, busy, all),
    // `editable`: the text is written as the form writes it
    fill(given, editable) {
      const reason = !given ? "The text has errors: correct it there first." : "jobs" in given ? "The text uses model_url and jobs, which the form cannot edit." : editable ? "" : "The text is JSON, which the form cannot edit.";
      all.disabled = reason !== "";
      locked.textContent = reason;
      if (reason) return;
      if (document.activeElement !== name) name.value = typeof given.campaign === "string" ? given.campaign : "";
      for (const part of Object.values(parts)) part.fill(given);
    },
    async offer(signal) {
      await Promise.allSettled([parts.models.offer(signal), parts.units.offer(signal), offerDevices(parts, signal)]);
    },
  };
}

async function offerDevices(parts, signal) {
  try {
    const { peers } = await get("/api/v1/peers?limit=1000", signal);
    parts.units.devices(peers);
    parts.devices.devices(peers);
  } catch (error) {
    if (!signal.aborted) parts.devices.none(`${error.message}. ${error.hint ?? ""}`);
  }
}

const tree = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
const list = (value) => (Array.isArray(value) ? value : value === undefined || value === null ? [] : [value]);

// The value of a top key with some keys changed; undefined removes a key, and the top key when it is empty.
function changed(given, more) {
  const whole = { ...tree(given), ...more };
  for (const key of Object.keys(whole)) if (whole[key] === undefined) delete whole[key];
  return Object.keys(whole).length ? whole : undefined;
}

// -- models -----------------------------------------------------------------------------------------------------------------------------

function modelsPart(edit, busy) {
  const shown = h("ul", { class: "plainlist" });
  const uploaded = h("select", { id: "f-kept", onchange: () => uploaded.value && add(JSON.parse(uploaded.value)).then(() => (uploaded.value = "")) });
  const url = h("input", { id: "f-url", type: "text", inputmode: "url", placeholder: "https://… or hf://ORG/REPO/FILE", autocomplete: "off" });
  const file = h("input", { id: "f-file", type: "file" });
  const choice = h("p", { hidden: true }, h("label", { for: "f-kept" }, "Uploaded models "), uploaded);
  const add = (entry) => edit((given) => ({ models: [...list(given.models), entry] }));
  const take = async () => {
    const text = url.value.trim();
    if (!text) return;
    await add(text);
    url.value = "";
  };
  url.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      take();
    }
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
    fill(given) {
      const models = list(given.models);
      replace(
        shown,
        models.map((entry, at) =>
          h("li", {}, named(entry), " ", h("button", { type: "button", class: "plain small", "aria-label": `Remove ${named(entry)}`, onclick: () => edit((now) => ({ models: list(now.models).filter((_, other) => other !== at) })) }, "Remove")),
        ),
        !models.length && h("li", { class: "quiet" }, "None yet."),
      );
    },
    async offer(signal) {
      const { models } = await get("/api/v1/models?limit=200", signal);
      choice.hidden = !models.length;
      replace(uploaded, h("option", { value: "" }, "–"), models.map((one) => h("option", { value: JSON.stringify({ name: one.name, path: `sha256:${one.sha256}` }) }, `${one.name} (${bytes(one.size)}, ${one.sha256.slice(0, 8)}…)`)));
    },
  };
}

function named(entry) {
  if (typeof entry === "string") return entry;
  const { name, path, url, package: from, variant, variants } = tree(entry);
  const forms = Object.keys(tree(variants)).join(", ") || variant;
  return `${String(name ?? (from ? `${from}: ${path}` : path ?? url) ?? JSON.stringify(entry))}${forms ? ` (${forms})` : ""}`;
}

// -- units ------------------------------------------------------------------------------------------------------------------------------

function unitsPart(edit) {
  const here = h("div", {}, h("p", { class: "quiet" }, "Loading the devices' units …"));
  const elsewhere = h("div", {});
  const more = h("details", {}, h("summary", {}, "Units that no device has"), elsewhere);
  let [known, there, chosen, state] = [[], new Map(), [], ""];
  const draw = () => {
    const all = [...new Set([...known, ...there.keys(), ...chosen])];
    const offered = all.filter((unit) => there.has(unit) || (!there.size && chosen.includes(unit)));
    const now = JSON.stringify([all, offered, [...there].map(([unit, ids]) => [unit, ids.size])]);
    if (now !== state) {
      state = now;
      const box = (unit) => h("label", { class: "check" }, h("input", { type: "checkbox", value: unit, onchange: (event) => turn(unit, event.target.checked) }), ` ${unit} `, h("span", { class: "quiet" }, there.has(unit) ? count(there.get(unit).size, "device") : ""));
      replace(here, offered.map(box), !offered.length && h("p", { class: "quiet" }, "No devices yet."));
      replace(elsewhere, all.filter((unit) => !offered.includes(unit)).map(box));
      if (chosen.some((unit) => !offered.includes(unit))) more.open = true;
    }
    for (const one of [...here.querySelectorAll("input"), ...elsewhere.querySelectorAll("input")]) one.checked = chosen.includes(one.value);
  };
  const turn = (unit, on) => edit((given) => ({ units: on ? [...list(given.units), unit] : list(given.units).filter((one) => one !== unit) }));
  return {
    element: h("fieldset", {}, h("legend", {}, "Compute units"), here, more),
    fill(given) {
      chosen = list(given.units).map(String);
      draw();
    },
    devices(peers) {
      there = new Map();
      for (const peer of peers) {
        for (const unit of peer.units) {
          const name = unit.unit ?? unit;
          there.set(name, (there.get(name) ?? new Set()).add(peer.device));
        }
      }
      draw();
    },
    async offer(signal) {
      const schema = await get("/api/v1/campaign-schema", signal);
      const items = schema.$defs?.Campaign?.properties?.units?.items?.anyOf ?? [];
      known = items.flatMap((one) => one.enum ?? []);
      draw();
    },
  };
}

// -- devices ----------------------------------------------------------------------------------------------------------------------------

function devicesPart(edit) {
  const where = h("textarea", { id: "f-where", rows: "3", spellcheck: "false", placeholder: "ram >= 8 GiB\nsoc ~ \"Apple M*\"", "aria-describedby": "f-where-help" });
  const spread = h("select", { id: "f-spread" }, [["any", "any matching device for each task"], ["class", "one device of each class"], ["device", "every matching device"]].map(([value, text]) => h("option", { value }, text)));
  const table = h("div", { class: "quiet" }, "Looking for devices …");
  const clauses = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
  const write = (more) => edit((given) => ({ devices: changed(given.devices, more(tree(given.devices))) }));
  where.addEventListener("change", () => write(() => ({ where: clauses(where.value).length ? clauses(where.value) : undefined })));
  spread.addEventListener("change", () => write((now) => ({ spread: spread.value === "any" ? undefined : spread.value, limit: spread.value === "any" ? undefined : now.limit })));
  const only = (peer) => write((now) => ({ where: [...list(now.where).filter((clause) => !/^name\s/.test(String(clause))), `name == ${/^[\w.-]+$/.test(peer.name) ? peer.name : JSON.stringify(peer.name)}`] }));
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
    fill(given) {
      const devices = tree(given.devices);
      if (document.activeElement !== where) where.value = list(devices.where).join("\n");
      spread.value = ["class", "device"].includes(devices.spread) ? devices.spread : "any";
    },
    devices(peers) {
      table.classList.remove("quiet");
      replace(
        table,
        peers.length
          ? h("details", {}, h("summary", {}, count(peers.length, "worker")), h("ul", { class: "plainlist" }, peers.slice(0, 100).map((peer) => h("li", {}, `${peer.name} · ${[peer.soc, peer.ram && bytes(peer.ram), peer.state].filter(Boolean).join(" · ")} `, h("button", { type: "button", class: "plain small", "aria-label": `Only ${peer.name}`, onclick: () => only(peer) }, "Only this one")))))
          : h("p", { class: "quiet" }, "No device has joined yet: sark-node join"),
      );
    },
    none(why) {
      replace(table, `The devices cannot be reached: ${why}`);
    },
  };
}

// -- measuring --------------------------------------------------------------------------------------------------------------------------

function measurePart(edit) {
  const mode = (value, words) => h("label", { class: "check" }, h("input", { type: "radio", name: "f-mode", value, onchange: () => turn(value) }), ` ${words}`);
  const runs = h("input", { id: "f-runs", type: "number", min: "1", max: "1000000" });
  const loads = h("input", { id: "f-loads", type: "number", min: "1", max: "100" });
  const precision = h("input", { id: "f-precision", placeholder: "2%", size: "6" });
  const threads = h("input", { id: "f-threads", placeholder: "physical, 1, 4" });
  const batch = h("input", { id: "f-batch", placeholder: "1, 8, 32", "aria-describedby": "f-batch-help" });
  const checks = h("input", { id: "f-check", type: "checkbox" });
  const replicas = h("input", { id: "f-replicas", type: "number", min: "1", max: "16" });
  const priority = h("input", { id: "f-priority", type: "number", min: "0", max: "100" });
  const number = (text) => (text.trim() === "" ? undefined : Number(text));
  const write = (more) => edit((given) => ({ measure: changed(given.measure, more) }));
  const turn = (value) => write(value === "precision" ? { precision: precision.value || "2%", runs: undefined, loads: undefined } : { precision: undefined, runs: number(runs.value) ?? 100, loads: number(loads.value) ?? 6 });
  runs.addEventListener("change", () => write({ runs: number(runs.value), precision: undefined }));
  loads.addEventListener("change", () => write({ loads: number(loads.value), precision: undefined }));
  precision.addEventListener("change", () => write({ precision: precision.value.trim() || undefined, runs: undefined, loads: undefined }));
  const entries = (input) => {
    const all = input.value.split(",").map((one) => one.trim()).filter(Boolean).map((one) => (/^\d+$/.test(one) ? Number(one) : one));
    return all.length ? all : undefined;
  };
  threads.addEventListener("change", () => write({ threads: entries(threads) }));
  batch.addEventListener("change", () => write({ batch: entries(batch) }));
  checks.addEventListener("change", () => write({ check: checks.checked ? undefined : "none" }));
  replicas.addEventListener("change", () => edit(() => ({ replicas: number(replicas.value) })));
  priority.addEventListener("change", () => edit(() => ({ priority: number(priority.value) })));
  const modes = [mode("runs", "fixed number of"), mode("precision", "until the median is known to")];
  const set = (input, value) => {
    if (document.activeElement !== input) input.value = value;
  };
  return {
    element: h(
      "fieldset",
      {},
      h("legend", {}, "Measurement"),
      h("div", { class: "fields" }, modes[0], h("label", { for: "f-runs" }, "inferences"), runs, h("label", { for: "f-loads" }, "in launches"), loads),
      h("div", { class: "fields" }, modes[1], h("label", { for: "f-precision" }, "±"), precision),
      h("div", { class: "fields" }, h("label", { for: "f-threads" }, "Threads, one task each"), threads),
      h("div", { class: "fields" }, h("label", { for: "f-batch" }, "Batch sizes, one task each"), batch),
      h("p", { id: "f-batch-help", class: "quiet" }, "For models with a dynamic first dimension. Empty: the model's own."),
      h("div", { class: "fields" }, h("label", { class: "check" }, checks, " Compare the outputs with a reference")),
      h("div", { class: "fields" }, h("label", { for: "f-replicas" }, "Replicas"), replicas, h("label", { for: "f-priority" }, "Priority"), priority),
    ),
    fill(given) {
      const measure = tree(given.measure);
      const exact = "precision" in measure;
      for (const one of modes) {
        const input = one.querySelector("input");
        input.checked = (input.value === "precision") === exact;
      }
      runs.disabled = loads.disabled = exact;
      precision.disabled = !exact;
      set(runs, exact ? "" : (measure.runs ?? 100));
      set(loads, exact ? "" : (measure.loads ?? 6));
      set(precision, measure.precision ?? "");
      set(threads, list(measure.threads).join(", "));
      set(batch, list(measure.batch).join(", "));
      checks.checked = measure.check !== "none";
      set(replicas, given.replicas ?? 1);
      set(priority, given.priority ?? 50);
    },
  };
}

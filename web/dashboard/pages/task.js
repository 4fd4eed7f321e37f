// One task: what came out, how sure that is and why, every sample it was made from, and how anyone can check it.

import { get, save, stream } from "../api.js";
import { bytes, digits, lines, percent, plainTable, scrolled, seconds, time, whole } from "../charts.js";
import { h, replace } from "../dom.js";
import { histogram, steps, strip, timeline, trace } from "../plots.js";
import { on, simulation, SIMULATED } from "../widgets.js";

export const title = "Task";

const POINTS = 4000;
const ENDED = new Set(["succeeded", "failed", "cancelled"]);

export async function show(main, [campaign, n], { signal }) {
  const path = `/api/v1/campaigns/${encodeURIComponent(campaign)}/tasks/${encodeURIComponent(n)}`;
  const draw = async () => {
    const told = await get(path, signal);
    const pictures = h("div", {}, told.record && !told.unreadable && h("p", { class: "quiet" }, "Loading the samples …"));
    replace(main, page(path, told, pictures));
    if (told.record && !told.unreadable) pictured(path, told, pictures, signal);
    document.title = `${told.task.model} × ${told.task.unit} · Sark`;
    return told;
  };
  const told = await draw();
  if (!ENDED.has(told.task.state)) follow(main, campaign, told.task.n, draw, signal);
}

// The samples come by themselves: the numbers need not wait for the pictures.
async function pictured(path, told, place, signal) {
  try {
    const samples = await get(`${path}/samples?points=${POINTS}`, signal);
    replace(place, samples.count > 0 && distribution(told, samples), warmups(told, samples));
  } catch (error) {
    if (!signal.aborted) replace(place, h("p", { class: "wrong" }, `The samples cannot be shown: ${error.message}`));
  }
}

// While it is under way the page is drawn anew when something changes: its line in place, all of it once it has ended.
function follow(main, campaign, n, draw, signal) {
  const until = new AbortController();
  signal.addEventListener("abort", () => until.abort());
  const take = (name, value) => {
    if (name !== "task" || value.n !== n) return;
    const line = main.querySelector(".progress");
    if (line) line.textContent = progress(value);
    if (ENDED.has(value.state)) {
      until.abort();
      draw().catch(() => {});
    }
  };
  stream(`/api/v1/campaigns/${encodeURIComponent(campaign)}/events`, take, () => {}, until.signal).catch(() => {});
}

function progress(task) {
  return [task.progress, task.device && `on ${task.device}`].filter(Boolean).join(" · ");
}

function page(path, told, pictures) {
  const { task } = told;
  const [campaign] = task.task.split("/");
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Campaigns"), " / ", h("a", { href: `#/campaigns/${encodeURIComponent(campaign)}` }, told.campaign_name || campaign), ` / task ${task.n}`),
    h("h1", {}, `${task.model} × ${on(task.unit, task.threads, task.batch)}`),
    task.simulated && h("p", { class: "warning" }, SIMULATED),
    h("p", { class: "under" }, h("span", { class: `state ${task.state}` }, task.state), where(told), h("a", { href: `#/compare?a=${encodeURIComponent(task.task)}` }, "Compare with …")),
    headline(told),
    told.judgement && judgement(told.judgement),
    pictures,
    told.launches.length ? host(told) : null,
    told.row && measured(told),
    attempts(told),
    asked(told),
    told.row && result(told),
    told.record && verify(path, told),
  ];
}

function where({ task, record }) {
  const device = record?.device;
  const mark = task.simulated && [simulation(), " "];
  if (!device) return task.device ? h("span", {}, ` ${task.device} `, mark) : mark;
  return h("span", {}, ` ${[device.name, device.soc, device.ram && bytes(device.ram), device.os].filter(Boolean).join(" · ")} `, mark);
}

// -- what came out ------------------------------------------------------------------------------------------------------------------

function headline({ task, row, judgement: judged, unreadable }) {
  if (!row) return h("p", { class: "headline progress", role: "status" }, progress(task));
  if (row.Status !== "Complete") {
    const [first, ...more] = (row.Detail || task.detail || "").split("\n");
    return h(
      "div",
      { class: "judged bad-edge" },
      h("p", { class: "headline" }, `${row.Status}${row.Reason ? `: ${row.Reason}` : ""}`),
      first && h("p", {}, first),
      more.length > 0 && lines("Details", more.join("\n")),
      h("p", { class: "quiet" }, "No number is told of a task that is not complete; what was measured before it failed is below."),
    );
  }
  if (row.InferenceMsMedian === null) return h("p", { class: "headline" }, unreadable || "Complete, but without times.");
  const [low, high] = [row.InferenceMsMedianLow, row.InferenceMsMedianHigh];
  const many = `${whole(row.Runs)} timed ${row.PerSample > 1 ? `samples of ${row.PerSample} inferences each` : `inference${row.Runs === 1 ? "" : "s"}`} in ${row.Launches} launch${row.Launches === 1 ? "" : "es"}`;
  return h(
    "div",
    {},
    h("p", { class: "headline" }, h("strong", {}, time(row.InferenceMsMedian)), " per inference, the median", row.HalfWidthPercent !== null && h("span", { class: "quiet" }, ` ± ${digits(row.HalfWidthPercent, 2)} %`)),
    h(
      "p",
      {},
      task.simulated
        ? `From a script: ${many}.`
        : low === null
        ? `From ${many}: too few launches to say how far the true median may lie from it.`
        : `With 95 % confidence the median lies between ${time(low)} and ${time(high)}: ${many}.`,
      row.InferenceMsP99 !== null && ` One in a hundred takes ${time(row.InferenceMsP99)} or longer.`,
      row.LoadMsMedian !== null && ` Loading the model takes ${time(row.LoadMsMedian)}.`,
      judged?.verdict === "unchecked" && " What was computed was not checked.",
    ),
  );
}

function judgement({ verdict, reasons }) {
  const good = verdict === "valid";
  return h(
    "section",
    { class: `judged ${good ? "good-edge" : "warn-edge"}`, "aria-label": "Verdict" },
    h("h2", {}, good ? "✓ valid" : `⚠ ${verdict}`, h("span", { class: "quiet" }, good ? ": these numbers can be used" : ": read this before you use the number")),
    h("dl", { class: "reasons" }, reasons.map((reason) => [h("dt", {}, reason.verdict), h("dd", {}, h("p", {}, reason.why), h("p", { class: "quiet" }, reason.means), reason.help && h("p", { class: "quiet" }, `What helps: ${reason.help}.`))])),
  );
}

// -- the samples --------------------------------------------------------------------------------------------------------------------

function distribution({ row }, samples) {
  const complete = row?.Status === "Complete";
  const [median, low, high] = complete ? [row.InferenceMsMedian, row.InferenceMsMedianLow, row.InferenceMsMedianHigh] : [null, null, null];
  const fewer = samples.shown < samples.count ? ` ${whole(samples.shown)} of ${whole(samples.count)} samples are drawn, at even distances, and the extremes of each stretch.` : "";
  const place = h("div", {});
  const draw = (log) =>
    replace(place, strip({ launches: samples.launches, log, low, high, caption: `Sample by sample, launch by launch.${fewer} The bar is each launch's middle half, the line its median; larger red marks lie far out.` }));
  const box = h("input", { type: "checkbox", onchange: (event) => draw(event.target.checked) });
  box.checked = samples.bars.log;
  draw(samples.bars.log);
  const outliers = samples.launches.reduce((sum, one) => sum + one.outliers, 0);
  return h(
    "section",
    {},
    h("h2", {}, "Distribution"),
    histogram({ bars: samples.bars, median, low, high, caption: `All ${whole(samples.count)} timed samples${low === null ? "" : "; the band is the 95 % interval of the median"}.` }),
    h("label", { class: "tool" }, box, " logarithmic"),
    place,
    h("p", { class: "quiet" }, outliers ? `${whole(outliers)} of ${whole(samples.count)} samples lie more than 1.5 widths of their launch's middle half beyond it. They are counted in: none is ever dropped.` : "No sample lies far from the others of its launch."),
  );
}

function warmups({ row }, samples) {
  const warm = samples.launches.filter((one) => one.warmup.at.length);
  if (!warm.length) return null;
  const curves = warm.map((one) => ({ name: `Launch ${one.launch}`, at: one.warmup.at, ms: one.warmup.ns.map((ns) => ns / 1e6), count: one.warmups }));
  const median = row?.Status === "Complete" ? row.InferenceMsMedian : null;
  const first = curves[0].ms[0];
  return h(
    "section",
    {},
    h("h2", {}, "Warm-up"),
    h("p", {}, `The first inference took ${time(first)}${median && (first > 1.05 * median || first < 0.95 * median) ? `, ${digits(first / median, 2)} times the median` : ""}. None of these counts; the dashed line is the median of what does.`),
    trace({ lines: curves, median, caption: "Each launch's inferences until it had settled.", across: "inference" }),
  );
}

// -- the host -----------------------------------------------------------------------------------------------------------------------

function host(told) {
  const blocks = [];
  for (const launch of told.launches) {
    let from = launch.began_s;
    for (const block of launch.blocks) {
      blocks.push({ launch: launch.launch, from_s: from, ...block });
      from += block.wall_s;
    }
  }
  const picture = (name, unit, caption, most) => {
    const shown = blocks.filter((block) => block[name] !== null).map((block) => ({ ...block, value: block[name], words: `Launch ${block.launch}, at ${seconds(block.from_s)}, for ${seconds(block.wall_s)}: ${digits(block[name], 3)} ${unit}` }));
    return shown.some((block) => block.value > 0) ? steps({ blocks: shown, unit, caption, most }) : null;
  };
  const pictures = [
    picture("stall_percent", "%", "Waiting: how much of the time something that wanted to run had no processor.", 10),
    picture("cpu_percent", "%", "Processor time of the measured process; 100 % is one core.", 100),
    picture("switches", "times", "How often the system took the processor away.", 1),
  ].filter(Boolean);
  return h(
    "section",
    {},
    h("h2", {}, "The device meanwhile"),
    pictures,
    scrolled("The device, launch by launch", launchTable(told.launches)),
    h("p", { class: "quiet" }, "What is not in the table the device's system does not tell."),
  );
}

const COLUMNS = [
  ["launch", (one) => String(one.launch)],
  ["median#", (one) => time(one.median_ms)],
  ["window#", (one) => seconds(one.wall_s)],
  ["processor time#", (one) => (one.wall_s > 0 && one.cpu_s > 0 ? percent(one.cpu_s / one.wall_s, 3) : null)],
  ["stalled#", (one) => (one.stall_percent === null ? null : `${digits(Math.min(100, one.stall_percent), 2)} %`)],
  ["others' work#", (one) => (one.host.others === null ? null : percent(one.host.others))],
  ["hypervisor took#", (one) => (one.host.steal === null ? null : percent(one.host.steal))],
  ["taken away#", (one) => (one.switches === null ? null : `${one.switches} times`)],
  ["clock#", (one) => (one.host.clock_mhz === null ? null : `${digits(one.host.clock_mhz)} MHz`)],
  ["hottest#", (one) => (one.host.temperature_c === null ? null : `${digits(one.host.temperature_c, 3)} °C`)],
  ["slowed by heat#", (one) => (one.host.throttles === null ? null : `${one.host.throttles} times`)],
  ["power", (one) => (one.host.on_battery === null ? null : one.host.on_battery ? "battery" : "mains")],
];

// Only the columns in which something is known.
function launchTable(launches) {
  const known = COLUMNS.filter(([, cell]) => launches.some((one) => cell(one) !== null));
  return plainTable(
    known.map(([head]) => head),
    launches.map((one) => known.map(([, cell]) => cell(one) ?? "–")),
  );
}

// Everything else that was measured; what was not is not there.
function measured({ row, record }) {
  const mib = (value) => (value === null ? null : bytes(value * 1024 * 1024));
  const number = (value, unit, count = 4) => (value === null ? null : `${digits(value, count)}${unit}`);
  const facts = [
    ["first load", row.LoadMsFirst === null ? null : `${time(row.LoadMsFirst)}${row.LoadFirstKind === "cold" ? ", from a disk not read just before" : ""}`],
    ["load again in the same process", row.WarmLoadMs === null ? null : time(row.WarmLoadMs)],
    ["memory of a load", mib(row.PeakLoadRamUsage)],
    ["memory while it runs", mib(row.PeakInferenceRamUsage)],
    ["processor time", number(row.CpuPercent, " %", 3)],
    ["largest difference from the reference", row.MaxError === null ? null : `${digits(row.MaxError, 3)} (up to ${digits(row.Tolerance, 3)} agrees)`],
    ["accelerator", row.Accelerator || null],
    ["accelerator busy", number(row.GpuUtil, " %", 3)],
    ["accelerator memory", mib(row.VramMb)],
    ["power", row.PowerW === null ? null : `${digits(row.PowerW, 3)} W${row.IdlePowerW === null ? "" : `, idle ${digits(row.IdlePowerW, 3)} W`}`],
    ["energy of one inference", row.EnergyPerInferenceJ === null ? null : `${digits(row.EnergyPerInferenceJ * 1000, 3)} mJ`],
    ["accelerator's clock", number(row.GpuClockMhz, " MHz")],
    ["accelerator's temperature", number(row.GpuTemperatureC, " °C", 3)],
    ["accelerator slowed", row.GpuThrottled || null],
    ["time to the first token", row.TtftMsMedian === null ? null : time(row.TtftMsMedian)],
    ["between tokens", row.ItlMsMedian === null ? null : time(row.ItlMsMedian)],
    ["tokens per second", number(row.TokensPerSecond, "")],
    ["goodput", number(row.Goodput, " requests a second")],
    ["ROUGE-1, -2, -L", row.RougeL === null ? null : [row.Rouge1, row.Rouge2, row.RougeL].map((value) => digits(value, 3)).join(", ")],
    ["other figures", row.Figures || null],
    ["replicas", row.Agreement ? `${row.Agreement}: ${row.AgreementReason}` : null],
    ["runtime", row.Runtime || null],
    ["providers", row.Providers || null],
    ["threads", row.Threads === null ? null : String(row.Threads)],
    ["batch", row.Batch === null ? null : String(row.Batch)],
    ["inputs in a second", row.ThroughputPerS === null ? null : digits(row.ThroughputPerS, 4)],
    ["inputs", [row.Shapes, row.Dtypes].filter(Boolean).join(" · ") || null],
    ["chosen, as the campaign did not say", row.Notes || null],
    ["fingerprint", row.Fingerprint || null],
  ].filter(([, value]) => value !== null);
  let at = 0;
  const spans = (record?.stages ?? []).map((stage) => {
    const span = { name: stage.stage, from: at, to: at + stage.seconds, words: `${stage.stage}: ${seconds(stage.seconds)}` };
    at += stage.seconds;
    return span;
  });
  return h(
    "section",
    {},
    h("h2", {}, "Also measured"),
    h("dl", { class: "known" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", { class: name === "fingerprint" ? "hash" : null }, value)])),
    spans.length > 0 && timeline({ spans, caption: `Where the time went on the device: ${seconds(at)} in all.`, label: "seconds" }),
  );
}

// -- how it came about --------------------------------------------------------------------------------------------------------------

function attempts({ attempts: tried, happened }) {
  if (!tried.length && !happened.length) return h("section", {}, h("h2", {}, "Attempts"), h("p", {}, "No device has been asked yet."));
  const begun = Date.parse(tried[0]?.begun ?? happened[0].time);
  const spans = tried.map((one) => ({
    name: `${one.attempt}: ${one.device || `…${one.worker.slice(-8)}`}`,
    from: (Date.parse(one.begun) - begun) / 1000,
    to: ((one.ended ? Date.parse(one.ended) : Date.now()) - begun) / 1000,
    kind: one.state,
    words: `Attempt ${one.attempt}: ${one.words}${one.took_s === null ? "" : ` (${seconds(one.took_s)})`}`,
  }));
  return h(
    "section",
    {},
    h("h2", {}, "Attempts"),
    spans.length > 0 && timeline({ spans, caption: `${tried.length} attempt${tried.length === 1 ? "" : "s"}, each at one worker.`, label: "seconds since the first" }),
    h("ol", { class: "told" }, tried.map((one) => h("li", { value: one.attempt }, h("span", { class: `state ${one.state}` }, one.state), ` ${one.words}`, one.took_s === null ? "" : ` (${seconds(one.took_s)})`))),
    happened.length > 0 &&
      h("details", {}, h("summary", {}, `What happened, step by step (${happened.length})`), scrolled("Events", plainTable(["when", "what"], happened.map((one) => [h("time", { datetime: one.time }, clock(one.time)), one.words])))),
  );
}

function clock(text) {
  return new Date(text).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });
}

function asked({ asked: task, needs }) {
  const { measure } = task;
  const steps = measure.precision ? `until the median is known within ± ${percent(measure.precision)}` : `${measure.runs} inferences over ${measure.loads} launches`;
  const facts = [
    ["model", `${task.model.name} (${bytes(task.model.size)})`],
    ["model's sha256", task.model.sha256],
    ["a device must meet", needs.join("; ") || "nothing"],
    ["measured", `${steps}; warm-up ${measure.warmup ?? "until settled"}; ${measure.threads ?? "as many as physical cores"} threads;${measure.batch ? ` batch ${measure.batch};` : ""} seed ${measure.seed}; outputs ${measure.check ? "checked against the reference" : "not checked"}`],
    ["model may be fetched from", task.model_url],
    ["note", task.note],
  ].filter(([, value]) => value);
  return h("section", {}, h("h2", {}, "What was asked"), h("dl", { class: "known" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", { class: name.endsWith("sha256") ? "hash" : null }, value)])));
}

// -- the result as it stands --------------------------------------------------------------------------------------------------------

function result({ row, csv }) {
  const cells = Object.entries(row).filter(([, value]) => value !== null && value !== "");
  return h(
    "section",
    {},
    h("h2", {}, "The row in the CSV"),
    lines("CSV", csv.replaceAll("\r\n", "\n"), "csv"),
    copy("Copy", () => csv),
    h("details", {}, h("summary", {}, `Its ${cells.length} cells that are not empty`), scrolled("Cells", plainTable(["column", "value"], cells.map(([name, value]) => [name, String(value)])))),
  );
}

function verify(path, { task, record }) {
  const [campaign] = task.task.split("/");
  const file = `${campaign}-${task.n}.json`;
  const said = h("p", { role: "status" });
  const check = async () => {
    replace(said, "Checking …");
    try {
      const found = await get(`${path}/verify`);
      replace(said, found.holds ? "✓ It holds: signature, hashes, and the row made again from the samples." : `✗ It does not hold: ${found.wrong.join("; ")}`);
    } catch (error) {
      replace(said, `${error.message}. ${error.hint ?? ""}`);
    }
  };
  const take = () => save(`${path}/raw`, file).catch((error) => replace(said, error.message));
  const command = `sark-node verify ${file}`;
  return h(
    "section",
    {},
    h("h2", {}, "Check it yourself"),
    h("p", {}, `The worker signed ${bytes(record.bytes)} of raw samples and facts with its key. Whoever has the file can check the signature, the hashes of task and model, and make every number again:`),
    lines("Commands", `${command}\n${command} --model MODEL   # against the model's file, too`),
    h("p", { class: "choices" }, h("button", { onclick: take }, "Download the signed record"), h("button", { class: "plain", onclick: check }, "Check it here"), copy("Copy the command", () => command)),
    said,
    h(
      "dl",
      { class: "known" },
      [
        ["worker", record.worker],
        ["record's sha256", record.sha256],
        ["signature (Ed25519)", record.signature],
        ["made under grant", record.fence],
        ["accepted", record.accepted ? new Date(record.accepted).toLocaleString() : "–"],
      ].map(([name, value]) => [h("dt", {}, name), h("dd", { class: "hash" }, value)]),
    ),
  );
}

function copy(words, text) {
  if (!navigator.clipboard) return null; // a browser keeps it from pages that came over plain HTTP from another machine
  const button = h("button", { class: "plain" }, words);
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = words), 1500);
  });
  return button;
}

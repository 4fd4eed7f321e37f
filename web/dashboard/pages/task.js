// One task: its result, the certainty of the result and the reasons, charts of its samples, its attempts, and how to verify it.

import { get, save, stream } from "../api.js";
import { h, replace } from "../dom.js";
import { againstWords, bytes, configuration, count, digits, duration, percent, time, whole } from "../format.js";
import { chart, copyButton, facts, lines, plainTable, simulation, SIMULATED } from "../widgets.js";

export const title = "Task";

const ENDED = new Set(["succeeded", "failed", "cancelled"]);

export async function show(main, [campaign, n], { signal }) {
  const path = `/api/v1/campaigns/${encodeURIComponent(campaign)}/tasks/${encodeURIComponent(n)}`;
  const draw = async () => {
    const detail = await get(path, signal);
    replace(main, page(path, detail, signal));
    document.title = `${detail.task.model} × ${detail.task.unit} · Sark`;
    return detail;
  };
  const { task } = await draw();
  if (!ENDED.has(task.state)) follow(main, campaign, task.n, draw, signal);
}

// While the task runs, only its progress line changes; at its end the page is drawn again.
function follow(main, campaign, n, draw, signal) {
  const until = new AbortController();
  signal.addEventListener("abort", () => until.abort());
  const take = (name, task) => {
    if (name !== "task" || task.n !== n) return;
    const line = main.querySelector(".progress");
    if (line) line.textContent = progress(task);
    if (!ENDED.has(task.state)) return;
    until.abort();
    draw().catch(() => {});
  };
  stream(`/api/v1/campaigns/${encodeURIComponent(campaign)}/events`, take, () => {}, until.signal).catch(() => {});
}

function progress(task) {
  return [task.progress, task.device && `on ${task.device}`].filter(Boolean).join(" · ");
}

function page(path, detail, signal) {
  const { task, row, record } = detail;
  const [campaign] = task.task.split("/");
  const draw = (kind, caption) => record && !detail.unreadable && chart(`${path}/chart?kind=${kind}`, caption, signal);
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Campaigns"), " / ", h("a", { href: `#/campaigns/${encodeURIComponent(campaign)}` }, detail.campaign_name || campaign), ` / task ${task.n}`),
    h("h1", {}, `${task.model} × ${configuration(task.unit, task.threads, task.batch)}`),
    task.simulated && h("p", { class: "warning" }, SIMULATED),
    h("p", { class: "under" }, h("span", { class: `state ${task.state}` }, task.state), device(detail), h("a", { href: `#/compare?a=${encodeURIComponent(task.task)}` }, "Compare with …")),
    headline(detail),
    detail.judgement && judgement(detail.judgement),
    row?.Sustained && h("section", {}, h("h2", {}, "Sustained"), h("p", {}, row.Sustained), h("div", { class: "charts" }, draw("sustained", "Each stretch's median, the levels, and a few inferences after a rest; heat, clock and power where they are known."))),
    record && h("section", {}, h("h2", {}, "Distribution"), h("div", { class: "charts" }, draw("histogram", histogramCaption(row)), draw("distribution", "Samples by launch. The bar is the middle half, the line the median. No sample is dropped."))),
    record && h("section", {}, h("h2", {}, "Warm-up and host"), h("div", { class: "charts" }, draw("trace", "Every inference in order, starting with the warm-up, which does not count."), draw("host", "The host during the launches: time without a CPU, CPU time of the measured process, context switches.")), detail.launches.length > 0 && launchTable(detail.launches)),
    detail.operators && operators(detail.operators, draw),
    row && measurements(detail, draw),
    attempts(detail),
    request(detail),
    row && csvRow(detail),
    record && verify(path, detail),
  ];
}

function device({ task, record }) {
  const mark = task.simulated && [simulation(), " "];
  const { name, soc, ram, os } = record?.device ?? { name: task.device };
  return name ? h("span", {}, ` ${[name, soc, ram && bytes(ram), os].filter(Boolean).join(" · ")} `, mark) : mark;
}

// -- result -------------------------------------------------------------------------------------------------------------------------

function headline({ task, row, judgement: verdict, unreadable, coverage, device_interval_ms: wider }) {
  if (!row) return h("p", { class: "headline progress", role: "status" }, progress(task));
  if (row.Status !== "Complete") {
    const [first, ...more] = (row.Detail || task.detail || "").split("\n");
    return h(
      "div",
      { class: "judged bad-edge" },
      h("p", { class: "headline" }, `${row.Status}${row.Reason ? `: ${row.Reason}` : ""}`),
      first && h("p", {}, first),
      more.length > 0 && lines("Details", more.join("\n")),
      h("p", { class: "quiet" }, "A task that is not complete has no result. What was measured before it failed is shown below."),
    );
  }
  if (row.InferenceMsMedian === null) return h("p", { class: "headline" }, unreadable || "Complete, but without times.");
  const [low, high] = [row.InferenceMsMedianLow, row.InferenceMsMedianHigh];
  const samples = `${count(row.Runs, row.PerSample > 1 ? "timed sample" : "timed inference")}${row.PerSample > 1 ? ` of ${row.PerSample} inferences each` : ""} in ${row.Launches} launch${row.Launches === 1 ? "" : "es"}`;
  const interval =
    low === null ? `${samples}: too few launches for a confidence interval.` : `The 95 % confidence interval of the median is ${time(low)} to ${time(high)}, from ${samples}.`;
  return h(
    "div",
    {},
    h("p", { class: "headline" }, h("strong", {}, time(row.InferenceMsMedian)), " median per inference", row.HalfWidthPercent !== null && h("span", { class: "quiet" }, ` ± ${digits(row.HalfWidthPercent, 2)} %`)),
    h(
      "p",
      {},
      task.simulated ? `From a script: ${samples}.` : interval,
      coverage && ` On this device ${coverage.held} of ${coverage.sittings} such intervals hold the median of their other sittings.`,
      coverage?.margin_percent > 0 && ` In 95 % of cases, the interval ${time(wider[0])} to ${time(wider[1])} holds it.`,
      row.InferenceMsP99 !== null && ` The 99th percentile is ${time(row.InferenceMsP99)}.`,
      row.LoadMsMedian !== null && ` Loading the model takes ${time(row.LoadMsMedian)}.`,
      verdict?.verdict === "unchecked" && " The outputs were not checked.",
    ),
    row.CompareVerdict && h("p", {}, h("span", { class: `verdict ${row.CompareVerdict.toLowerCase()}` }, row.CompareVerdict), ` compared with ${row.Against}, which took turns with it and needed ${time(row.AgainstMsMedian)}: ${row.CompareReason}.`),
  );
}

function judgement({ verdict, reasons, remarks }) {
  const valid = verdict === "valid";
  return h(
    "section",
    { class: `judged ${valid ? "good-edge" : "warn-edge"}`, "aria-label": "Verdict" },
    h("h2", {}, valid ? "✓ valid" : `⚠ ${verdict}`, remarks && ` · ${remarks}`, h("span", { class: "quiet" }, valid ? ": these numbers can be used" : ": read this before you use the numbers")),
    h("dl", { class: "reasons" }, reasons.map((reason) => [h("dt", {}, reason.verdict), h("dd", {}, h("p", {}, reason.why), h("p", { class: "quiet" }, reason.means), reason.help && h("p", { class: "quiet" }, `To fix it: ${reason.help}.`))])),
  );
}

function histogramCaption(row) {
  const samples = row?.Runs ? `All ${whole(row.Runs)} timed samples` : "All timed samples";
  return row?.InferenceMsMedianLow == null ? `${samples}.` : `${samples}, with the median and its 95 % interval.`;
}

const COLUMNS = [
  ["Launch", (one) => String(one.launch)],
  ["Median#", (one) => (one.median_ms === null ? null : time(one.median_ms))],
  ["Duration#", (one) => duration(one.wall_s)],
  ["CPU time#", (one) => (one.wall_s > 0 && one.cpu_s > 0 ? percent(one.cpu_s / one.wall_s, 3) : null)],
  ["Stalled#", (one) => (one.stall_percent === null ? null : `${digits(Math.min(100, one.stall_percent), 2)} %`)],
  ["Other processes#", (one) => (one.host.others === null ? null : percent(one.host.others))],
  ["Hypervisor steal#", (one) => (one.host.steal === null ? null : percent(one.host.steal))],
  ["Context switches#", (one) => (one.switches === null ? null : whole(one.switches))],
  ["Clock#", (one) => (one.host.clock_mhz === null ? null : `${digits(one.host.clock_mhz)} MHz`)],
  ["Temperature#", (one) => (one.host.temperature_c === null ? null : `${digits(one.host.temperature_c, 3)} °C`)],
  ["Thermal throttling#", (one) => (one.host.throttles === null ? null : `${one.host.throttles} times`)],
  ["Power", (one) => (one.host.on_battery === null ? null : one.host.on_battery ? "battery" : "mains")],
];

function launchTable(launches) {
  const columns = COLUMNS.filter(([, cell]) => launches.some((one) => cell(one) !== null));
  return [
    plainTable("Launches", columns.map(([head]) => head), launches.map((one) => columns.map(([, cell]) => cell(one) ?? "–"))),
    h("p", { class: "quiet" }, "Columns that the device's operating system does not report are left out."),
  ];
}

function operators({ lines: uses, summary, issued }, draw) {
  const share = (one) => (one.share === null ? "–" : percent(one.share));
  const where = (one) => (one.fell_back ? h("span", { class: "state busy" }, one.provider) : one.provider);
  const cells = uses.map((one) => [[one.domain, one.op].filter(Boolean).join("."), where(one), one.nodes === null ? "–" : whole(one.nodes), whole(one.ran), one.ms === null ? "–" : time(one.ms), share(one)]);
  const fell = uses.filter((one) => one.fell_back);
  return h(
    "section",
    {},
    h("h2", {}, "Where it ran"),
    h("p", {}, summary),
    h("div", { class: "charts" }, draw("operators", "One extra inference, apart from the timed ones, with the runtime's profiler.")),
    fell.length > 0 && h("ul", {}, fell.map((one) => h("li", {}, `${one.op} fell back to ${one.provider}: ${one.why}`))),
    plainTable("Operators by type", ["Operator", "Ran on", "In the graph#", "Kernels#", "Time#", "Share#"], cells),
    h("p", { class: "quiet" }, "Nodes of the graph without a kernel were fused into others or computed while the model was loaded.", issued && " The times of a device are the times the host took to issue its work; the device computes meanwhile."),
  );
}

function measurements({ row, record }, draw) {
  const mib = (value) => (value === null ? null : bytes(value * 1024 * 1024));
  const number = (value, unit, figures = 4) => (value === null ? null : `${digits(value, figures)}${unit}`);
  const ms = (value) => (value === null ? null : time(value));
  const all = [
    ["First load", row.LoadMsFirst === null ? null : `${time(row.LoadMsFirst)}${row.LoadFirstKind === "cold" ? ", not in the disk cache" : ""}`],
    ["Reload in the same process", ms(row.WarmLoadMs)],
    ["Memory of a load", mib(row.PeakLoadRamUsage)],
    ["Memory while running", mib(row.PeakInferenceRamUsage)],
    ["CPU time", number(row.CpuPercent, " %", 3)],
    ["Largest difference from the reference", row.MaxError === null ? null : `${digits(row.MaxError, 3)} (tolerance ${digits(row.Tolerance, 3)})`],
    ["Accelerator", row.Accelerator],
    ["Accelerator utilisation", number(row.GpuUtil, " %", 3)],
    ["Accelerator memory", mib(row.VramMb)],
    ["Power", row.PowerW === null ? null : `${digits(row.PowerW, 3)} W${row.IdlePowerW === null ? "" : `, idle ${digits(row.IdlePowerW, 3)} W`}`],
    ["Energy per inference", row.EnergyPerInferenceJ === null ? null : `${digits(row.EnergyPerInferenceJ * 1000, 3)} mJ`],
    ["Accelerator clock", number(row.GpuClockMhz, " MHz")],
    ["Accelerator temperature", number(row.GpuTemperatureC, " °C", 3)],
    ["Accelerator throttling", row.GpuThrottled],
    ["Time to first token", ms(row.TtftMsMedian)],
    ["Time between tokens", ms(row.ItlMsMedian)],
    ["Tokens per second", number(row.TokensPerSecond, "")],
    ["Goodput", number(row.Goodput, " requests per second")],
    ["ROUGE-1, -2, -L", row.RougeL === null ? null : [row.Rouge1, row.Rouge2, row.RougeL].map((value) => digits(value, 3)).join(", ")],
    ["Scores", row.Scores],
    ["Missing scores", row.ScoresWhy],
    ["Scored by", row.ScoredBy],
    ["Other figures", row.Figures],
    ["Replicas", row.Agreement && `${row.Agreement}: ${row.AgreementReason}`],
    ["Runtime", row.Runtime],
    ["Providers", row.Providers],
    ["Threads", number(row.Threads, "")],
    ["Batch", number(row.Batch, "")],
    ["Inputs per second", number(row.ThroughputPerS, "")],
    ["Inputs", [row.Shapes, row.Dtypes].filter(Boolean).join(" · ")],
    ["Chosen automatically", row.Notes],
    ["Fingerprint", row.Fingerprint, "hash"],
  ];
  return h("section", {}, h("h2", {}, "Other measurements"), facts(all, "known"), record?.stages?.length > 0 && draw("stages", "Where the time went on the device."));
}

// -- how it was measured --------------------------------------------------------------------------------------------------------------

function attempts({ attempts: list, happened: events }) {
  if (!list.length && !events.length) return h("section", {}, h("h2", {}, "Attempts"), h("p", {}, "No device has been asked yet."));
  const took = (one) => (one.took_s === null ? "" : ` (${duration(one.took_s)})`);
  const items = list.map((one) => h("li", { value: one.attempt }, h("span", { class: `state ${one.state}` }, one.state), ` ${one.words}${took(one)}`));
  const rows = events.map((one) => [h("time", { datetime: one.time }, clock(one.time)), one.words]);
  return h("section", {}, h("h2", {}, "Attempts"), h("ol", { class: "attempts" }, items), rows.length > 0 && h("details", {}, h("summary", {}, `Events (${rows.length})`), plainTable("Events", ["Time", "Event"], rows)));
}

function clock(text) {
  return new Date(text).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });
}

function amountOf({ measure, model, unit, beside, beside_units: units }) {
  if (beside) return `in turns with ${beside.map((other, at) => againstWords(other.name, units?.[at] ?? unit, model.name, unit)).join(", ")}, until the comparison is decided`;
  if (measure.sustain_s) return `without a break for ${duration(measure.sustain_s)}`;
  const over = measure.over_s ? `, spread over ${duration(measure.over_s)}` : "";
  if (measure.precision) return `until the median is known within ± ${percent(measure.precision)}${over}`;
  return `${count(measure.runs, "inference")} in ${measure.loads} launch${measure.loads === 1 ? "" : "es"}${over}`;
}

function request({ asked: task, needs }) {
  const { measure, model } = task;
  const all = [
    ["Model", `${model.name} (${bytes(model.size)})`],
    ["Model sha256", model.sha256, "hash"],
    ["Device requirements", needs.join("; ") || "none"],
    ["Measurement", amountOf(task)],
    ["Warm-up", measure.warmup === null ? "until settled" : count(measure.warmup, "inference")],
    ["Threads", measure.threads ?? "one for each physical core"],
    ["Batch", measure.batch],
    ["Seed", String(measure.seed)],
    ["Outputs", measure.check ? "compared with the reference" : "not checked"],
    ["Model URL", task.model_url],
    ["Note", task.note],
  ];
  return h("section", {}, h("h2", {}, "Task as submitted"), facts(all, "known"));
}

function csvRow({ row, csv }) {
  const cells = Object.entries(row).filter(([, value]) => value !== null && value !== "");
  return h(
    "section",
    {},
    h("h2", {}, "CSV row"),
    lines("CSV", csv.replaceAll("\r\n", "\n"), "csv"),
    copyButton("Copy", () => csv),
    h("details", {}, h("summary", {}, `${cells.length} cells with a value`), plainTable("Cells", ["Column", "Value"], cells.map(([name, value]) => [name, String(value)]))),
  );
}

function verify(path, { task, record }) {
  const [campaign] = task.task.split("/");
  const file = `${campaign}-${task.n}.json`;
  const command = `sark-node verify ${file}`;
  const outcome = h("p", { role: "status" });
  const check = async () => {
    replace(outcome, "Verifying …");
    try {
      const finding = await get(`${path}/verify`);
      replace(outcome, finding.holds ? "✓ Verified: the signature, the hashes, and the row computed from the samples." : `✗ Not verified: ${finding.wrong.join("; ")}`);
    } catch (error) {
      replace(outcome, `${error.message}. ${error.hint ?? ""}`);
    }
  };
  const download = () => save(`${path}/raw`, file).catch((error) => replace(outcome, error.message));
  const all = [
    ["Worker", record.worker],
    ["Record sha256", record.sha256],
    ["Signature (Ed25519)", record.signature],
    ["Lease fence", record.fence],
    ["Accepted", record.accepted ? new Date(record.accepted).toLocaleString() : "–"],
  ];
  return h(
    "section",
    {},
    h("h2", {}, "Verify"),
    h("p", {}, `The worker signed ${bytes(record.bytes)} of raw samples and facts. Anyone with the file can check the signature and the hashes of task and model, and recompute every number:`),
    lines("Commands", `${command}\n${command} --model MODEL   # also against the model's file`),
    h("p", { class: "choices" }, h("button", { type: "button", onclick: download }, "Download the signed record"), h("button", { class: "plain", type: "button", onclick: check }, "Verify here"), copyButton("Copy the command", () => command)),
    outcome,
    facts(all.map(([name, value]) => [name, value, "hash"]), "known"),
  );
}

"""What makes a report's figures trustworthy and reproducible: host, method, devices, models, runtimes, verification. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Final

from protocol.formats.turns import LOOKS
from protocol.values.task import Measure, Task
from results.report.facts import Report
from results.report.measurements import device_name, number, task_number, verdict
from results.report.page import Badge, Block, Bullets, Section, ShellCommands, Table, Warn, code, quote
from results.row.form import against_words
from results.row.rounds import launches_of
from swarm.base.text import count
from swarm.base.units import show_duration

MAX_FINDINGS: Final = 50
MAX_NOTES: Final = 20
_HOW: Final = (
    "Each launch is a fresh process that loads the model, warms up, and then times its share of the inferences.",
    (
        "Warm-up inferences run until times have settled, and do not count. Inputs and outputs are bound before the clock starts; between "
        "two readings of the clock, nothing but inferences runs."
    ),
    (
        "The median is the median of the launches' medians. Its 95 % interval comes from their ranks, never from all samples pooled, "
        "which would make the interval too narrow. Below six launches there is none."
    ),
    (
        "Before a cold load, the file's pages were verified to be gone from memory. Cold loads count in the load times only if there are "
        "no others. Memory is the kernel's own high-water mark, minus what the process held before."
    ),
    (
        "The unit that ran was compared with the requested unit: a task that ran on another unit failed and has no figures. A value that "
        "was not measured is an empty cell."
    ),
)
_HOST: Final = {
    "others %": "others_percent",
    "waited %": "stall_percent",
    "stolen %": "steal_percent",
    "CPU %": "cpu_percent",
    "clock MHz": "clock_mhz",
    "slowed by heat": "throttles",
    "°C": "temperature_c",
    "on battery": "on_battery",
    "switched away": "involuntary_switches",
    "accelerator": "accelerator",
    "GPU %": "gpu_util",
    "GPU W": "power_w",
    "GPU MHz": "gpu_clock_mhz",
    "GPU °C": "gpu_temperature_c",
    "GPU slowed": "gpu_throttled",
}
"""Columns of the host table, each shown if any row has the field."""


def host(report: Report) -> Section | None:
    rows = report.done
    fields = {
        name: field
        for name, field in _HOST.items()
        if any(getattr(row, field) not in (None, "") for row in rows)
    }
    if not fields:
        return None
    lines: list[list[str | Badge]] = [
        [
            task_number(row),
            device_name(row),
            *(_shown(getattr(row, field)) for field in fields.values()),
            verdict(row),
        ]
        for row in rows
    ]
    note = (
        "All values are of the timed windows. Others: share of all processors' time in other processes. Waited: share of the time in which "
        "something that was ready to run had no processor. Stolen: the hypervisor's share. CPU: CPU time of the measuring process; 100 is "
        "one core. Switched away: how often the system took the processor from it. A cell is empty if the system does not report the value."
    )
    columns = ["task", "device", *(f"{name}#" for name in fields), "verdict"]
    return Section(
        "host", "The hosts during the measurements", [note, Table("State of the hosts", columns, lines)]
    )


def _shown(value: bool | float | str | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return quote(value)
    return f"{value:,.1f}" if isinstance(value, float) else number(value)


# -- method ------------------------------------------------------------------------------------------------------------------------------


def _runs(task: Task) -> str:
    over_s = task.measure.over_s
    return _launches(task) + ("" if over_s is None else f", spread over {show_duration(over_s)}")


def _launches(task: Task) -> str:
    measure = task.measure
    if task.beside:
        placed = zip(task.beside, task.units()[1:], strict=True)
        others = ", ".join(
            against_words(model.name, unit, task.model.name, task.unit) for model, unit in placed
        )
        return f"in turns with {others}, until the comparison is decided, in {LOOKS[0]} to {launches_of(task)} launches"
    if measure.precision is not None:
        return f"as many as it takes to know the median to within ± {measure.precision:.3g} of its value, in 6 to 20 launches"
    if measure.sustain_s is not None:
        return f"without a break for {show_duration(measure.sustain_s)}, in one launch"
    return f"{measure.runs}, divided among {count(measure.loads, 'launch', 'launches')}"


_ASKED: Final[dict[str, Callable[[Measure], str]]] = {
    "warm-up": lambda m: "until it has settled" if m.warmup is None else count(m.warmup, "inference"),
    "threads": lambda m: "as many as physical cores" if m.threads is None else str(m.threads),
    "batch": lambda m: "" if m.batch is None else str(m.batch),
    "inputs": lambda m: f"generated from seed {m.seed}",
    "dimensions": lambda m: ", ".join(f"{name} = {size}" for name, size in sorted(m.dims.items())),
    "before the load": lambda m: ", ".join(step.step for step in m.pre),
    "on the outputs": lambda m: ", ".join(step.step for step in m.post),
    "check": lambda m: "outputs compared with a reference run" if m.check else "outputs not compared",
}


def method(report: Report) -> Section:
    tasks, lines = report.signed_tasks, []
    asked = {"inferences": [_runs(task) for task in tasks]}
    asked |= {name: [show(task.measure) for task in tasks] for name, show in _ASKED.items()}
    for name, each in asked.items():
        values = dict.fromkeys(each)
        if any(values):
            lines.append([name, quote("; ".join(filter(None, values)))])
    blocks: list[Block] = [Bullets(_HOW)]
    if lines:
        blocks.append(Table("What the campaign asked for", ["what", "asked"], lines))
    if notes := _notes(report):
        blocks += [
            "Notes of the devices, such as choices that the campaign left open:",
            Bullets(notes),
        ]
    return Section("method", "Method: how it was measured", blocks)


def _notes(report: Report) -> list[str]:
    """Each note once; of notes that differ only in their figures, the first."""
    alike: dict[str, list[str]] = {}
    for note in sorted({note for row in report.done for note in row.notes.split("; ") if note}):
        alike.setdefault(re.sub(r"[\d.]+", "#", note), []).append(note)
    return [
        quote(first) + (f" (and {len(more)} more like it)" if more else "")
        for first, *more in list(alike.values())[:MAX_NOTES]
    ]


# -- fingerprints ------------------------------------------------------------------------------------------------------------------------


def fingerprints(report: Report) -> Section:
    blocks: list[Block] = []
    devices = {(row.device_id, row.device_name, row.worker_id): row for row in report.rows if row.device_id}
    if devices:
        lines = [
            [
                device_name(row),
                quote(" ".join(filter(None, (row.soc, row.arch)))),
                number(row.cores),
                "" if row.ram is None else f"{row.ram:.1f}",
                quote(row.device_os),
                quote(row.node_version),
                code(row.device_id),
                code(row.worker_id),
            ]
            for row in devices.values()
        ]
        columns = ["device", "processor", "cores", "RAM GB", "system", "sark-node", "device id", "worker id"]
        blocks.append(Table("Devices", columns, lines))
    models = {row.model_sha256: row for row in report.rows}
    lines = [[quote(row.file_name), number(row.file_size), code(row.model_sha256)] for row in models.values()]
    blocks.append(Table("Models", ["model", "bytes#", "sha256"], lines))
    runtimes = dict.fromkeys(
        (row.compute_units, row.driver, row.runtime, row.providers) for row in report.rows if row.driver
    )
    if runtimes:
        lines = [list(map(quote, runtime)) for runtime in runtimes]
        blocks.append(Table("Runtimes", ["unit", "driver", "runtime", "execution providers"], lines))
    lines = [
        [
            task_number(row),
            quote(row.file_name),
            device_name(row),
            code(row.fingerprint),
            code(row.task_sha256),
            code(result.signature[:32]),
        ]
        for row, result in zip(report.rows, report.results, strict=True)
    ]
    note = (
        "Rows with the same fingerprint were measured alike: it is a hash over device, system, runtime, unit, threads, shapes, seed, steps "
        "and model. Each record is signed with the Ed25519 key that its worker id is derived from."
    )
    blocks += [
        note,
        Table("Tasks", ["task", "model", "device", "fingerprint", "task sha256", "signature begins"], lines),
    ]
    return Section("fingerprints", "Fingerprints", blocks)


# -- verification ------------------------------------------------------------------------------------------------------------------------


def verification(report: Report) -> Section:
    source = shlex.quote(report.source or report.campaign)
    raw = source if report.from_file else "raw.json"
    export = [] if report.from_file else [f"sark-node results {source} --raw raw.json"]
    note = (
        "With the raw results, anybody can check everything: the workers' signatures, the hashes of task and model, and each "
        "figure, recomputed from the raw samples. This needs no network, and no trust in the author of this report."
    )
    blocks: list[Block] = [
        note,
        ShellCommands([*export, f"sark-node verify {raw} --model MODEL_FILE"]),
        f"The raw results that this report was made from have the sha256 {code(report.raw_sha256)}.",
    ]
    findings = report.findings or ()
    if wrong := [finding for finding in findings if finding.wrong]:
        lines = [
            f"{quote(finding.task or 'the file')}: {quote('; '.join(finding.wrong))}"
            for finding in wrong[:MAX_FINDINGS]
        ]
        blocks += [Warn(f"{len(wrong)} failed verification when this was written:", "bad"), Bullets(lines)]
    if unsigned := sum(not finding.signed and not finding.wrong for finding in findings):
        blocks.append(f"{unsigned} without a worker's signature: these rows are the scheduler's own account.")
    blocks += [
        "To measure the same models again, as the campaign file asked for it:",
        ShellCommands(
            [
                "sark-node plan campaign.yaml",
                "sark-node submit campaign.yaml",
                f"sark-node compare {source} NEW_CAMPAIGN",
            ]
        ),
    ]
    return Section("verify", "Verify and repeat", blocks)

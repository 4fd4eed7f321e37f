"""What a report says so that its figures can be trusted and made again: host, method, devices, models, runtimes, how to verify. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Final

from protocol.values.task import Measure
from results.report.facts import Report
from results.report.measurements import device_cell, number, task_cell, text, verdict_cell
from results.report.page import (
    Block,
    Bullets,
    Line,
    Paragraph,
    Section,
    ShellCommands,
    Table,
    TableCell,
    TextSpan,
    heads,
)
from results.row.row import Row
from swarm.base.text import count

MAX_FINDINGS: Final = 50
MAX_NOTES: Final = 20
_HOW: Final = (
    "Each launch is a fresh process that loads the model, warms up, and then times its share of the inferences.",
    (
        "Warm-up is left out until times have settled. Inputs and outputs are bound before the clock starts; nothing but inferences and "
        "the clock is between two readings of it."
    ),
    (
        "The median is that of the launches' medians. Its 95 % interval comes from their ranks, never from all samples as one heap, "
        "which would claim a certainty that is not there; below six launches there is none."
    ),
    (
        "A cold load is one before which the file's pages were seen to be gone from memory; it is not among the load times where there "
        "are others. Memory is the kernel's own high-water mark above what the process held before."
    ),
    (
        "The unit that ran was compared with the one asked for; a difference is a failure, not a figure. What was not measured is an "
        "empty cell."
    ),
)
_HOST: Final[tuple[tuple[str, Callable[[Row], object]], ...]] = (
    ("others %", lambda row: row.others_percent),
    ("waited %", lambda row: row.stall_percent),
    ("stolen %", lambda row: row.steal_percent),
    ("CPU %", lambda row: row.cpu_percent),
    ("clock MHz", lambda row: row.clock_mhz),
    ("slowed by heat", lambda row: row.throttles),
    ("°C", lambda row: row.temperature_c),
    ("on battery", lambda row: None if row.on_battery is None else "yes" if row.on_battery else "no"),
    ("switched away", lambda row: row.involuntary_switches),
    ("accelerator", lambda row: row.accelerator or None),
    ("GPU %", lambda row: row.gpu_util),
    ("GPU W", lambda row: row.power_w),
    ("GPU MHz", lambda row: row.gpu_clock_mhz),
    ("GPU °C", lambda row: row.gpu_temperature_c),
    ("GPU slowed", lambda row: row.gpu_throttled or None),
)


def host(report: Report) -> Section | None:
    """How the devices were while it was timed."""
    rows = report.done
    known = [column for column in _HOST if any(column[1](row) is not None for row in rows)]
    if not known:
        return None
    lines = [
        [task_cell(row), device_cell(row), *(_value(read(row)) for _, read in known), verdict_cell(row)]
        for row in rows
    ]
    note = (
        "In the timed windows. Others: of all processors' time, what went to other processes. Waited: of the time, that in which something "
        "that wanted to run had no processor. Stolen: what a hypervisor took. CPU: of this process; 100 is one core. Switched away: how "
        "often the system took the processor from it. A cell is empty where that device's system does not report it."
    )
    columns = heads("task", "device", *(f"{name}#" for name, _ in known), "verdict")
    table = Table(["State of the hosts"], columns, lines)
    return Section("host", "The hosts meanwhile", [Paragraph([note]), table])


def _value(value: object) -> TableCell:
    if isinstance(value, float):
        return TableCell([f"{value:,.1f}"])
    if isinstance(value, int):
        return number(value)
    return TableCell(["" if value is None else TextSpan(str(value))])


# -- method ------------------------------------------------------------------------------------------------------------------------------


def method(report: Report) -> Section:
    """How it was measured."""
    lines: list[list[TableCell]] = []
    for name, show in (
        ("inferences", _runs),
        ("warm-up", lambda m: "until it has settled" if m.warmup is None else count(m.warmup, "inference")),
        ("threads", lambda m: "as many as physical cores" if m.threads is None else str(m.threads)),
        ("batch", lambda m: "" if m.batch is None else str(m.batch)),
        ("inputs", lambda m: f"made from seed {m.seed}"),
        ("dimensions", lambda m: ", ".join(f"{name} = {size}" for name, size in sorted(m.dims.items()))),
        ("before the load", lambda m: ", ".join(step.step for step in m.pre)),
        ("on the outputs", lambda m: ", ".join(step.step for step in m.post)),
        ("check", lambda m: "outputs compared with a reference run" if m.check else "outputs not compared"),
    ):
        values = [
            value for value in dict.fromkeys(show(task.measure) for task in report.signed_tasks) if value
        ]
        if values:
            lines.append([TableCell([name]), text("; ".join(values))])
    blocks: list[Block] = [Bullets([[sentence] for sentence in _HOW])]
    if lines:
        blocks.append(Table(["What the campaign asked for"], heads("what", "asked"), lines))
    if notes := _notes(report):
        blocks.append(
            Paragraph(["What the devices noted, such as what they chose where the campaign did not say:"])
        )
        blocks.append(Bullets(notes))
    return Section("method", "Method: how it was measured", blocks)


def _notes(report: Report) -> list[Line]:
    """Each note once; of those that differ in their figures alone, the first."""
    alike: dict[str, list[str]] = {}
    for note in sorted({note for row in report.done for note in row.notes.split("; ") if note}):
        alike.setdefault(re.sub(r"[\d.]+", "#", note), []).append(note)
    return [
        [TextSpan(notes[0]), f" (and {len(notes) - 1} more like it)" if len(notes) > 1 else ""]
        for notes in list(alike.values())[:MAX_NOTES]
    ]


def _runs(measure: Measure) -> str:
    if measure.precision is not None:
        return f"as many as it takes to know the median to ± {measure.precision:.3g} of itself, in 6 to 20 launches"
    return f"{measure.runs}, shared out over {count(measure.loads, 'launch', 'launches')}"


# -- fingerprints ------------------------------------------------------------------------------------------------------------------------


def fingerprints(report: Report) -> Section:
    """Which devices, models and runtimes, by what cannot be mistaken."""
    blocks: list[Block] = []
    devices = {(row.device_id, row.device_name, row.worker_id): row for row in report.rows if row.device_id}
    if devices:
        lines = [
            [
                device_cell(row),
                text(" ".join(filter(None, (row.soc, row.arch)))),
                number(row.cores),
                TableCell(["" if row.ram is None else f"{row.ram:.1f}"]),
                text(row.device_os),
                text(row.node_version),
                _code(row.device_id),
                _code(row.worker_id),
            ]
            for row in devices.values()
        ]
        columns = heads(
            "device", "processor", "cores", "RAM GB", "system", "sark-node", "device id", "worker id"
        )
        blocks.append(Table(["Devices"], columns, lines))
    models = {row.model_sha256: row for row in report.rows}
    lines = [[text(row.file_name), number(row.file_size), _code(row.model_sha256)] for row in models.values()]
    blocks.append(Table(["Models"], heads("model", "bytes#", "sha256"), lines))
    runtimes = dict.fromkeys(
        (row.compute_units, row.driver, row.runtime, row.providers) for row in report.rows if row.driver
    )
    if runtimes:
        lines = [[text(value) for value in runtime] for runtime in runtimes]
        blocks.append(Table(["Runtimes"], heads("unit", "driver", "runtime", "execution providers"), lines))
    note = (
        "Rows that share a fingerprint were made alike: it is one hash over device, system, runtime, unit, threads, shapes, seed, steps "
        "and model. Each record is signed by its worker with the Ed25519 key that its worker id is made of."
    )
    lines = [
        [
            task_cell(result.row),
            text(result.row.file_name),
            device_cell(result.row),
            _code(result.row.fingerprint),
            _code(result.row.task_sha256),
            _code(result.signature[:32]),
        ]
        for result in report.results
    ]
    columns = heads("task", "model", "device", "fingerprint", "task sha256", "signature begins")
    blocks += [Paragraph([note]), Table(["Tasks"], columns, lines)]
    return Section("fingerprints", "Fingerprints", blocks)


def _code(value: str) -> TableCell:
    return TableCell([TextSpan(value, code=True)] if value else [""])


# -- verification ------------------------------------------------------------------------------------------------------------------------


def verification(report: Report) -> Section:
    """How to check all of it, and how to measure it again."""
    source = shlex.quote(report.source)
    raw = source if report.from_file else "raw.json"
    export = [] if report.from_file else [f"sark-node results {source} --raw raw.json"]
    note = (
        "With the raw results anybody can check everything: the workers' signatures, task and model by their hashes, and each "
        "figure made again from the raw samples. No network and no trust in whoever wrote this is needed."
    )
    blocks: list[Block] = [
        Paragraph([note]),
        ShellCommands([*export, f"sark-node verify {raw} --model MODEL_FILE"]),
        Paragraph(
            [
                "The raw results that this report was made from have the sha256 ",
                TextSpan(report.raw_sha256, code=True),
                ".",
            ]
        ),
    ]
    findings = report.findings or ()
    if wrong := [finding for finding in findings if finding.wrong]:
        blocks.append(Paragraph([f"{len(wrong)} did not hold when this was written:"], "bad"))
        blocks.append(
            Bullets(
                [
                    [TextSpan(finding.task or "the file"), ": ", TextSpan("; ".join(finding.wrong))]
                    for finding in wrong[:MAX_FINDINGS]
                ]
            )
        )
    if unsigned := sum(not finding.signed and not finding.wrong for finding in findings):
        note = f"{unsigned} have no worker's signature: their rows are the scheduler's own account."
        blocks.append(Paragraph([note]))
    blocks.append(Paragraph(["To measure the same models again, as the campaign file asked for it:"]))
    blocks.append(
        ShellCommands(
            [
                "sark-node plan campaign.yaml",
                "sark-node submit campaign.yaml",
                f"sark-node compare {source} NEW_CAMPAIGN",
            ]
        )
    )
    return Section("verify", "Verify it, and do it again", blocks)

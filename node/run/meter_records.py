"""Converts the reports of meters and of a sustained run to a record's values. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.contract.base import MeterReport, SustainedReport, Telemetry
from protocol.formats.sustain import ZERO_C_MK
from protocol.values.energy import MAX_METERS, MeterSample
from protocol.values.record import pack_samples
from protocol.values.sustained import SustainedSample
from swarm.base.text import ascii_line, shorten


def sustained_sample(report: SustainedReport, telemetry: Telemetry | None) -> SustainedSample:
    """The sample, with heat and clock of the GPU if they were read, else of the processor."""
    part, heat, clock = "processor", report.temperature_mk, report.clock_khz
    if telemetry is not None and len(telemetry.stretch_clock_mhz) == len(report.starts_ns):
        part = "gpu"
        heat = tuple(
            0 if one is None else max(0, round(1000 * one) + ZERO_C_MK)
            for one in telemetry.stretch_temperature_c
        )
        clock = tuple(0 if one is None else round(1000 * one) for one in telemetry.stretch_clock_mhz)
    return SustainedSample(
        starts=pack_samples(report.starts_ns),
        part="gpu" if part == "gpu" else "processor",
        temperature=_known(heat),
        clock=_known(clock),
        pauses=pack_samples(report.pauses_ns),
        probes=tuple(map(pack_samples, report.probes_ns)),
    )


def _known(column: Sequence[int]) -> bytes | None:
    return pack_samples(column) if any(column) else None


def meter_samples(meters: Sequence[MeterReport], telemetry: Telemetry | None) -> tuple[MeterSample, ...]:
    """The samples of all meters, the accelerator's own first."""
    reports = list(meters)
    if telemetry is not None and telemetry.energy_j is not None:
        own = MeterReport(
            source=telemetry.source,
            part="gpu",
            device=telemetry.device,
            samples=telemetry.samples,
            energy_j=telemetry.energy_j,
            idle_w=telemetry.idle_w,
            stretch_energy_j=telemetry.stretch_energy_j,
        )
        reports.insert(0, own)
    return tuple(map(_sample, reports[:MAX_METERS]))


def _sample(report: MeterReport) -> MeterSample:
    microjoules = [0 if one is None else 1 + max(0, round(1e6 * one)) for one in report.stretch_energy_j]
    return MeterSample.model_validate(
        {
            "source": ascii_line(report.source),
            "part": report.part,
            "device": ascii_line(report.device),
            "samples": report.samples,
            "energy_j": report.energy_j,
            "idle_w": report.idle_w,
            "stretches": _known(microjoules),
            "notes": tuple(shorten(note) for note in report.notes[:8]),
        }
    )

"""Meters and sustained runs in a record: of the GPU where one was read, and nothing for unknown figures."""

from __future__ import annotations

from drivers.contract.base import MeterReport, SustainedReport, Telemetry
from node.run.meter_records import meter_samples, sustained_sample
from protocol.values.record import unpack_samples

REPORT = SustainedReport((0, 5), (300_000, 0), (0, 0), (1,), ((7, 8),))
GPU = Telemetry(
    "nvml",
    "H200",
    9,
    energy_j=12.0,
    idle_w=70.0,
    stretch_energy_j=(5.0, None),
    stretch_clock_mhz=(1980.0, None),
    stretch_temperature_c=(41.5, 43.0),
)


def test_a_processors_heat_stands_where_no_gpu_was_read() -> None:
    sample = sustained_sample(REPORT, None)
    assert (sample.part, sample.clock) == ("processor", None)
    assert sample.temperature is not None
    assert unpack_samples(sample.temperature) == (300_000, 0)
    assert [unpack_samples(probe) for probe in sample.probes] == [(7, 8)]
    assert sustained_sample(REPORT, Telemetry("nvml", "H200", 1)).part == "processor"


def test_a_gpus_heat_and_clock_are_its_own() -> None:
    sample = sustained_sample(REPORT, GPU)
    assert sample.part == "gpu"
    assert sample.temperature is not None
    assert sample.clock is not None
    assert unpack_samples(sample.temperature) == (314_650, 316_150)
    assert unpack_samples(sample.clock) == (1_980_000, 0)


def test_the_accelerators_own_meter_comes_first_and_unknown_joules_are_none() -> None:
    rapl = MeterReport("rapl", "package", "package-0", 3, None, notes=("why",))
    own, other = meter_samples([rapl], GPU)
    assert (own.source, own.part, own.energy_j, own.idle_w) == ("nvml", "gpu", 12.0, 70.0)
    assert own.stretches is not None
    assert unpack_samples(own.stretches) == (5_000_001, 0)
    assert (other.source, other.energy_j, other.stretches, other.notes) == ("rapl", None, None, ("why",))
    assert meter_samples([], None) == ()

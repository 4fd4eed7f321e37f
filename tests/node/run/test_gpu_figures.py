"""What NVML reads of a GPU during a run, on its way through the record into the row."""

from __future__ import annotations

import pytest

from drivers.measure.telemetry import TelemetryReading, summarise
from node.run.record_builder import COMPLETE, RunObservations
from protocol.values.record import DeviceFacts, read_record, record_body
from tests.node.run.runner_parts import WORKER, job, task
from tests.results.row.test_sustained import row_of

S = 1_000_000_000
READINGS = [
    TelemetryReading(
        at_ns=at * S,
        utilisation=0.0 if at < 2 else 0.9,
        memory=3 << 30,
        by_process={} if at < 2 else {7: 2 << 30},
        power_w=60.0 if at < 2 else 300.0,
        energy_j=at * 300.0,
        clock_mhz=345.0 if at < 2 else 1980.0,
        temperature_c=40.0 + at,
        slowed=0x4,
    )
    for at in range(10)
]


def test_utilisation_memory_power_and_clock_of_a_gpu_stand_in_the_row() -> None:
    telemetry = summarise(READINGS, [(4 * S, 8 * S)], device="H200", began_ns=2 * S)
    assert telemetry is not None
    observed = RunObservations()
    observed.add(telemetry, 0.0)
    facts = DeviceFacts(device="d-1", name="n", version="1")
    record = read_record(record_body(observed.record(job(task(b"")), COMPLETE, WORKER, facts)))
    row = row_of(accelerator=record.accelerator, meters=None)
    assert (row.accelerator, row.accelerator_source) == ("H200", "nvml")
    assert row.gpu_util == pytest.approx(90)
    assert row.vram_mb == 2048
    assert (row.power_w, row.idle_power_w) == (300, 60)
    assert row.gpu_clock_mhz == 1980
    assert row.gpu_temperature_c == 48
    assert row.gpu_throttled == "power"
    assert row.energy_source == "nvml gpu"

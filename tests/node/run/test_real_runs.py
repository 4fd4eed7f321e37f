"""A real model in real processes becomes a record."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drivers.launch.launch import Launch, Zygote
from node.run.runner import StopRun, run
from protocol.formats.phase import Phase
from protocol.values.record import (
    BLOCK_FIELDS,
    Record,
    unpack_samples,
)
from protocol.values.task import Measure
from protocol.words import Reason, RunOutcome
from tests.node.run.runner_parts import bench, job, task


def magika() -> bytes:
    """A real model, from its package."""
    spec = importlib.util.find_spec("magika")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "models/standard_v3_3/model.onnx").read_bytes()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("onnx").start() as started:
        yield started


async def real(folder: Path, zygote: Zygote, content: bytes, **changes: Any) -> tuple[Record, list[Phase]]:
    phases: list[Phase] = []
    made = bench(folder, lambda order, limits: Launch(order, limits, zygote), content)
    what = task(content, measure=Measure(runs=20, loads=2, warmup=2), **changes)
    record = await run(job(what), made, StopRun(), lambda phase, done, total, median: phases.append(phase))
    return record, phases


async def test_a_real_model_is_measured_in_real_processes(tmp_path: Path, zygote: Zygote) -> None:
    record, phases = await real(tmp_path, zygote, magika())
    assert record.outcome is RunOutcome.COMPLETE, record.detail
    assert record.timings
    samples = [unpack_samples(timing.samples) for timing in record.timings]
    assert [len(of_launch) for of_launch in samples] == [10, 10]
    assert min(map(min, samples)) > 0
    assert [load.kind for load in record.loads if load.kind != "warm"][1:] == ["fresh"]
    assert record.timings[0].began_s == 0.0
    assert 0 < record.timings[1].began_s < 60
    for timing in record.timings:
        assert timing.blocks is not None
        blocks = unpack_samples(timing.blocks)
        assert sum(blocks[:: len(BLOCK_FIELDS)]) == 10
        assert timing.wall_s == pytest.approx(sum(blocks[1 :: len(BLOCK_FIELDS)]) / 1e9)
    assert record.ran is not None
    assert record.ran.providers == ("CPUExecutionProvider",)
    assert record.ran.shapes
    assert list(dict.fromkeys(phases))[:3] == [Phase.FETCH, Phase.PREPARE, Phase.LOAD]
    assert Phase.RUN in phases
    stages = {stage.stage for stage in record.stages}
    assert stages >= {"queue", "fetch", "prepare", "load", "warm-up", "run"}


async def test_a_real_model_that_is_cut_short_is_broken_for_good(tmp_path: Path, zygote: Zygote) -> None:
    record, _ = await real(tmp_path, zygote, magika()[:10_000])
    assert (record.outcome, record.reason, record.permanent) == (RunOutcome.FAILED, Reason.BROKEN_MODEL, True)


async def test_a_unit_that_is_not_here_is_the_wrong_unit(tmp_path: Path, zygote: Zygote) -> None:
    record, _ = await real(tmp_path, zygote, magika(), unit="DirectML (ONNX)")
    assert (record.outcome, record.reason, record.permanent) == (RunOutcome.FAILED, Reason.WRONG_UNIT, False)

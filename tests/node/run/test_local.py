"""A real measurement on this device without a network: a tiny ONNX model in child processes, and a record under this device's key."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from drivers.onnx.session import TINY_MODEL
from node.run.local import LocalDevice
from protocol.errors import CampaignError, ResourceError
from protocol.formats.phase import Phase
from protocol.formats.turns import LOOKS
from protocol.values.record import Record, read_record, record_message
from protocol.values.task import Measure, Timeouts
from protocol.words import Reason, RunOutcome
from results.row.acceptance import check_whole
from swarm.base.home import Home
from swarm.net.identity import verify

BRIEF_S = 20.0
"""Time limit for comparing a model with itself, which finds no difference and so does not end early."""


def ended_rightly(record: Record, took_s: float) -> bool:
    """Whether the comparison ended at one of its looks, or because its time was over."""
    launches = len(record.rounds or ())
    assert launches == len(record.timings) >= LOOKS[0]
    return launches in LOOKS or took_s > BRIEF_S / 2


def test_a_model_is_measured_and_a_broken_one_reported_under_this_devices_key(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    good.write_bytes(TINY_MODEL)
    bad.write_bytes(b"no graph at all")
    phases: list[Phase] = []
    with LocalDevice(Home.at(tmp_path / "home"), max_wait_s=0, lock_folder=tmp_path) as device:
        assert "CPU (ONNX)" in device.units
        measured = device.measure(
            good, "CPU (ONNX)", Measure(runs=12, loads=2), report=lambda phase, *_: phases.append(phase)
        )
        began = time.monotonic()
        turns = device.measure(
            good, "CPU (ONNX)", Measure(threads=1), Timeouts(run_s=BRIEF_S), beside=(good,)
        )
        took_s = time.monotonic() - began
        failed = device.measure(bad, "CPU (ONNX)", Measure(runs=1, loads=1))
        with pytest.raises(ResourceError, match="does not work on this device") as where:
            device.measure(good, "GPU (Nowhere)", Measure())
        with pytest.raises(ResourceError) as served:
            device.measure(good, "API (OpenAI)", Measure())
        with pytest.raises(CampaignError, match="No such file"):
            device.measure(tmp_path / "none.onnx", "CPU (ONNX)", Measure())
    assert "CPU (ONNX)" in where.value.hint
    assert "SARK_API=" in served.value.hint, "whose server it is says the owner"
    record = read_record(measured.signed.body)
    assert verify(record.worker, record_message(measured.signed.body), measured.signed.signature)
    assert record.outcome is RunOutcome.COMPLETE
    assert len(record.timings) == 2
    assert {Phase.LOAD, Phase.RUN} <= set(phases)
    assert (record.task_sha256, record.model_sha256) == (record.task_sha256, measured.task.model.sha256)
    compared = read_record(turns.signed.body)
    assert compared.outcome is RunOutcome.COMPLETE
    assert ended_rightly(compared, took_s)
    assert [ran.agrees for ran in compared.ran_beside or ()] == [True]
    check_whole(compared, turns.task)
    broken = read_record(failed.signed.body)
    assert (broken.outcome, broken.reason) == (RunOutcome.FAILED, Reason.BROKEN_MODEL)
    assert not (tmp_path / "home" / "cache" / "models").exists(), "a user's own file is not copied"


@pytest.mark.slow
def test_models_that_cannot_share_a_process_are_compared_in_one_each(tmp_path: Path) -> None:
    model = tmp_path / "good.onnx"
    model.write_bytes(TINY_MODEL)
    unit = "CPU (ONNX)"
    with LocalDevice(Home.at(tmp_path / "home"), max_wait_s=0, lock_folder=tmp_path) as device:
        began = time.monotonic()
        made = device.measure(
            model, unit, Measure(threads=1), Timeouts(run_s=BRIEF_S), beside=(model,), beside_units=(unit,)
        )
        took_s = time.monotonic() - began
        with pytest.raises(ResourceError, match=r"GPU \(Nowhere\) does not work"):
            device.measure(model, unit, Measure(), beside=(model,), beside_units=("GPU (Nowhere)",))
    record = read_record(made.signed.body)
    assert record.outcome is RunOutcome.COMPLETE
    assert ended_rightly(record, took_s)
    check_whole(record, made.task)

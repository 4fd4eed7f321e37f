"""A record of models that took turns: complete or refused, and its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from protocol.errors import RemoteProtocolError
from protocol.formats.turns import LOOKS
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from protocol.values.record import DeviceFacts, LoadSample, Record, RunFacts, Timing, pack_samples
from protocol.values.requirement import Requirement
from protocol.values.rounds import MAX_ROUNDS, RoundsSample
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.words import Reason, RunOutcome
from results.row.acceptance import check_whole, find_task_mismatch
from results.row.make import fingerprint, make_row
from results.row.record import observe

UNIT = "CPU (ONNX)"
WORKER = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnn"
TASK = Task(
    campaign="c-1",
    task="c-1/1",
    scheduler=WORKER,
    model=Model(name="b.onnx", sha256="ab" * 32, size=10),
    unit=UNIT,
    requirement=Requirement(),
    measure=Measure(),
    timeouts=Timeouts(),
    beside=(Model(name="a.onnx", sha256="cd" * 32, size=10),),
)
ROUNDS = RoundsSample(
    wall=(pack_samples([1000] * 8), pack_samples([1100] * 8)),
    cpu=(pack_samples([900] * 8), pack_samples([990] * 8)),
    per_block=(6, 5),
    turns=2,
)
TIMING = Timing(samples=pack_samples([1100] * 8), warmup=pack_samples([1]), cpu_s=1, wall_s=1, per_sample=10)
ALONE = TIMING.model_copy(update={"per_sample": 1})
ASKED = TASK.model_copy(update={"measure": Measure(runs=48, loads=6)})
RAN = RunFacts(unit=UNIT, driver="onnx", runtime="r", shapes={"x": (1,)})
FACTS: dict[str, Any] = {
    "campaign": "c-1",
    "task": "c-1/1",
    "attempt": 1,
    "fence": Fence(incarnation=0, number=1),
    "worker": WORKER,
    "task_sha256": "00" * 32,
    "model_sha256": "ab" * 32,
    "outcome": RunOutcome.COMPLETE,
    "device": DeviceFacts(device="d", name="here"),
    "ran": RAN,
    "loads": (LoadSample(ns=1),) * 6,
    "timings": (TIMING,) * 6,
    "rounds": (ROUNDS,) * 6,
    "ran_beside": (RAN,),
}


def record(**changes: Any) -> Record:
    return Record(**{**FACTS, **changes})


def test_a_row_says_what_it_was_compared_with_and_how() -> None:
    check_whole(record(), TASK)
    row = make_row(TASK, TaskState.SUCCEEDED, record())
    assert (row.file_name, row.against, row.compare_verdict) == ("b.onnx", "a.onnx", "SLOWER")
    assert (row.ratio, row.cpu_ratio) == (pytest.approx(1.1), pytest.approx(1.1))
    assert row.inference_ms_median == pytest.approx(0.0011)
    assert "wall time 1.100" in row.compare_reason


def test_a_row_of_one_model_says_nothing_of_others() -> None:
    alone = Task(**{**TASK.model_dump(), "beside": None})
    row = make_row(alone, TaskState.SUCCEEDED, record(rounds=None, ran_beside=None))
    assert (row.against, row.compare_verdict, row.ratio, row.contention) == ("", "", None, None)


def test_rows_of_models_beside_others_are_not_averaged_with_those_measured_alone() -> None:
    alone = Task(**{**TASK.model_dump(), "beside": None})
    assert fingerprint(TASK, record()) != fingerprint(alone, record())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rounds": (ROUNDS,) * 5}, "did not take turns"),
        ({"loads": (LoadSample(ns=1),) * 7}, "did not take turns"),
        ({"ran_beside": None}, "describes 0 other models, not 1"),
        ({"timings": (TIMING.model_copy(update={"samples": pack_samples([1] * 8)}),) * 6}, "whose times differ"),
        ({name: value * 34 for name, value in {
            "loads": (LoadSample(ns=1),) * 6, "timings": (TIMING,) * 6, "rounds": (ROUNDS,) * 6
        }.items()}, f"the task asks for {LOOKS[-1]}"),
        ({"rounds": (ROUNDS.model_copy(update={
            "wall": (*ROUNDS.wall, ROUNDS.wall[-1]), "cpu": None, "per_block": (1, 1, 1)
        }),) * 6}, "rounds of 3 models, not 2"),
    ],
)  # fmt: skip
def test_a_record_that_lacks_turns_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        check_whole(record(**changes), TASK)


@pytest.mark.parametrize(
    "change",
    [
        lambda: {"wall": (ROUNDS.wall[0], pack_samples([1] * 7))},
        lambda: {"cpu": (ROUNDS.wall[0],) * 3},
        lambda: {"per_block": (1,)},
        lambda: {"wall": (pack_samples([]),) * 2, "cpu": None},
        lambda: {"wall": (pack_samples([1] * (MAX_ROUNDS + 1)),) * 2, "cpu": None},
    ],
)
def test_rounds_that_not_every_model_took_part_in_cannot_be_read(
    change: Callable[[], dict[str, Any]],
) -> None:
    with pytest.raises(RemoteProtocolError, match="rounds that not every model took part in"):
        observe(record(rounds=(ROUNDS.model_copy(update=change()),)))


def test_a_model_beside_has_to_run_where_it_was_asked() -> None:
    def of(**facts: Any) -> tuple[Reason, str] | None:
        return find_task_mismatch(record(ran_beside=(RAN.model_copy(update=facts),)), TASK)

    assert of() is None
    assert (of(unit="GPU (ONNX)") or [""])[0] is Reason.WRONG_UNIT


def test_a_model_beside_with_a_unit_of_its_own_has_to_run_there_in_a_process_of_its_own() -> None:
    torch = "CPU (Torch)"
    apart = TASK.model_copy(update={"beside_units": (torch,)})
    ran = record(ran_beside=(RAN.model_copy(update={"unit": torch}),))
    assert find_task_mismatch(ran, apart) is None
    older = find_task_mismatch(record(), apart)
    assert older == (
        Reason.WRONG_UNIT,
        f"a model to compare with was requested on {torch}, but ran on {UNIT}",
    )
    row = make_row(apart, TaskState.SUCCEEDED, ran)
    assert (row.against, row.against_unit, row.compute_units) == ("a.onnx", torch, UNIT)
    assert make_row(TASK, TaskState.SUCCEEDED, record()).against_unit == ""
    assert row.compare_reason.endswith("; each in a process of its own")
    assert fingerprint(apart, ran) != fingerprint(TASK, ran)
    with pytest.raises(ValidationError, match="must have as many units"):
        Task(**{**TASK.model_dump(), "beside_units": (torch, torch)})


def test_a_worker_that_ran_the_model_alone_has_not_done_what_was_asked() -> None:
    alone = record(rounds=None, ran_beside=None, timings=(ALONE,) * 6)
    check_whole(alone, ASKED)
    assert find_task_mismatch(alone, ASKED) == (
        Reason.DOES_NOT_FIT,
        "the model should have taken turns with a.onnx, but the worker ran it alone",
    )
    assert find_task_mismatch(record(), TASK) is None


def test_outputs_of_a_model_beside_that_differ_mark_the_row() -> None:
    differing = RAN.model_copy(update={"agrees": False, "compared": "y: 3 values"})
    row = make_row(TASK, TaskState.SUCCEEDED, record(ran_beside=(differing,)))
    assert (row.verdict, "y: 3 values" in row.verdict_reason) == ("mismatch", True)


def test_the_bytes_of_a_record_and_a_task_of_one_model_are_those_of_before() -> None:
    alone = Task(**{**TASK.model_dump(), "beside": None})
    assert "beside" not in alone.to_wire()
    assert not {"rounds", "ran_beside"} & record(rounds=None, ran_beside=None).to_wire().keys()

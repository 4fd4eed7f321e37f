"""A record counts only if its worker signed it and it matches the task exactly."""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Mapping

import pytest

from protocol.errors import RemoteProtocolError
from protocol.messages.work import Result
from protocol.values.lease import Fence
from protocol.values.record import (
    MAX_RECORD,
    DeviceFacts,
    LoadSample,
    Record,
    RunFacts,
    Timing,
    pack_samples,
    record_body,
    record_message,
)
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from protocol.words import Reason, RunOutcome
from results.row.acceptance import check, find_task_mismatch
from scheduler.run.shell import pull
from swarm.memory.network import MemorySwarm
from swarm.net.identity import Identity

WORKER = Identity.from_seed("worker")
UNIT = "CPU (ONNX)"
TASK = Task(
    campaign="c-one",
    task="c-one/1",
    scheduler=Identity.from_seed("scheduler").peer_id,
    model=Model(name="m.onnx", sha256="ab" * 32, size=10),
    unit=UNIT,
    requirement=Requirement(),
    measure=Measure(runs=3, loads=2),
    timeouts=Timeouts(),
)
BODY = task_body(TASK)
GOOD: dict[str, object] = {
    "campaign": "c-one",
    "task": "c-one/1",
    "attempt": 2,
    "fence": Fence(incarnation=1, number=3),
    "worker": WORKER.peer_id,
    "task_sha256": hashlib.sha256(BODY).hexdigest(),
    "model_sha256": "ab" * 32,
    "outcome": RunOutcome.COMPLETE,
    "device": DeviceFacts(device="d", name="w"),
    "ran": RunFacts(unit=UNIT, driver="onnx", runtime="r"),
    "loads": (LoadSample(ns=5),) * 2,
    "timings": (Timing(samples=pack_samples([1, 2, 3]), warmup=pack_samples([]), cpu_s=0, wall_s=0),),
}


def timed(samples: bytes, warmup: bytes = pack_samples([])) -> dict[str, object]:
    return {"timings": (Timing(samples=samples, warmup=warmup, cpu_s=0, wall_s=0),)}


def made(changes: Mapping[str, object] = {}, *, signer: Identity = WORKER) -> tuple[Result, bytes]:
    body = record_body(Record.model_validate({**GOOD, **changes}))
    result = Result(
        campaign="c-one",
        task="c-one/1",
        attempt=2,
        lease="l",
        fence=Fence(incarnation=1, number=3),
        sha256=hashlib.sha256(body).hexdigest(),
        size=len(body),
        signature=signer.sign(record_message(body)),
        body=body,
    )
    return result, body


def test_a_record_that_is_what_was_asked_for_is_taken() -> None:
    result, body = made()
    assert check(result, body, WORKER.peer_id, TASK, BODY)[0].outcome is RunOutcome.COMPLETE


@pytest.mark.parametrize(
    "changes",
    [
        {"campaign": "c-two"},
        {"task": "c-one/2"},
        {"attempt": 1},
        {"fence": Fence(incarnation=1, number=2)},
        {"worker": Identity.from_seed("other").peer_id},
        {"task_sha256": "cd" * 32},
        {"model_sha256": "cd" * 32},
        {"timings": ()},
        {"ran": None},
        {"outcome": RunOutcome.FAILED, "reason": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_record_of_something_else_is_refused(changes: dict[str, object]) -> None:
    result, body = made(changes)
    with pytest.raises(RemoteProtocolError, match="the record of c-one/1"):
        check(result, body, WORKER.peer_id, TASK, BODY)


@pytest.mark.parametrize(
    "changes",
    [
        timed(b"junk"),
        timed(pack_samples([1, 2, 3]), b"junk"),
        timed(pack_samples([])),
        timed(pack_samples([1])),
        timed(pack_samples([1, 2, 3, 4])),
        {"loads": ()},
        {"loads": (LoadSample(ns=5),) * 3},
    ],
    ids=["junk", "junk warm-up", "none", "one", "more", "no loads", "more loads"],
)
def test_a_complete_record_has_every_load_and_inference_that_was_asked_for(
    changes: dict[str, object],
) -> None:
    result, body = made(changes)
    with pytest.raises(RemoteProtocolError, match="the record of c-one/1"):
        check(result, body, WORKER.peer_id, TASK, BODY)


@pytest.mark.parametrize("samples", [pack_samples([]), pack_samples([1])])
def test_a_failed_record_may_have_less_than_was_asked_for_and_never_more(samples: bytes) -> None:
    failed = {"outcome": RunOutcome.FAILED, "reason": Reason.CRASHED, "loads": ()}
    result, body = made({**timed(samples), **failed})
    assert check(result, body, WORKER.peer_id, TASK, BODY)[0].outcome is RunOutcome.FAILED
    for bad in (b"junk", pack_samples([1, 2, 3, 4])):
        result, body = made({**timed(bad), **failed})
        with pytest.raises(RemoteProtocolError, match="cannot be read"):
            check(result, body, WORKER.peer_id, TASK, BODY)


@pytest.mark.parametrize("where", ["samples", "warm-up samples", "numbers of blocks", "times in series"])
def test_what_the_task_does_not_ask_for_is_counted_before_it_is_read(where: str) -> None:
    """Reading the record would find the negative time."""
    bomb, one = zlib.compress(b"\x01" * 100_000), pack_samples([1, 2, 3])
    timing = Timing(samples=one, warmup=one, cpu_s=0, wall_s=0)
    bombs: dict[str, dict[str, object]] = {
        "samples": {"timings": (timing.model_copy(update={"samples": bomb}),)},
        "warm-up samples": {"timings": (timing.model_copy(update={"warmup": bomb}),)},
        "numbers of blocks": {"timings": (timing.model_copy(update={"blocks": bomb}),)},
        "times in series": {"series": {"ttft": bomb}},
    }
    result, body = made(bombs[where])
    with pytest.raises(RemoteProtocolError, match=f"too (many|long) or cut off .among its {where}"):
        check(result, body, WORKER.peer_id, TASK, BODY)


def test_more_launches_than_the_task_asks_for_are_refused_before_any_is_read() -> None:
    result, body = made({"timings": (Timing(samples=b"junk", warmup=b"junk", cpu_s=0, wall_s=0),) * 3})
    with pytest.raises(
        RemoteProtocolError, match="3 launches that timed inferences, but the task asks for 2"
    ):
        check(result, body, WORKER.peer_id, TASK, BODY)


def precise(launches: int, loads: int, unit: str = UNIT) -> tuple[Result, bytes, Task, bytes]:
    """A record of a task that asked for a precision: three inferences in each launch."""
    task = TASK.model_copy(update={"measure": Measure(precision=0.02), "unit": unit})
    body = task_body(task)
    one = Timing(samples=pack_samples([1, 2, 3]), warmup=pack_samples([]), cpu_s=0, wall_s=0)
    changes = {
        "task_sha256": hashlib.sha256(body).hexdigest(),
        "timings": (one,) * launches,
        "loads": (LoadSample(ns=5),) * loads,
    }
    return (*made(changes), task, body)


@pytest.mark.parametrize(("launches", "loads"), [(6, 6), (8, 8), (20, 20), (1, 1)])
def test_a_precision_may_take_some_launches(launches: int, loads: int) -> None:
    result, body, task, request = precise(launches, loads)
    assert check(result, body, WORKER.peer_id, task, request)[0].outcome is RunOutcome.COMPLETE


@pytest.mark.parametrize(("launches", "loads"), [(21, 21), (21, 20), (6, 0), (0, 6), (6, 7), (7, 6)])
def test_a_precision_does_not_take_any_number_of_launches(launches: int, loads: int) -> None:
    result, body, task, request = precise(launches, loads)
    with pytest.raises(RemoteProtocolError, match="the record of c-one/1"):
        check(result, body, WORKER.peer_id, task, request)


def test_where_a_server_holds_the_model_no_load_is_due_and_one_launch_is_all() -> None:
    result, body, task, request = precise(1, 0, unit="API (OpenAI)")
    assert check(result, body, WORKER.peer_id, task, request)[0].outcome is RunOutcome.COMPLETE
    result, body, task, request = precise(2, 0, unit="API (OpenAI)")
    with pytest.raises(RemoteProtocolError, match="2 launches"):
        check(result, body, WORKER.peer_id, task, request)


def test_the_launches_of_a_task_share_its_runs() -> None:
    one = Timing(samples=pack_samples([1]), warmup=pack_samples([]), cpu_s=0, wall_s=0)
    two = Timing(samples=pack_samples([1, 2]), warmup=pack_samples([]), cpu_s=0, wall_s=0)
    result, body = made({"timings": (one, two)})
    assert check(result, body, WORKER.peer_id, TASK, BODY)[0].outcome is RunOutcome.COMPLETE
    none = Timing(samples=pack_samples([]), warmup=pack_samples([]), cpu_s=0, wall_s=0)
    means = one.model_copy(update={"per_sample": 50})
    for timings in [(one, two, none), (none, two, one), (one, one, one), (two, two), (means, two)]:
        result, body = made({"timings": timings})
        with pytest.raises(RemoteProtocolError, match="the record of c-one/1"):
            check(result, body, WORKER.peer_id, TASK, BODY)


@pytest.mark.parametrize(
    "blocks",
    [(1, 2, 3, 4), (9, 1, 1, 0, 0), (2, 1, 1, 0, 0, 2, 1, 1, 0, 0)],
    ids=["cut off", "more samples than there are", "more in all"],
)
def test_blocks_that_cannot_be_are_refused(blocks: tuple[int, ...]) -> None:
    good = Timing(samples=pack_samples([1, 2, 3]), warmup=pack_samples([]), cpu_s=0, wall_s=0)
    result, body = made({"timings": (good.model_copy(update={"blocks": pack_samples(blocks)}),)})
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        check(result, body, WORKER.peer_id, TASK, BODY)


def test_a_record_with_more_than_a_million_samples_in_all_is_refused() -> None:
    many = pack_samples([5] * 600_000)
    one = Timing(samples=many, warmup=pack_samples([]), cpu_s=0, wall_s=0)
    for changes in ({"timings": (one, one)}, {"series": {"ttft": many, "itl": many}}):
        result, body = made(changes)
        with pytest.raises(RemoteProtocolError, match=r"too (many|long)"):
            check(result, body, WORKER.peer_id, TASK, BODY)


def test_other_shapes_than_the_task_names_are_not_what_was_asked_for() -> None:
    task = TASK.model_copy(
        update={"measure": TASK.measure.model_copy(update={"shapes": {"x": (1, 48, 320)}})}
    )
    for shapes, taken in [({"x": (1, 48, 320)}, True), ({"x": (1, 1, 1)}, False), ({}, False)]:
        ran = RunFacts(unit=UNIT, driver="onnx", runtime="r", shapes=shapes)
        verdict = find_task_mismatch(Record.model_validate({**GOOD, "ran": ran}), task)
        assert (verdict is None) is taken
    assert verdict == (Reason.DOES_NOT_FIT, "x was requested as 1×48×320, but the worker ran another shape")


@pytest.mark.parametrize(
    ("began_s", "precision", "taken"),
    [
        ((0.0, 50.0, 100.0), None, True),
        ((0.0, 50.0, 99.0), None, False),
        ((0.0, 0.2, 0.4), None, False),
        ((0.0, 99.0, 100.0), None, True),
        ((0.0, 1.0, 100.0), None, False),
        ((0.0, 20.0, 40.0), 0.02, True),
        ((0.0, 19.0, 40.0), 0.02, False),
        ((0.0, 0.2, 0.4), 0.02, False),
        ((0.0,), None, True),
    ],
)
def test_launches_that_follow_at_once_are_not_those_that_were_to_be_spread(
    began_s: tuple[float, ...], precision: float | None, taken: bool
) -> None:
    measure = TASK.measure.model_copy(update={"over_s": 100.0, "precision": precision})
    samples = pack_samples([1_000_000])
    timings = tuple(
        Timing(samples=samples, warmup=pack_samples([]), cpu_s=0, wall_s=0, began_s=each) for each in began_s
    )
    record = Record.model_validate({**GOOD, "ran": RunFacts(unit=UNIT, driver="onnx", runtime="r")})
    record = record.model_copy(update={"timings": timings})
    verdict = find_task_mismatch(record, TASK.model_copy(update={"measure": measure}))
    why = "launches spread over 100 s were requested, but the worker made them sooner, or its version does not support gaps"
    assert verdict == (None if taken else (Reason.DOES_NOT_FIT, why))


def test_a_record_that_another_key_signed_is_refused() -> None:
    result, body = made(signer=Identity.from_seed("thief"))
    with pytest.raises(RemoteProtocolError, match="not signed"):
        check(result, body, WORKER.peer_id, TASK, BODY)


def test_another_unit_is_a_failure_only_where_something_was_measured() -> None:
    other = RunFacts(unit="GPU (CUDA)", driver="onnx", runtime="r")
    verdict = find_task_mismatch(Record.model_validate({**GOOD, "ran": other}), TASK)
    assert verdict == (Reason.WRONG_UNIT, f"{UNIT} was requested, but GPU (CUDA) ran the model")
    assert find_task_mismatch(Record.model_validate(GOOD), TASK) is None
    failed = Record.model_validate(
        {**GOOD, "outcome": RunOutcome.FAILED, "reason": Reason.CRASHED, "ran": other}
    )
    assert find_task_mismatch(failed, TASK) is None


@pytest.mark.parametrize(
    "changes", [{"sha256": "cd" * 32}, {"size": 7}, {"size": MAX_RECORD + 1}], ids=["hash", "size", "huge"]
)
async def test_bytes_that_are_not_what_the_message_says_are_refused(changes: dict[str, object]) -> None:
    result, _ = made()
    async with MemorySwarm(random.Random(1)) as swarm:
        network = swarm.node(Identity.from_seed("scheduler"))
        assert await pull(network, WORKER.peer_id, result) == result.body
        with pytest.raises(RemoteProtocolError, match=r"does not match its announced|are allowed"):
            await pull(network, WORKER.peer_id, result.model_copy(update=changes))


@pytest.mark.parametrize(
    ("timing", "why"),
    [
        (
            {"samples": pack_samples([10**6] * 3), "wall_s": 0.001},
            "0.003 s of inferences in a window of 0.001 s",
        ),
        ({"samples": pack_samples([10**6] * 3), "wall_s": 0.003}, ""),
        ({"samples": pack_samples([10**6] * 3), "wall_s": 60}, ""),
    ],
)
def test_inferences_cannot_take_longer_than_the_window_that_they_were_timed_in(
    timing: dict[str, object], why: str
) -> None:
    one = Timing.model_validate({"warmup": pack_samples([]), "cpu_s": 0, **timing})
    result, body = made({"timings": (one,)})
    if not why:
        assert check(result, body, WORKER.peer_id, TASK, BODY)[0].timings == (one,)
        return
    with pytest.raises(RemoteProtocolError, match=why):
        check(result, body, WORKER.peer_id, TASK, BODY)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_run_on_more_threads_than_were_asked_for_is_none_of_what_was_asked_for(threads: int) -> None:
    task = TASK.model_copy(update={"measure": Measure(runs=3, loads=2, threads=2)})
    ran = RunFacts(unit=UNIT, driver="onnx", runtime="r", threads=threads)
    request = task_body(task)
    result, body = made({"ran": ran, "task_sha256": hashlib.sha256(request).hexdigest()})
    if threads <= 2:  # a device with fewer cores uses fewer threads, and its row says so
        assert check(result, body, WORKER.peer_id, task, request)[0].ran == ran
        return
    with pytest.raises(RemoteProtocolError, match="is of a run on 3 threads, but the task asks for 2"):
        check(result, body, WORKER.peer_id, task, request)


def test_an_input_has_no_size_below_nothing() -> None:
    ran = RunFacts(unit=UNIT, driver="onnx", runtime="r", shapes={"x": (1, -3)})
    result, body = made({"ran": ran})
    with pytest.raises(RemoteProtocolError, match="an input with a negative size"):
        check(result, body, WORKER.peer_id, TASK, BODY)

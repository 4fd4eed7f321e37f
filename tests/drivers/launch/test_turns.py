"""Models that take turns, each in its own process: what a launch reports, and that no child can delay, fool or outlive the others."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from drivers.contract.base import (
    BesideReport,
    BetweenLaunches,
    Cancelled,
    CheckReport,
    Crashed,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    ReadyReport,
    RoundsReport,
    TimedOut,
    TurnReport,
    Unfit,
    Unshaped,
    WorkOrder,
)
from drivers.contract.frames import HEADER_BYTES, pack_event, pack_failure
from drivers.launch.deadlines import LaunchDeadlines
from drivers.launch.events import LaunchEvents
from drivers.launch.launch import EnoughRounds, Launch, Zygote
from drivers.launch.process import ForkedChild
from drivers.launch.turns import TurnSide, take_turns
from drivers.local.turns import MAX_RESTS, REST_S, RESTING_NS, rest
from drivers.measure.interleave import ROUNDS
from drivers.measure.stopping import LaunchSpec, MeasureJob
from drivers.testing.fake import UNIT as FAKE
from protocol.formats.phase import Phase
from tests.drivers.launching import QUICK, Script, below, lives, wait_until
from tests.drivers.onnx_models import FLOAT, OnnxModels, node, value

UNIT = "CPU (ONNX)"


def compared(
    zygote: Zygote, own: str, beside: str, unit: str = FAKE, enough: EnoughRounds | None = None
) -> list[Event]:
    """All events of a comparison of two models, each in its own process."""
    order = WorkOrder(own, unit, threads=1, warmup=1, beside=(beside,), beside_units=(unit,))
    return list(Launch(order, QUICK, zygote, enough=enough).events())


def only(events: Sequence[Event], kind: type) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


# -- real children --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_is_left")
def test_two_children_take_turns_and_the_launch_looks_like_that_of_one(stage: Zygote, script: Script) -> None:
    own = script("own", latencies_ms=[1.5], sleep=True)
    beside = script("beside", latencies_ms=[3.0], sleep=True)
    events = compared(stage, own, beside, enough=lambda rounds: len(rounds) == 2)
    assert (
        only(events, RoundsReport)
        == [RoundsReport(((3_000_000,) * ROUNDS, (1_500_000,) * ROUNDS), None, (2, 4), 2)] * 2
    )
    measured = only(events, MeasureReport)
    assert isinstance(measured[0], MeasureReport)
    assert (measured[0].samples_ns, measured[0].per_sample) == ((1_500_000,) * ROUNDS, 8)
    assert {event.total for event in only(events, ProgressReport) if event.phase is Phase.RUN} == {
        None,
        6 * ROUNDS,
    }
    kinds = (LoadReport, ModelDescription, CheckReport, BesideReport, BetweenLaunches)
    assert [len(only(events, kind)) for kind in kinds] == [2, 1, 1, 1, 1]


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("whose", ["own", "beside"])
def test_a_child_that_dies_in_its_turn_ends_both(stage: Zygote, script: Script, whose: str) -> None:
    good = script("good", latencies_ms=[1.0], sleep=True)
    bad = script(latencies_ms=[1.0], sleep=True, fail={"phase": "run", "error": "signal"})
    pair = (bad, good) if whose == "own" else (good, bad)
    who = "the model" if whose == "own" else "the model beside"
    with pytest.raises(Crashed, match=f"^{who} on Fake \\(Simulation\\): killed by SIG"):
        compared(stage, *pair)


@pytest.mark.usefixtures("nothing_is_left")
def test_a_child_that_keeps_the_token_ends_both(stage: Zygote, script: Script) -> None:
    good = script("good", latencies_ms=[1.0], sleep=True)
    bad = script(latencies_ms=[1.0], sleep=True, hang="run")
    order = WorkOrder(good, FAKE, beside=(bad,), beside_units=(FAKE,))
    with pytest.raises(TimedOut, match=r"on Fake .*killed with everything below it"):
        list(Launch(order, Limits(load_s=120, run_s=1), stage).events())


@pytest.mark.usefixtures("nothing_is_left")
def test_times_that_do_not_fit_into_their_turn_are_not_taken(stage: Zygote, script: Script) -> None:
    with pytest.raises(Crashed, match="reports a block of 6e\\+03 ms in a turn of"):
        compared(stage, script(latencies_ms=[6000.0]), script(latencies_ms=[6000.0]))


def test_a_kill_ends_all_children_that_wait(stage: Zygote, script: Script) -> None:
    model = script(latencies_ms=[1.0], sleep=True, hang="run")
    launch = Launch(WorkOrder(model, FAKE, beside=(model,), beside_units=(FAKE,)), QUICK, stage)
    events = launch.events()
    while not (isinstance(event := next(events), ProgressReport) and event.phase is Phase.RUN):
        pass
    children = below(stage)
    assert len(children) >= 4, "a reaper and a worker of each"
    launch.kill()
    wait_until(lambda: not any(map(lives, children)), "all of them are gone")
    with pytest.raises(Cancelled):
        next(events)


def test_each_runtime_loads_only_its_own_model(zygote: Zygote, models: OnnxModels) -> None:
    events = compared(zygote, models.nano("own", 0.1), models.nano("other", 0.2), UNIT)
    (rounds,) = only(events, RoundsReport)
    (measured,) = only(events, MeasureReport)
    (beside,) = only(events, BesideReport)
    (checked,) = only(events, CheckReport)
    assert isinstance(rounds, RoundsReport)
    assert isinstance(measured, MeasureReport)
    assert isinstance(beside, BesideReport)
    assert isinstance(checked, CheckReport)
    assert [len(each) for each in rounds.wall_ns] == [ROUNDS] * 2
    assert all(ns > 0 for each in rounds.wall_ns for ns in each)
    assert (rounds.cpu_ns is not None) is (sys.platform == "linux")
    assert measured.samples_ns == rounds.wall_ns[-1]
    assert beside.checked.agrees
    assert checked.agrees
    assert beside.checked.output_sha256 != checked.output_sha256


def test_models_with_inputs_of_other_shapes_do_not_compare(zygote: Zygote, models: OnnxModels) -> None:
    wide = models.put(
        "wide", [node("Neg", ["x"], ["y"])], [value("x", FLOAT, [2, 8])], [value("y", FLOAT, [2, 8])]
    )
    with pytest.raises(Unshaped, match="different shapes \\(2×8 and 1×8\\)"):
        compared(zygote, models.nano("own"), wide, UNIT)


def test_units_without_their_models_are_refused(stage: Zygote, script: Script) -> None:
    with pytest.raises(Unfit, match="beside_units has 2 units, but beside has 1 models"):
        list(
            Launch(
                WorkOrder(script(), FAKE, beside=(script(),), beside_units=(FAKE,) * 2), QUICK, stage
            ).events()
        )


@pytest.mark.slow
def test_without_fork_the_token_comes_on_standard_input(script: Script) -> None:
    model = script(latencies_ms=[6.0], sleep=True)
    with Zygote("fake", simulate=True, can_fork=False) as spawning:
        (rounds,) = only(compared(spawning, model, model), RoundsReport)
    assert rounds == RoundsReport(((6_000_000,) * ROUNDS,) * 2, None, (1, 1), 2)


# -- misbehaving children, as doubles --------------------------------------------------------------------------------------

LOADED = (LoadReport(1, None, None), ReadyReport(6_000_000, ((1, 8),)))
MEASURED = MeasureReport((1,), (1,), 0.0, 0.0, None, 0, None)
Answer = Callable[["Doubled"], Iterator[bytes]]


def packed(*events: Event) -> Iterator[bytes]:
    return (pack_event(event)[HEADER_BYTES:] for event in events)


class Doubled:
    """A child whose turns the test answers."""

    def __init__(self, answer: Answer | None = None, ready: Sequence[Event] = LOADED) -> None:
        self.answer = answer or (lambda _: packed(TurnReport(1, None)))
        self.ready = ready
        self.code: int | None = None
        self.turns = self.given = 0
        self.over = self.closed = False
        self.deadline: Callable[[], float] = time.monotonic

    def frames(self, deadline: Callable[[], float]) -> Iterator[bytes]:
        self.deadline = deadline
        yield from packed(*self.ready)
        while self.turns or not self.over:
            if not self.turns:
                raise TimeoutError
            self.turns -= 1
            yield from self.answer(self)
            if self.code is not None:
                return
        yield from packed(MEASURED)
        self.code = 0

    def give_turn(self) -> None:
        self.turns += 1
        self.given += 1

    def end_turns(self) -> None:
        self.over = True

    def kill(self) -> None:
        self.closed = True

    def close(self) -> str:
        self.closed = True
        return ""


def die(child: Doubled) -> Iterator[bytes]:
    child.code = -9
    return iter(())


def played(own: Doubled, beside: Doubled, turn_s: float = 20.0) -> list[Event]:
    launch = LaunchSpec(MeasureJob.TURNS_REPEAT, window_s=0.05)
    sides = [
        TurnSide(UNIT, lambda each=each: each, LaunchEvents(launch, served=False, cold=False))  # type: ignore[misc]
        for each in (beside, own)
    ]
    clock = LaunchDeadlines(120, 120)
    return list(take_turns(sides, launch, QUICK, clock, random.Random(1), turn_s))


def test_each_has_as_many_turns_as_the_other() -> None:
    own, beside = Doubled(), Doubled()
    (rounds,) = only(played(own, beside), RoundsReport)
    assert own.given == beside.given == 2 * ROUNDS
    assert isinstance(rounds, RoundsReport)
    assert [len(each) for each in rounds.wall_ns] == [ROUNDS] * 2


def test_a_turn_has_a_deadline_far_before_that_of_the_run() -> None:
    left: list[float] = []

    def hang(child: Doubled) -> Iterator[bytes]:
        left.append(child.deadline() - time.monotonic())
        raise TimeoutError
        yield b""

    own, beside = Doubled(), Doubled(hang)
    with pytest.raises(
        TimedOut, match=r"^the model beside on .*: it did not end its turn within 7 s; killed"
    ):
        played(own, beside, turn_s=7.0)
    assert left[0] <= 7.0
    assert own.closed
    assert beside.closed


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda _: packed(TurnReport(10**12, None)), "a block of 1e\\+06 ms in a turn"),
        (lambda _: packed(MEASURED, TurnReport(1, None)), "a turn that it was not granted"),
        (lambda _: packed(LOADED[1]), "an unexpected ReadyReport"),
        (lambda _: iter([b"\x01"]), "is not an event"),
        (lambda _: iter([pack_failure(Unfit("no"))[HEADER_BYTES:]]), "no"),
        (die, "killed by SIGKILL"),
    ],
)
def test_what_is_no_answer_to_a_turn_ends_both(answer: Answer, why: str) -> None:
    own, beside = Doubled(), Doubled(answer)
    with pytest.raises((Crashed, Unfit), match=f"^the model beside on .*({why})"):
        played(own, beside)
    assert own.closed
    assert beside.closed


def test_a_report_ahead_of_its_turn_is_one_too_many() -> None:
    ahead = Doubled(ready=(*LOADED, TurnReport(1, None)))
    with pytest.raises(Crashed, match="it took more turns than it was granted"):
        played(Doubled(), ahead)
    early = Doubled(ready=(LOADED[0], TurnReport(1, None), LOADED[1]))
    with pytest.raises(Crashed, match="a turn that it was not granted"):
        played(Doubled(), early)


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_child_that_fills_its_own_token_pipe_does_not_hold_up_the_parent(tmp_path: Path) -> None:
    (events, _), (token, turns) = os.pipe(), os.pipe()
    control, reaper = socket.socketpair()
    with control, reaper, (tmp_path / "log").open("w+b") as log:
        child = ForkedChild(control, events, log, str(tmp_path), 100, turns)
        assert not os.get_blocking(turns)
        with contextlib.suppress(BlockingIOError):
            while os.write(turns, b"1" * 4096):
                pass
        child.give_turn()
        child.end_turns()
        child.give_turn()
        os.close(token)


# -- between two turns ------------------------------------------------------------------------------------------------------


def test_a_child_hands_the_token_back_when_its_threads_rest() -> None:
    used = iter([0, 400_000, 400_000, 700_000, 700_000, 700_000 + RESTING_NS - 1])
    pauses: list[float] = []
    rest(lambda: next(used), pauses.append)
    assert pauses == [REST_S] * 3
    rest(None, pauses.append)
    assert len(pauses) == 4
    busy = iter(range(0, 10**12, 10**6))
    rest(lambda: next(busy), pauses.append)
    assert len(pauses) == 4 + MAX_RESTS

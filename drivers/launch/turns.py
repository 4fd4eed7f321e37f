"""Models that cannot share a process, such as those of two runtimes, take turns, each in its own child: only the one with the token infers.

    parent ── one byte ─▶ A's child: a block ── TurnReport ─▶ parent ── one byte ─▶ B's child: a block ── TurnReport ─▶ …

The children load and warm up one after the other, then wait in a read of their token pipes, which is all that a child can do with its pipe.
Order, blocks and results are as for models in one process (`drivers.measure.interleave`), and so are the events of a launch.

Each turn has a deadline. A child that dies, keeps the token, or reports a block longer than its turn ends the launch and all its children.
A child that reports less than the true time is not detected: like any child, it is trusted with its own times.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from drivers.contract.base import (
    BesideReport,
    CheckReport,
    Crashed,
    DriverError,
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
)
from drivers.contract.frames import Garbled
from drivers.launch.deadlines import LaunchDeadlines
from drivers.launch.events import LaunchEvents, Reply, received
from drivers.launch.process import Child
from drivers.measure import host
from drivers.measure.cpu_clock import computes_on_cpu
from drivers.measure.interleave import Block, check_shapes, draw_orders, plan_rounds, round_times
from drivers.measure.stopping import LaunchSpec, MeasureJob
from protocol.formats.phase import Phase

TURN_S: Final = 20.0
"""The least time after which the child that has the turn is considered hung: a busy host can keep a child from its processor for seconds
…"""
TURN_FACTOR: Final = 20
"""… and the same limit as a multiple of the time that its block should take."""
PROGRESS_NS: Final = 250_000_000


E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class TurnSide:
    """One of the models: its unit, and the function that starts its child."""

    unit: str
    start: Callable[[], Child]
    checker: LaunchEvents


def take_turns(
    sides: Sequence[TurnSide],
    launch: LaunchSpec,
    limits: Limits,
    clock: LaunchDeadlines,
    chance: random.Random,
    turn_s: float = TURN_S,
) -> Iterator[Event]:
    """Run one launch of all `sides`, the order's own model last. Yields the events of `drivers.local.together.run_together`."""
    with contextlib.ExitStack() as running:
        players = [TurnPlayer(side, number == len(sides) - 1) for number, side in enumerate(sides)]
        *others, own = players
        for player in (own, *others):
            with player.named(clock, limits):
                if player is not own:
                    clock.load_another()
                yield from player.get_ready(running, clock, limits)
        with own.named(clock, limits):
            check_shapes([shapes for each in players if (shapes := each.ready.shapes) is not None])
        plan = plan_rounds([each.ready.typical_ns for each in players])
        yield ProgressReport(Phase.RUN, 0, plan.rounds)
        reported = time.monotonic_ns()
        for number, order in enumerate(draw_orders(plan, chance)):
            for index in order:
                player = players[index]
                expected_s = plan.per_block[index] * player.ready.typical_ns / 1e9
                with player.named(clock, limits):
                    player.take_turn(clock, max(turn_s, TURN_FACTOR * expected_s))
            if time.monotonic_ns() - reported > PROGRESS_NS:
                reported = time.monotonic_ns()
                yield ProgressReport(Phase.RUN, number + 1, plan.rounds)
        for player in players:
            with player.named(clock, limits):
                player.finish()
    times = round_times(plan, [each.blocks for each in players])
    timed = all(computes_on_cpu(side.unit) for side in sides)
    for player in others:
        if launch.job is MeasureJob.TURNS:
            yield BesideReport(player.only(ModelDescription), player.only(CheckReport))
    if launch.job is MeasureJob.TURNS:
        yield own.only(ModelDescription)
    per_round = plan.per_block[-1] * plan.turns
    wall_s = sum(times.wall_ns[-1]) * per_round / 1e9
    measured = own.only(MeasureReport)
    yield replace(
        measured,
        samples_ns=times.wall_ns[-1],
        per_sample=per_round,
        wall_s=wall_s,
        cpu_s=wall_s if times.cpu_ns is None else sum(times.cpu_ns[-1]) * per_round / 1e9,
        host=replace(measured.host, others_share=_others_share(measured, others)),
    )
    yield RoundsReport(times.wall_ns, times.cpu_ns if timed else None, plan.per_block, plan.turns)
    if launch.job is MeasureJob.TURNS:
        yield own.only(CheckReport)


def _others_share(measured: MeasureReport, others: Sequence[TurnPlayer]) -> float | None:
    """Others' share of the processors, without what the other children used: each child reports its own use in the same window."""
    used_s = sum(player.only(MeasureReport).cpu_s for player in others)
    return host.subtract_own_share(measured.host.others_share, used_s, measured.wall_s, os.cpu_count() or 1)


class TurnPlayer:
    """One child of a launch in turns, as its parent sees it."""

    def __init__(self, side: TurnSide, own: bool) -> None:
        self._side = side
        self._own = own
        self._child: Child | None = None
        self._messages: Iterator[Reply] = iter(())
        self._kept: dict[type, Event] = {}
        self.blocks: list[Block] = []

    @contextlib.contextmanager
    def named(self, clock: LaunchDeadlines, limits: Limits) -> Iterator[None]:
        """Name this child in the errors that the block raises."""
        who = f"{'the model' if self._own else 'the model beside'} on {self._side.unit}"
        try:
            yield
        except TimeoutError:
            raise TimedOut(f"{who}: {clock.exceeded(limits)}; killed with everything below it") from None
        except Garbled as why:
            raise Crashed(f"{who} broke its contract: {why}") from why
        except DriverError as why:
            raise type(why)(f"{who}: {why}") from why

    def get_ready(
        self, running: contextlib.ExitStack, clock: LaunchDeadlines, limits: Limits
    ) -> Iterator[Event]:
        """Start the child and follow it until it waits for its first turn. Yields progress, and the load of the order's own model."""
        self._child = self._side.start()
        messages: Generator[Reply, None, None] = received(self._child, clock.deadline, limits)
        self._messages = messages
        running.enter_context(contextlib.closing(messages))
        for event in self._until(ReadyReport):
            if isinstance(event, LoadReport):
                clock.loaded()
            if isinstance(event, ProgressReport) or (self._own and isinstance(event, LoadReport)):
                yield event

    @property
    def ready(self) -> ReadyReport:
        return self.only(ReadyReport)

    def take_turn(self, clock: LaunchDeadlines, within_s: float) -> None:
        """Give the child the token, and wait until it has run its block."""
        assert self._child is not None
        clock.begin_turn(within_s)
        began = time.perf_counter_ns()
        self._child.give_turn()
        for _ in self._until(TurnReport):
            pass
        took = time.perf_counter_ns() - began
        clock.end_turn()
        report = self.only(TurnReport)
        if report.wall_ns > took:
            raise Garbled(
                f"it reports a block of {report.wall_ns / 1e6:.3g} ms in a turn of {took / 1e6:.3g} ms"
            )
        self.blocks.append((report.wall_ns, report.cpu_ns))

    def finish(self) -> None:
        """Follow the child to its end: it describes and checks its model while the others wait."""
        assert self._child is not None
        self._child.end_turns()
        for message in self._messages:
            event = self._side.checker.take(message)
            if isinstance(event, TurnReport):
                raise Garbled("it took more turns than it was granted")
            self._kept[type(event)] = event
        if missing := self._side.checker.missing():
            raise Garbled(f"it ended without {missing}")

    def only(self, kind: type[E]) -> E:
        """The latest event of this kind."""
        event = self._kept[kind]
        assert isinstance(event, kind)
        return event

    def _until(self, kind: type) -> Iterator[Event]:
        """The child's events up to one of `kind`, each checked."""
        for message in self._messages:
            event = self._side.checker.take(message)
            self._kept[type(event)] = event
            yield event
            if isinstance(event, kind):
                return
        raise Garbled(f"it ended without {kind.__name__}")

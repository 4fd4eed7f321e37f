"""The node waits for a busy host, never for a quiet one, and does not count its own work as others'. Time is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from drivers.measure.host import CpuTimes, HostSample
from drivers.measure.idle_wait import MIN_WAIT_S, IdleWait, IdleWaitReport

PROCESSORS = 2


@dataclass
class Machine:
    """A host with two processors. `others` and `own` say how many processors they occupy at a given time."""

    others: Callable[[float], float] = lambda now: 0.0
    own: Callable[[float], float] = lambda now: 0.0
    stalled: float = 0.0
    tells: bool = True
    now: float = 0.0
    busy_s: float = 0.0
    own_s: float = 0.0
    stall_s: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        others, own = self.others(self.now), self.own(self.now)
        self.busy_s += seconds * (others + own)
        self.own_s += seconds * own
        self.stall_s += seconds * self.stalled
        self.now += seconds
        self.slept.append(seconds)

    def look(self) -> HostSample:
        total = self.now * PROCESSORS
        times = CpuTimes(total, total - self.busy_s, 0.0, PROCESSORS, 1) if self.tells else None
        return HostSample(self.now, times, round(self.stall_s * 1e9), None)

    def running(self) -> tuple[int, int] | None:
        taken = int(self.others(self.now) > 0) + int(self.own(self.now) > 0)
        return (1 + taken, PROCESSORS) if self.tells else None

    def quiet(self, most_s: float = 10.0) -> IdleWait:
        return IdleWait(most_s, reader=self, own_cpu_s=lambda: self.own_s, clock=lambda: self.now)  # type: ignore[arg-type]


def waited(machine: Machine, quiet: IdleWait) -> tuple[IdleWaitReport, list[tuple[float, float]]]:
    """How a wait ends, and what it yields until then."""
    lines: list[tuple[float, float]] = []
    waiting = quiet.wait(machine.sleep)
    while True:
        try:
            lines.append(next(waiting))
        except StopIteration as ended:
            return ended.value, lines


def test_a_quiet_device_loses_two_milliseconds() -> None:
    machine = Machine()
    assert waited(machine, machine.quiet()) == (IdleWaitReport(0.0, None), [])
    assert machine.now == pytest.approx(0.002)


def test_where_the_system_does_not_tell_nothing_is_waited_for() -> None:
    machine = Machine(tells=False)
    assert waited(machine, machine.quiet()) == (IdleWaitReport(0.0, None), [])
    assert machine.now == 0.0


def test_a_maximum_wait_of_zero_does_not_even_look() -> None:
    machine = Machine(others=lambda now: 1.0)
    assert waited(machine, machine.quiet(0.0)) == (IdleWaitReport(0.0, None), [])
    assert machine.now == 0.0


def test_other_work_that_ends_is_waited_for_and_reported() -> None:
    machine = Machine(others=lambda now: 1.0 if now < 1.5 else 0.0)
    ended, result = waited(machine, machine.quiet())
    assert ended.busy_share is None
    assert 1.5 <= machine.now < 1.9
    assert result
    assert all(most == 10.0 for _, most in result)
    assert [seconds for seconds, _ in result] == sorted(seconds for seconds, _ in result)


def test_a_host_that_stays_busy_is_measured_after_the_maximum_wait_with_a_note() -> None:
    machine = Machine(others=lambda now: 1.0)
    ended, result = waited(machine, machine.quiet())
    assert ended.busy_share == pytest.approx(0.5)
    assert 10.0 <= ended.seconds < 10.5
    assert result
    assert "other processes used 50% of the processors before the first launch" in ended.note()


def test_the_maximum_wait_halves_where_waiting_never_helps_and_is_restored_after_it_did() -> None:
    busy = [True]
    machine = Machine(others=lambda now: 1.0 if busy[0] else 0.0)
    quiet = machine.quiet(4.0)
    spans = []
    for _ in range(8):
        began = machine.now
        waited(machine, quiet)
        spans.append(machine.now - began)
    assert spans[0] == pytest.approx(4.0, abs=0.3)
    assert spans[1] == pytest.approx(2.0, abs=0.3)
    assert spans[-1] <= MIN_WAIT_S + 0.3
    assert quiet.allowed_s == MIN_WAIT_S
    machine.others = lambda now: 1.0 if now < until else 0.0
    until = machine.now + 0.1
    waited(machine, quiet)
    assert quiet.allowed_s == 4.0


def test_a_nodes_own_work_is_no_other_work_in_a_long_queue_of_tasks() -> None:
    # the node's own work, such as an import, a hash or a result, occupies one processor all the time
    machine = Machine(own=lambda now: 1.0)
    quiet = machine.quiet()
    for _ in range(50):
        began = machine.now
        ended, result = waited(machine, quiet)
        assert (ended.busy_share, result) == (None, [])
        assert machine.now - began < 0.12
    assert quiet.allowed_s == 10.0


def test_bursts_between_which_nobody_runs_are_not_waited_for() -> None:
    machine = Machine(others=lambda now: 1.0 if now % 0.03 < 0.02 else 0.0)
    ended, result = waited(machine, machine.quiet())
    assert (ended.busy_share, result) == (None, [])
    assert machine.now < 0.05


def test_a_little_work_of_others_is_no_reason_to_wait() -> None:
    machine = Machine(others=lambda now: 0.05)
    ended, result = waited(machine, machine.quiet())
    assert (ended.busy_share, result) == (None, [])
    assert machine.now < 0.12

"""A run's duration is estimated from runs of the same task, else by inferences, else from all runs. Once exceeded, it is unknown."""

from __future__ import annotations

import pytest

from node.capacity.queue import RunTimeEstimate
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from swarm.net.identity import Identity


def a_task(
    runs: int,
    sha256: str = "a" * 64,
    *,
    beside: bool = False,
    sustain_s: float | None = None,
    over_s: float | None = None,
) -> Task:
    return Task(
        campaign="c-1",
        task="c-1/1",
        scheduler=Identity.from_seed("scheduler").peer_id,
        model=Model(name="m", sha256=sha256, size=1),
        unit="CPU (ONNX)",
        requirement=Requirement(clauses=()),
        measure=Measure(runs=runs, sustain_s=sustain_s, over_s=over_s),
        timeouts=Timeouts(),
        beside=(Model(name="n", sha256="d" * 64, size=1),) if beside else None,
    )


def test_the_same_run_takes_what_it_took_and_a_longer_one_as_much_more() -> None:
    pace = RunTimeEstimate()
    assert pace.expect(a_task(10)) is None
    pace.add(a_task(10), 2.0)
    pace.add(a_task(100, "b" * 64), 40.0)
    assert pace.expect(a_task(10)) == 2.0
    assert pace.expect(a_task(400)) == pytest.approx(80.0)
    assert pace.expect(a_task(100, "b" * 64)) == 40.0
    assert pace.expect(a_task(1, "c" * 64)) == pace.mean_s == pytest.approx(0.7 * 2.0 + 0.3 * 40.0)


def test_launches_that_are_spread_take_that_time_besides_and_say_nothing_of_others() -> None:
    pace = RunTimeEstimate()
    assert pace.expect(a_task(10, over_s=60.0)) == 60.0
    pace.add(a_task(10, over_s=60.0), 62.0)
    assert (pace.mean_s, pace.expect(a_task(10))) == (None, None)
    assert pace.expect(a_task(10, over_s=60.0)) == 62.0
    pace.add(a_task(10), 2.0)
    assert pace.expect(a_task(20, over_s=120.0)) == pytest.approx(124.0)


def test_comparisons_and_sustained_runs_say_nothing_of_others() -> None:
    pace = RunTimeEstimate()
    pace.add(a_task(10, beside=True), 90.0)
    pace.add(a_task(10, sustain_s=600.0), 700.0)
    assert (pace.mean_s, pace.expect(a_task(10))) == (None, None)
    assert pace.expect(a_task(10, beside=True)) == 90.0
    pace.add(a_task(10), 2.0)
    assert (pace.mean_s, pace.expect(a_task(20))) == (2.0, 4.0)
    assert pace.expect(a_task(100, beside=True)) == 2.0, "its runs do not count"

"""A small storm over real processes: in seconds what `benchmarks/scheduling/chaos.py` does for minutes."""

from __future__ import annotations

from pathlib import Path

from tests.real.aftermath import figures, history, wait_until_quiet
from tests.real.apart import can_be_apart
from tests.real.chaos import Storm
from tests.real.lab import Lab, marked, until
from tests.real.strikes import Kind, Plan
from tests.simulation.invariants import check

SHORT = (Kind.WORKER, Kind.RUN, Kind.SCHEDULER, Kind.RESET)
"""Faults after which work continues within seconds."""


def test_a_campaign_whose_worker_run_scheduler_and_link_are_struck_ends_with_one_result_for_each_task(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path, ("ada",), workers=("left", "right"), apart=can_be_apart())
    plan = Plan(
        seed=4,
        tasks=20,
        task_s=0.4,
        every_s=0.7,
        faults=3,
        lasts_most_s=1.0,
        within_s=300,
        slow=10.0,
        kinds=SHORT,
    )
    storm = Storm(lab, plan, say=lambda line: None)
    try:
        with storm.swarm():
            storm.run(tmp_path)
            left = wait_until_quiet(storm)
            past = history(storm)
            result = figures(storm)
    finally:
        lab.close()
    assert storm.breaches + left == []
    assert [str(breach) for breach in check(past)] == []
    assert set((past.final or {}).values()) == {"succeeded"}
    assert result.faults
    assert result.recorded == 20 + sum(event.number or 0 for event in past.events if event.kind == "recorded")
    until(lambda: not marked(lab.mark), "nothing is left")

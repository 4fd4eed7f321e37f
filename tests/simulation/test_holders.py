"""Workers that grant, renew and never run anything cost a campaign little, and slow honest workers are left alone."""

from __future__ import annotations

import pytest

from tests.simulation.holders import HOLDING, HONEST, PRETENDING, of_speeds, play
from tests.simulation.scheduler_mutants import NeverHedgesRuns
from tests.simulation.sim_worker import Runs


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("liar", "most_s"), [(HOLDING, 20.0), (PRETENDING, 60.0)], ids=["hold", "pretend"])
def test_ten_tasks_among_two_honest_and_three_holding_workers_end_soon(
    seed: int, liar: Runs, most_s: float
) -> None:
    played = play(seed, [HONEST, HONEST, liar, liar, liar], 10)
    assert played.succeeded == 10
    assert played.seconds < most_s, "on virtual time"


def test_without_deadlines_the_same_campaign_takes_until_its_limits() -> None:
    played = play(0, [HONEST, HONEST, *[HOLDING] * 3], 10, make_core=NeverHedgesRuns)
    assert played.seconds > 120.0


@pytest.mark.parametrize("steps", [1, 10])
def test_no_honest_run_is_hedged_on_devices_up_to_ten_times_slower_than_others(steps: int) -> None:
    played = play(1, of_speeds(10.0, 6, steps=steps), 30)
    assert (played.succeeded, played.hedged) == (30, 0)

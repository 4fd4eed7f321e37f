"""Which launches an order gets: totals, bounds, and every reason to stop. Nothing is launched."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.contract.base import Unfit, WorkOrder
from drivers.measure.stopping import (
    CHECKED_AFTER,
    EXPECTED,
    MIN_SHARE,
    RANKS,
    LaunchPlanner,
    LaunchSpec,
    MeasureJob,
    StopRule,
    first_look,
    half_width,
    shares,
)
from protocol.formats.turns import MIN_COMPARISON_LAUNCHES
from results.row.stats import centre, interval_rank

MS = 1_000_000


def planned(
    median_of: Callable[[int], int] = lambda launch: MS,
    *,
    lasts_s: float = 0.1,
    budget_s: float = 300.0,
    served: bool = False,
    **changes: object,
) -> tuple[list[LaunchSpec], StopRule | None]:
    """All launches of an order, and why they ended. Each launch has the given median in nanoseconds."""
    plan = LaunchPlanner(WorkOrder("m", "u", **changes), budget_s, served)  # type: ignore[arg-type]
    made: list[LaunchSpec] = []
    while (launch := plan.next(len(made) * lasts_s)) is not None:
        assert len(made) < 200, "it ends"
        made.append(launch)
        if launch.job is not MeasureJob.LOAD:
            plan.measured((median_of(len(made)),) * 3)
    return made, plan.stopped


@given(st.integers(1, 1_000_000), st.integers(1, 100))
def test_the_shares_are_all_runs_and_differ_by_one_at_most(runs: int, loads: int) -> None:
    shared = shares(runs, loads)
    assert sum(shared) == runs
    assert len(shared) == loads
    if runs >= MIN_SHARE * loads:
        assert max(shared) - min(shared) <= 1
        assert min(shared) >= MIN_SHARE
    else:
        assert shared[0] == runs
    assert list(shared) == sorted(shared, reverse=True)


@given(st.integers(1, 5000), st.integers(1, 100))
def test_runs_are_made_exactly_and_the_first_launch_is_the_full_one(runs: int, loads: int) -> None:
    made, why = planned(runs=runs, loads=loads)
    assert why is StopRule.DONE
    assert len(made) == loads
    assert sum(launch.runs for launch in made) == runs
    assert [launch.job is MeasureJob.RUN for launch in made] == [True, *[False] * (loads - 1)]
    assert all((launch.job is MeasureJob.LOAD) == (launch.runs == 0) for launch in made)
    assert all(launch.window_s is None for launch in made)


def test_the_order_as_it_comes_by_default_is_six_launches_of_its_hundred_runs() -> None:
    made, _ = planned()
    assert [launch.runs for launch in made] == [17, 17, 17, 17, 16, 16]
    assert [launch.job for launch in made] == [MeasureJob.RUN, *[MeasureJob.REPEAT] * 5]


def test_times_that_are_always_the_same_are_precise_after_six_launches() -> None:
    made, why = planned(precision=0.02)
    assert (len(made), why) == (6, StopRule.PRECISE)
    assert {launch.window_s for launch in made} == {0.05}


def test_one_launch_that_is_far_off_is_trimmed_at_ten() -> None:
    made, why = planned(lambda launch: 2 * MS if launch == 3 else MS, precision=0.02)
    assert (len(made), why) == (10, StopRule.PRECISE)


def test_two_modes_that_will_not_become_one_are_given_up_before_all_launches_are_made() -> None:
    made, why = planned(lambda launch: (MS, 2 * MS)[launch % 2], precision=0.02)
    assert (len(made), why) == (12, StopRule.STABLE)


def test_an_interval_that_becomes_narrower_all_the_time_gets_all_launches() -> None:
    made, why = planned(lambda launch: MS + (400_000 * (launch % 2) * 6**2) // launch**2, precision=0.0001)
    assert (len(made), why) == (20, StopRule.MAXIMUM)


def test_the_interval_to_be_expected_is_that_of_drawn_launches() -> None:
    rng = random.Random(1)
    for count, expected in EXPECTED.items():
        drawn = [half_width([rng.gauss(100, 1) for _ in range(count)]) * 100 for _ in range(2000)]
        assert fmean(drawn) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    ("spread", "precision", "look"),
    [
        (None, 0.02, 6),
        (0.0, 0.02, 6),
        (0.015, 0.02, 6),
        (0.016, 0.02, 10),
        (0.025, 0.02, 12),
        (0.026, 0.02, 16),
        (0.033, 0.02, 20),
        (0.033, 0.05, 6),
        (0.05, 0.02, 6),
    ],
)
def test_the_first_look_is_when_the_interval_should_be_narrow_enough_or_the_usual_one(
    spread: float | None, precision: float, look: int
) -> None:
    assert first_look(spread, precision) == look


def test_no_interval_is_looked_at_before_the_first_look() -> None:
    made, why = planned(precision=0.02, first_look=12)
    assert (len(made), why) == (12, StopRule.PRECISE)
    made, why = planned(lasts_s=1.0, budget_s=8.5, precision=0.02, first_look=12)
    assert (len(made), why) == (8, StopRule.TIME)


def test_a_launch_that_would_end_after_the_limit_is_not_begun() -> None:
    made, why = planned(lasts_s=1.0, budget_s=4.5, precision=0.02)
    assert (len(made), why) == (4, StopRule.TIME)


@given(
    st.lists(st.integers(1, 10**10), min_size=20, max_size=20),
    st.floats(0.0001, 1.0),
    st.floats(0.001, 100.0),
    st.floats(0.1, 1000.0),
)
def test_a_precision_ends_at_a_launch_where_it_is_looked_at_or_for_want_of_time(
    medians: list[int], precision: float, lasts_s: float, budget_s: float
) -> None:
    made, why = planned(
        lambda launch: medians[launch - 1], lasts_s=lasts_s, budget_s=budget_s, precision=precision
    )
    assert 1 <= len(made) <= 20
    assert len(made) in CHECKED_AFTER or why is StopRule.TIME
    if why is StopRule.PRECISE:
        assert half_width(medians[: len(made)]) <= precision
    if why is StopRule.TIME:
        assert (len(made) + 1) * lasts_s > budget_s * (1 - 1e-9)


@pytest.mark.parametrize("launches", CHECKED_AFTER)
def test_the_interval_is_the_one_that_the_row_will_show(launches: int) -> None:
    medians = [(7 * launch) % 23 * MS + MS for launch in range(launches)]
    shown = centre([(median,) for median in medians]).half_width
    assert half_width(medians) == pytest.approx(shown)
    assert RANKS[launches] == interval_rank(launches)


def test_a_server_that_has_the_model_already_is_asked_in_one_launch() -> None:
    made, why = planned(served=True, runs=100, loads=6)
    assert made == [LaunchSpec(MeasureJob.RUN, 100)]
    assert why is StopRule.DONE


@pytest.mark.parametrize(
    "order",
    [
        WorkOrder("m", "u", runs=0),
        WorkOrder("m", "u", loads=0),
        WorkOrder("m", "u", precision=0.0),
        WorkOrder("m", "u", precision=1.5),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(order: WorkOrder) -> None:
    with pytest.raises(Unfit, match="must be"):
        LaunchPlanner(order, 300.0)


@pytest.mark.parametrize(
    ("lasts_s", "budget_s", "launches"),
    [
        (10.0, 1000.0, MIN_COMPARISON_LAUNCHES),
        (2.0, 1000.0, 90),
        (2.0, 60.0, 30),
        (5.0, 1000.0, MIN_COMPARISON_LAUNCHES),
    ],
)
def test_a_comparison_without_an_answer_hurries_after_some_launches(
    lasts_s: float, budget_s: float, launches: int
) -> None:
    plan = LaunchPlanner(WorkOrder("a", "u", beside=("b",)), budget_s, enough=lambda: False)
    made = 0
    while plan.next(made * lasts_s) is not None:
        made += 1
    assert (made, plan.stopped) == (launches, StopRule.TIME)


def test_launches_are_spread_evenly_and_those_that_only_load_follow_at_once() -> None:
    made, _ = planned(runs=60, loads=6, over_s=100.0)
    assert [launch.at_s for launch in made] == [0, 20, 40, 60, 80, 100]
    made, _ = planned(runs=11, loads=3, over_s=100.0)
    assert [launch.at_s for launch in made] == [0, 0, 0], "all runs are made in the first"
    made, _ = planned(runs=60, loads=6)
    assert {launch.at_s for launch in made} == {0}


def test_by_precision_more_launches_follow_at_the_pace_of_the_first_six() -> None:
    made, why = planned(
        lambda launch: MS * (1 + launch % 5), precision=0.01, over_s=100.0, budget_s=500.0, lasts_s=20.0
    )
    assert [launch.at_s for launch in made] == [20.0 * number for number in range(len(made))]
    assert (len(made), why) == (20, StopRule.MAXIMUM)


@pytest.mark.parametrize("changes", [{"beside": ("n",)}, {"sustain_s": 60.0}, {"served": True}])
def test_what_is_not_measured_by_launches_of_one_model_is_not_spread(changes: dict[str, object]) -> None:
    with pytest.raises(Unfit, match="only when one model is measured by launches"):
        planned(over_s=100.0, **changes)

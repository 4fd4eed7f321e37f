"""Comparisons in turns: what they find, how often they are wrong, and what the two kinds of time say together.

The noise of a launch's ratio is that of `benchmarks/measuring/rounds.py`; the tests with a seed are a small form of that benchmark.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.formats.turns import LOOKS, rounds_until_look
from results.row.comparison import Comparison, ComparisonVerdict, RatioInterval
from results.row.rounds import (
    ALPHA_SPENDING,
    LaunchRounds,
    alpha_at,
    compare_logs,
    compare_rounds,
    enough,
    judge,
    launch_log_ratio,
)

FASTER, SLOWER, SAME, AMBIGUOUS = ComparisonVerdict
BUSY, CALM = (0.10, 0.056), (0.02, 0.01)
"""Deviations of one launch's ratio, by wall and by CPU time: the busiest of the four measured runs, and a calm host."""
TRIALS = 200


def launches(chance: random.Random, count: int, *steps: float, rounds: int = 24) -> list[LaunchRounds]:
    """Models of 1 ms and of 1 ms times each step. The host's speed varies from round to round, and some rounds stall."""
    made = []
    for _ in range(count):
        host = [chance.lognormvariate(0, 0.1) for _ in range(rounds)]
        cpu = [
            [int(1e6 * step * at * chance.lognormvariate(0, 0.01)) for at in host] for step in (1.0, *steps)
        ]
        wall = [[int(ns * (1.5 if chance.random() < 0.1 else 1.0)) for ns in times] for times in cpu]
        made.append(LaunchRounds(wall, cpu))
    return made


def ended(chance: random.Random, step: float, noise: tuple[float, float]) -> Comparison:
    """The comparison at the look that ends it. A fifth of the launches has three times the given noise, the others 0.6 times."""
    logs: tuple[list[float], list[float]] = ([], [])
    for look in LOOKS:
        while len(logs[0]) < look:
            worse = 3.0 if chance.random() < 0.2 else 0.6
            for side, deviation in zip(logs, noise, strict=True):
                side.append(math.log(step) + worse * deviation * chance.gauss(0, 1))
        result = compare_logs(*logs)
        if result.verdict is not AMBIGUOUS or look == LOOKS[-1]:
            return result
    raise AssertionError("there are no looks")


def trials(step: float, noise: tuple[float, float]) -> tuple[Counter[ComparisonVerdict], float]:
    """The verdicts, and the share of comparisons in which both intervals hold the truth."""
    results = [ended(random.Random(f"{step} {noise} {n}"), step, noise) for n in range(TRIALS)]
    held = [
        each.low is not None and each.high is not None and each.cpu is not None
        and each.low <= step <= each.high and each.cpu.low <= step <= each.cpu.high
        for each in results
    ]  # fmt: skip
    return Counter(each.verdict for each in results), sum(held) / TRIALS


# -- error rates ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [BUSY, CALM])
def test_a_model_beside_itself_is_misjudged_in_one_percent_at_most(noise: tuple[float, float]) -> None:
    verdicts, held = trials(1.0, noise)
    assert verdicts[FASTER] + verdicts[SLOWER] <= TRIALS / 100
    assert held >= 0.93


@pytest.mark.parametrize(
    ("step", "noise", "word"), [(1.05, BUSY, SLOWER), (1.02, CALM, SLOWER), (1 / 1.05, BUSY, FASTER)]
)
def test_a_twentieth_is_found_on_a_busy_host_and_a_fiftieth_on_a_calm_one(
    step: float, noise: tuple[float, float], word: ComparisonVerdict
) -> None:
    verdicts, held = trials(step, noise)
    assert verdicts[word] >= 0.9 * TRIALS
    assert verdicts[word] + verdicts[AMBIGUOUS] == TRIALS
    assert held >= 0.93


def test_the_intervals_of_each_look_hold_the_truth() -> None:
    chance = random.Random(5)
    for look in LOOKS:
        held = 0
        for _ in range(TRIALS):
            wall, cpu = ([chance.gauss(0.05, deviation) for _ in range(look)] for deviation in BUSY)
            result = compare_logs(wall, cpu)
            assert result.low is not None
            assert result.high is not None
            held += result.low <= math.exp(0.05) <= result.high
        assert held / TRIALS >= 1 - alpha_at(look) - 0.015


def test_all_looks_together_spend_two_percent() -> None:
    assert math.fsum(ALPHA_SPENDING) == pytest.approx(0.02)
    assert len(ALPHA_SPENDING) == len(LOOKS)
    assert [alpha_at(n) for n in (6, 7, 10, 20, 21, 40, 99, 200, 201)] == [
        ALPHA_SPENDING[at] / 2 for at in (0, 1, 1, 2, 3, 3, 5, 6, 6)
    ]
    assert alpha_at(20, estimands=1, pairs=3) == ALPHA_SPENDING[2] / 3


@pytest.mark.parametrize("look", LOOKS)
def test_two_kinds_of_time_share_the_error(look: int) -> None:
    chance = random.Random(9)
    logs = [chance.gauss(0, 0.05) for _ in range(look)]
    alone, both = compare_logs(logs, None), compare_logs(logs, logs)
    assert alone.low is not None
    assert both.low is not None
    assert both.low < alone.low


# -- whole launches ---------------------------------------------------------------------------------------------------------------


def test_a_launch_s_figure_survives_rounds_that_stalled() -> None:
    a = [1000] * 20 + [9000] * 4
    assert launch_log_ratio(a, [1050] * 24) == pytest.approx(math.log(1.05), abs=1e-9)
    assert launch_log_ratio([0, 1000], [1000, 2000]) == pytest.approx(math.log(2))
    assert launch_log_ratio([0, 0], [1, 1]) is None


def test_stalls_that_move_wall_time_hide_nothing_from_cpu_time() -> None:
    (result,) = compare_rounds(launches(random.Random(1), 10, 1.05))
    assert result.verdict is SLOWER
    assert result.cpu is not None
    assert result.cpu.low > 1.04
    assert result.cpu.high < 1.06
    assert result.medians_ms is not None
    assert result.medians_ms[1] / result.medians_ms[0] == pytest.approx(1.05, rel=0.03)
    assert "wall time" in result.why
    assert "CPU time" in result.why


def test_each_model_is_compared_with_the_first_and_the_error_is_shared_among_the_pairs() -> None:
    three = launches(random.Random(2), 6, 0.9, 1.1)
    faster, slower = compare_rounds(three)
    assert (faster.verdict, slower.verdict) == (FASTER, SLOWER)
    (alone,) = compare_rounds(
        [LaunchRounds(each.wall_ns[:2], each.cpu_ns and each.cpu_ns[:2]) for each in three]
    )
    assert alone.ratio == faster.ratio
    assert alone.low is not None
    assert faster.low is not None
    assert alone.low > faster.low


def test_without_the_cpu_time_of_a_launch_wall_time_decides_alone() -> None:
    made = launches(random.Random(3), 6, 1.5)
    (result,) = compare_rounds([*made[:-1], LaunchRounds(made[-1].wall_ns)])
    assert (result.verdict, result.cpu, result.contention) == (SLOWER, None, False)
    assert "CPU" not in result.why


def test_few_launches_say_how_many_are_needed() -> None:
    (result,) = compare_rounds(launches(random.Random(4), 5, 2.0))
    assert result.verdict is AMBIGUOUS
    assert result.why == "5 launches, 6 are needed"
    assert result.ratio == pytest.approx(2.0, rel=0.1)
    assert compare_rounds([]) == ()


def test_a_side_that_takes_no_time_has_no_ratio() -> None:
    (result,) = compare_rounds([LaunchRounds([[0] * 3, [1] * 3])] * 6)
    assert (result.verdict, result.ratio) == (AMBIGUOUS, None)


def test_launches_of_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 3 models"):
        compare_rounds([LaunchRounds([[1], [1]]), LaunchRounds([[1], [1], [1]])])
    with pytest.raises(ValueError, match="longer"):
        compare_rounds([LaunchRounds([[1], [1, 2]])])


def test_it_ends_at_the_first_look_that_tells_and_at_the_last() -> None:
    clear = launches(random.Random(6), LOOKS[1], 1.5)
    assert [enough(clear[:n]) for n in (5, 6, 7, 10)] == [False, True, False, True]
    chance = random.Random(7)
    blurred = [LaunchRounds([[1000], [int(1000 * chance.lognormvariate(0, 0.5))]]) for _ in range(LOOKS[-1])]
    assert [enough(blurred[:n]) for n in LOOKS] == [False] * (len(LOOKS) - 1) + [True]


# -- two kinds of time ------------------------------------------------------------------------------------------------------------


def interval(low: float, high: float) -> RatioInterval:
    return RatioInterval((low + high) / 2, low, high)


@pytest.mark.parametrize(
    ("wall", "cpu", "verdict", "contention"),
    [
        ((1.03, 1.07), (1.04, 1.06), SLOWER, False),
        ((0.90, 1.20), (1.04, 1.06), SLOWER, False),  # the host hides it from wall time
        ((1.03, 1.07), (0.95, 1.10), SLOWER, False),
        ((1.03, 1.07), (0.997, 1.003), SLOWER, True),  # it waits, and computes for as long
        ((1.03, 1.07), (0.95, 0.999), AMBIGUOUS, True),  # they contradict each other
        ((0.80, 0.85), (1.02, 1.04), AMBIGUOUS, True),
        ((0.93, 0.96), (0.90, 0.97), FASTER, False),
        ((0.93, 0.96), (0.99, 1.02), FASTER, True),
        ((0.995, 1.005), (0.992, 1.008), SAME, False),
        ((0.992, 0.996), (1.001, 1.004), SAME, False),
        ((0.995, 1.005), (0.95, 1.05), AMBIGUOUS, False),
        ((1.005, 1.03), (1.0, 1.02), AMBIGUOUS, False),
        ((1.03, 1.07), None, SLOWER, False),
        ((0.995, 1.005), None, SAME, False),
    ],
)  # fmt: skip
def test_one_kind_of_time_is_enough_where_the_other_does_not_contradict(
    wall: tuple[float, float], cpu: tuple[float, float] | None, verdict: ComparisonVerdict, contention: bool
) -> None:
    assert judge(interval(*wall), cpu and interval(*cpu)) == (verdict, contention)


def test_the_answer_names_contention_and_what_is_not_known() -> None:
    chance = random.Random(8)

    def near(step: float, deviation: float) -> list[float]:
        return [math.log(step) + chance.gauss(0, deviation) for _ in range(10)]

    waits = compare_logs(near(1.1, 0.005), near(1.0, 0.001))
    assert (waits.verdict, waits.contention) == (SLOWER, True)
    assert "contention: B waits more than A" in waits.why
    hidden = compare_logs(near(1.0, 0.2), near(1.1, 0.005))
    assert hidden.verdict is SLOWER
    assert "the ±1% limit lies within the interval of wall time" in hidden.why


TIMES = st.lists(st.integers(0, 10**12), min_size=3, max_size=3)


@settings(max_examples=30)
@given(st.lists(st.tuples(TIMES, TIMES), max_size=8))
def test_any_rounds_have_an_answer(pairs: Sequence[tuple[list[int], list[int]]]) -> None:
    for result in compare_rounds([LaunchRounds(pair, pair) for pair in pairs]):
        assert result.why
        assert result.low is None or result.high is None or result.low <= result.high


@pytest.mark.parametrize(
    ("launches", "rounds", "until"),
    [
        (0, 0, None),
        (1, 24, 144),
        (5, 120, 144),
        (6, 144, 240),
        (40, 960, 1920),
        (199, 1990, 2000),
        (200, 4800, None),
    ],
)
def test_a_comparison_under_way_tells_how_far_its_next_look_is(
    launches: int, rounds: int, until: int | None
) -> None:
    assert rounds_until_look(launches, rounds) == until

"""Sittings pooled: values computed by hand, and how often the interval holds a known truth."""

from __future__ import annotations

import math
import random

import pytest

from results.analysis.sittings import (
    IntervalCoverage,
    SittingFigure,
    coverage,
    coverage_of_devices,
    pool,
    pool_sittings,
    pooled_rows,
)
from results.row.order import interval_rank, t_interval, t_quantile
from results.row.row import Row, RowStatus
from results.row.stats import median

DAY_S = 86_400.0


def sitting(log: float, variance: float, at: float = 0.0, launches: int = 6) -> SittingFigure:
    half = t_quantile(0.975, launches - 1) * math.sqrt(variance)
    return SittingFigure(math.exp(log), math.exp(log - half), math.exp(log + half), launches, at)


def test_three_sittings_by_hand() -> None:
    """Q = 52 at 2 degrees of freedom, scale 13333⅓: variance between sittings 0.00375, I² = 50/52."""
    pooled = pool([sitting(0, 1e-4), sitting(0.02, 4e-4, 7200), sitting(0.1, 1e-4, 3600)])
    assert pooled is not None
    assert pooled.low is not None
    assert pooled.high is not None
    assert pooled.between == pytest.approx(50 / 52)
    assert math.log(pooled.median) == pytest.approx(0.0404938, abs=1e-6)
    assert (pooled.sittings, pooled.span_s) == (3, 7200)
    weights = (1 / 0.00385, 1 / 0.00415, 1 / 0.00385)
    centre = (weights[1] * 0.02 + weights[2] * 0.1) / sum(weights)
    spread = weights[0] * centre**2 + weights[1] * (0.02 - centre) ** 2 + weights[2] * (0.1 - centre) ** 2
    half = 4.302653 * math.sqrt(max(1, spread / 2) / sum(weights))
    assert math.log(pooled.high) - math.log(pooled.median) == pytest.approx(half, rel=1e-6)


def test_of_sittings_known_equally_well_it_is_students_interval() -> None:
    logs = (0.0, 0.1, 0.07, 0.16)
    pooled = pool([sitting(log, 1e-5) for log in logs])
    assert pooled is not None
    assert pooled.low is not None
    assert pooled.high is not None
    assert (math.log(pooled.low), math.log(pooled.high)) == pytest.approx(t_interval(logs, 0.05))


def test_sittings_that_agree_by_chance_claim_no_more_than_they_know() -> None:
    pooled = pool([sitting(0.0, 1e-4)] * 3)
    assert pooled is not None
    assert pooled.high is not None
    assert pooled.between == 0
    assert math.log(pooled.high) == pytest.approx(4.302653 * 0.01 / math.sqrt(3), rel=1e-6)


def test_one_sitting_has_no_interval_and_none_has_nothing() -> None:
    pooled = pool([sitting(0.0, 1e-4)])
    assert pooled is not None
    assert (pooled.median, pooled.low, pooled.between) == (1.0, None, None)
    assert pool([]) is None


def drawn(rng: random.Random, between: float, within: float, at: float = 0.0) -> SittingFigure:
    """Six launches around a sitting's own value, with the interval that a row would have."""
    middle, rank = rng.gauss(0, between), interval_rank(6)
    launches = sorted(math.exp(middle + rng.gauss(0, within)) for _ in range(6))
    return SittingFigure(median(launches), launches[rank - 1], launches[-rank], 6, at)


@pytest.mark.parametrize("sittings", [3, 5, 8])
@pytest.mark.parametrize("between", [0.01, 0.05])
def test_the_interval_holds_the_long_run_median_as_often_as_it_says(sittings: int, between: float) -> None:
    rng, held = random.Random(14), 0
    for _ in range(400):
        pooled = pool([drawn(rng, between, 0.01) for _ in range(sittings)])
        assert pooled is not None
        assert pooled.low is not None
        assert pooled.high is not None
        held += pooled.low <= 1 <= pooled.high
    assert 0.925 <= held / 400 <= 0.985


def test_coverage_is_nominal_without_differences_between_sittings_and_poor_with_them() -> None:
    rng = random.Random(5)
    alike, apart = (
        sum(
            (coverage([drawn(rng, between, 0.01, at=n * DAY_S) for n in range(50)]) for _ in range(4)),
            IntervalCoverage(),
        )
        for between in (0.0, 0.03)
    )
    assert alike.sittings == 200
    assert alike.share is not None
    assert 0.93 <= alike.share <= 1
    assert apart.share is not None
    assert apart.share < 0.5


def test_coverage_of_three_sittings_is_that_of_many() -> None:
    """Coverage of exact 95 % intervals, although three sittings know their median less well than eight do."""
    rng, known = random.Random(3), 1.959964 * 0.01

    def exact(at: float) -> SittingFigure:
        log = rng.gauss(0, 0.01)
        return SittingFigure(math.exp(log), math.exp(log - known), math.exp(log + known), 300, at)

    for sittings, cells in ((3, 500), (8, 100)):
        held = sum(
            (coverage([exact(n * DAY_S) for n in range(sittings)]) for _ in range(cells)), IntervalCoverage()
        )
        assert held.share == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("between", [0.0, 0.03])
def test_widened_by_the_margin_of_the_device_the_intervals_of_other_sittings_hold(between: float) -> None:
    rng = random.Random(7)
    known = sum(
        (coverage([drawn(rng, between, 0.01, at=n * DAY_S) for n in range(50)]) for _ in range(4)),
        IntervalCoverage(),
    )
    assert known.margin is not None
    factor, held = math.exp(known.margin), 0
    for _ in range(500):
        new = drawn(rng, between, 0.01)
        held += new.low / factor <= 1 <= new.high * factor
    assert 0.925 <= held / 500 <= 0.985


@pytest.mark.parametrize(
    ("held", "missed_by", "margin"),
    [
        (17, (0.1,), None),  # 17 of 18
        (18, (0.1,), 0.1),
        (19, (), 0.0),
        (99, (0.3,), 0.0),
        (90, (0.5, 0.4, 0.3, 0.2, 0.1, 0.9, 0.8, 0.7, 0.6, 1.0), 0.6),  # rank 96 of 100
    ],
)
def test_a_margin_is_the_rank_that_one_more_sitting_is_within_in_95_percent(
    held: int, missed_by: tuple[float, ...], margin: float | None
) -> None:
    assert IntervalCoverage(held, held + len(missed_by), missed_by).margin == margin


def test_results_close_together_are_of_one_sitting() -> None:
    rng = random.Random(1)
    figures = [drawn(rng, 0, 0.01, at=day * DAY_S + minute * 60.0) for day in range(4) for minute in range(5)]
    assert coverage(figures).sittings == 4


def test_only_the_latest_sittings_of_a_measurement_count() -> None:
    """A device was noisy in the past and is quiet now. Its coverage describes it as it is now."""
    rng = random.Random(3)
    figures = [drawn(rng, 0.03 if n < 100 else 0.0, 0.01, at=n * DAY_S) for n in range(150)]
    rng.shuffle(figures)
    found = coverage(figures)
    assert found.sittings == 50
    assert found.share is not None
    assert found.share > 0.85


def test_coverage_adds_up_over_a_device_and_is_said_from_five_sittings_on() -> None:
    rng = random.Random(2)
    measured = [
        (device, cell, drawn(rng, 0, 0.01, at=n * DAY_S))
        for device, cell, count in (("a", "x", 3), ("a", "y", 3), ("b", "x", 4), ("c", "x", 2))
        for n in range(count)
    ]
    held = coverage_of_devices(measured)
    assert {device: each.sittings for device, each in held.items()} == {"a": 6, "b": 4}
    assert held["a"].share is not None
    assert held["b"].share is None
    assert IntervalCoverage(9, 10).share == 0.9


def row(number: int, median_ms: float, ended_at: str, **more: object) -> Row:
    values: dict[str, object] = {
        "status": RowStatus.COMPLETE,
        "job_id": f"c-1/{number}",
        "file_name": "m.onnx",
        "file_size": 1,
        "compute_units": "CPU (ONNX)",
        "verdict": "valid",
        "launches": 6,
        "inference_ms_median": median_ms,
        "inference_ms_median_low": 0.99 * median_ms,
        "inference_ms_median_high": 1.01 * median_ms,
        "throughput_per_s": 100.0,
        "fingerprint": "f",
        "sitting": number,
        "first_sitting": "c-1/1",
        "ended_at": ended_at,
    }
    return Row.model_validate({**values, **more})


def test_rows_of_sittings_say_what_they_come_to_together_and_are_one_where_devices_are_compared() -> None:
    rows = [row(n, ms, f"2026-11-2{n}T10:00:00+00:00") for n, ms in ((1, 10.0), (2, 10.4), (3, 10.8))]
    alone = row(9, 5.0, "", sitting=None, first_sitting="")
    failed = row(4, 1.0, "2026-11-24T10:00:00+00:00", status=RowStatus.FAILED, inference_ms_median=None)
    *pooled, after, bad = pool_sittings([*rows, alone, failed])
    assert (after, bad) == (alone, failed)
    assert {(each.sittings, each.sittings_span_s) for each in pooled} == {(3, 2 * DAY_S)}
    assert [each.inference_ms_median for each in pooled] == [10.0, 10.4, 10.8]
    first = pooled[0]
    assert first.pooled_ms_median == pytest.approx(10.4, rel=0.002)
    one, other = pooled_rows([*pooled, after, bad])
    assert (one.job_id, one.sitting, one.inference_ms_median) == ("c-1/1", None, first.pooled_ms_median)
    assert one.inference_ms_median_high == first.pooled_ms_median_high
    assert one.throughput_per_s == pytest.approx(100 * 10 / 10.4, rel=0.002)
    assert other == alone


def test_a_sitting_that_was_made_otherwise_stays_beside_those_that_are_pooled() -> None:
    rows = [
        row(n, 10.0, f"2026-11-2{n}T10:00:00+00:00", fingerprint="f" if n < 3 else "newer") for n in (1, 2, 3)
    ]
    failed = row(4, 1.0, "", status=RowStatus.FAILED, inference_ms_median=None, fingerprint="newer")
    assert [each.job_id for each in pooled_rows(pool_sittings([*rows, failed]))] == ["c-1/1", "c-1/3"]


def test_sittings_that_were_not_made_alike_are_not_pooled() -> None:
    rows = [row(n, 10.0, f"2026-11-2{n}T10:00:00+00:00", fingerprint=f"f{n}") for n in (1, 2)]
    assert pool_sittings(rows) == rows
    assert pooled_rows(rows) == rows

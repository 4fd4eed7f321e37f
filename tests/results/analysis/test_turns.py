"""Ratios pooled over several sittings: against Student's interval computed by hand, and how often the interval holds a known ratio."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from results.analysis.pairs import pairs_in_turns
from results.analysis.sittings import pool_sittings, pooled_rows
from results.analysis.turns import pooled_turns
from results.row.order import t_interval, t_quantile
from results.row.rounds import alpha_of_all, compare_logs
from results.row.row import Row, RowStatus
from results.row.verdicts import RowVerdict


def row(number: int, wall: list[float], cpu: list[float] | None = None, **more: object) -> Row:
    """A sitting that compares b with a, given the logarithms of its launches' ratios."""
    told = compare_logs(wall, cpu)
    ratio = math.exp(sum(wall) / len(wall))
    values: dict[str, object] = {
        "status": RowStatus.COMPLETE,
        "job_id": f"c-1/{number}",
        "file_name": "b.onnx",
        "file_size": 1,
        "compute_units": "CPU (ONNX)",
        "device_name": "mini",
        "verdict": "valid",
        "launches": len(wall),
        "inference_ms_median": 10.0 * ratio,
        "inference_ms_median_low": 9.9 * ratio,
        "inference_ms_median_high": 10.1 * ratio,
        "fingerprint": "f",
        "sitting": number,
        "first_sitting": "c-1/1",
        "ended_at": f"2026-11-2{number}T10:00:00+00:00",
        "against": "a.onnx",
        "against_ms_median": 10.0,
        "compare_verdict": told.verdict,
        "compare_reason": told.why,
        "ratio": told.ratio,
        "ratio_low": told.low,
        "ratio_high": told.high,
        **({} if told.cpu is None else {"cpu_ratio": told.cpu.ratio}),
        **({} if told.cpu is None else {"cpu_ratio_low": told.cpu.low, "cpu_ratio_high": told.cpu.high}),
    }
    return Row.model_validate({**values, **more})


def launches(middle: float, by: float = 0.002) -> list[float]:
    """Six logarithms of ratios around `middle`."""
    return [middle + by * step for step in (-2, -1, 0, 0, 1, 2)]


def test_sittings_known_equally_well_give_students_interval_with_all_of_the_error() -> None:
    middles = [0.05, 0.06, 0.055]
    pooled = pooled_turns([row(n, launches(middle)) for n, middle in enumerate(middles, start=1)])
    assert pooled is not None
    found = pooled.comparison
    low, high = t_interval(middles, 0.02)
    assert found.ratio == pytest.approx(math.exp(0.055))
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert (found.verdict, found.launches, pooled.sittings) == ("SLOWER", (18, 18), 3)
    assert found.why.startswith("3 sittings: wall time 1.057 [1.0")


def test_the_errors_of_sittings_that_agree_are_those_of_their_intervals_at_the_level_of_their_look() -> None:
    logs = launches(0.05)
    variance = sum((log - 0.05) ** 2 for log in logs) / 5 / 6
    for cpu, level in ((None, 0.02), (logs, 0.01)):
        pooled = pooled_turns([row(n, logs, cpu) for n in (1, 2, 3)])
        assert pooled is not None
        assert pooled.comparison.high is not None
        half = t_quantile(1 - level / 2, 2) * math.sqrt(variance / 3)
        assert math.log(pooled.comparison.high) - 0.05 == pytest.approx(half)


def test_wall_and_cpu_time_share_the_error_and_cpu_time_counts_where_every_sitting_has_it() -> None:
    both = [row(n, launches(0.05), launches(0.2)) for n in (1, 2, 3)]
    pooled = pooled_turns(both)
    assert pooled is not None
    assert pooled.comparison.cpu is not None
    assert pooled.comparison.cpu.ratio == pytest.approx(math.exp(0.2))
    assert pooled.comparison.contention
    some = pool_sittings([*both[:2], row(3, launches(0.05))])
    (one,) = pooled_rows(some)
    assert (one.cpu_ratio, one.cpu_ratio_low, one.ratio) == (None, None, pytest.approx(math.exp(0.05)))
    assert alpha_of_all(2) == pytest.approx(0.01)


def test_models_that_took_turns_in_several_sittings_are_one_pair() -> None:
    rows = pool_sittings(
        [
            row(1, launches(0.05)),
            row(2, launches(0.06), verdict="busy-host", verdict_reason="host busy 40 %"),
            row(3, launches(0.055)),
            row(4, launches(0.0), status=RowStatus.FAILED, inference_ms_median=None),
        ]
    )
    (pair,) = pairs_in_turns(rows)
    assert (pair.sittings, pair.comparison.verdict) == (3, "SLOWER")
    assert pair.comparison.ratio == pytest.approx(math.exp(0.055))
    assert pair.note == "it is busy-host"
    assert pair.a is not None
    assert pair.b is not None
    assert (pair.a.file_name, pair.a.inference_ms_median) == ("a.onnx", 10.0)
    assert pair.b.inference_ms_median == pytest.approx(10 * math.exp(0.055), rel=0.01)
    (one,) = pooled_rows(rows)
    assert (one.verdict, one.verdict_reason) == (RowVerdict.BUSY_HOST, "sitting 2: host busy 40 %")


def test_one_of_several_sittings_looked_at_alone_says_what_it_measured() -> None:
    rows = pool_sittings([row(n, launches(0.01 * n)) for n in (1, 2, 3)])
    (pair,) = pairs_in_turns(rows[1:2])
    assert (pair.sittings, pair.comparison.ratio) == (None, pytest.approx(math.exp(0.02)))


def test_a_gravest_verdict_stands_for_all_sittings() -> None:
    verdicts = ("noisy", "mismatch", "valid")
    rows = [row(n, launches(0.0), verdict=verdict) for n, verdict in enumerate(verdicts, start=1)]
    (one,) = pooled_rows(pool_sittings(rows))
    assert one.verdict == RowVerdict.MISMATCH


@pytest.mark.parametrize("between", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("sittings", [3, 5])
def test_it_holds_a_known_ratio_as_often_as_it_says_and_equals_are_seldom_told_apart(
    sittings: int, between: float
) -> None:
    """Both kinds of time err together here, as they mostly do. The error rate of one kind is 1 %; 600 draws only bound it from above."""
    rng = random.Random(7)
    held, said = 0, Counter[str]()
    for _ in range(600):
        rows = []
        for number in range(1, sittings + 1):
            middle = rng.gauss(0.0, between)
            wall = [rng.gauss(middle, 0.01) for _ in range(6)]
            rows.append(row(number, wall, [log + rng.gauss(0.0, 0.001) for log in wall]))
        pooled = pooled_turns(rows)
        assert pooled is not None
        found = pooled.comparison
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1 <= found.high
        said[found.verdict] += 1
    assert held / 600 >= 0.98
    assert (said["FASTER"] + said["SLOWER"]) / 600 <= 0.02

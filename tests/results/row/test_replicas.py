"""Replicas are compared by one stated rule: outputs beyond the tolerance, medians beyond their measured spread."""

from __future__ import annotations

import io
from math import comb

import pytest
from rich.console import Console

from results.row.identity import device_identity
from results.row.replicas import compare_replicas, differences, disagreements
from results.row.row import Row, RowStatus
from results.row.stats import median_interval
from scheduler.output.results_table import show_results


def row(
    n: int,
    replica: int | None,
    *,
    device: str | None = None,
    median: float = 10.0,
    half: float = 0.1,
    output: str = "aa",
    error: float | None = 1e-7,
    status: RowStatus = RowStatus.COMPLETE,
) -> Row:
    return Row(
        status=status,
        job_id=f"c-1/{n}",
        file_name="m.onnx",
        file_size=1,
        compute_units="CPU (ONNX)",
        device_id=device or f"d{n}",
        verdict="valid",
        inference_ms_median=median,
        inference_ms_median_low=median - half,
        inference_ms_median_high=median + half,
        output_sha256=output,
        max_error=error,
        tolerance=1e-5,
        replica=replica,
    )


def words(*rows: Row) -> list[str]:
    return [item.agreement for item in compare_replicas(rows)]


def of(row: Row, trust: str, worker: str) -> Row:
    return row.model_copy(update={"trust": trust, "worker_id": worker})


@pytest.mark.parametrize(
    ("trusts", "agreements"),
    [
        (("own", "own"), ["agrees", "agrees"]),
        (("pool lab", "pool lab"), ["agrees", "agrees"]),
        (("stranger", "stranger"), ["alone", "alone"]),
        (("own", "stranger"), ["agrees", "agrees"]),
        (("own", "own", "stranger"), ["agrees", "agrees", "agrees"]),
        (("pool lab", "pool lab", "stranger"), ["agrees", "agrees", "agrees"]),
        (("listed", "listed", "stranger"), ["agrees", "agrees", "agrees"]),
    ],
)
def test_where_a_stranger_measured_only_results_that_others_answer_for_count(
    trusts: tuple[str, ...], agreements: list[str]
) -> None:
    rows = [of(row(n, n), trust, f"key {n}") for n, trust in enumerate(trusts, 1)]
    assert words(*rows) == agreements
    counts = [item.agreement_reason for item in compare_replicas(rows)]
    if trusts == ("pool lab", "pool lab", "stranger"):
        assert counts[:2] == ["with 1 other replica"] * 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("own", "a", "a"), ("own", "b", "b"), False),
        (("own", "a", "a"), ("own", "b", "a"), True),
        (("listed", "a", "a"), ("listed", "b", "a"), True),
        (("own", "a", "a"), ("stranger", "b", "b"), False),
        (("stranger", "a", "a"), ("stranger", "b", "b"), False),
        (("stranger", "a", "a"), ("listed", "a", "a"), True),
        (("own", "a", ""), ("own", "a", "a"), True),
    ],
)
def test_rows_of_two_keys_are_of_one_device_only_where_the_submitter_knows_both_as_its_workers(
    one: tuple[str, str, str], other: tuple[str, str, str], same: bool
) -> None:
    ids = [
        device_identity(of(row(1, None, device="d"), trust, worker).model_copy(update={"device_key": key}))
        for trust, worker, key in (one, other)
    ]
    assert (ids[0] == ids[1]) is same


def test_a_stranger_that_names_anothers_device_does_not_escape_the_comparison() -> None:
    """Its record may name any device: by the id alone, its row and the honest one would count as one device."""
    honest = of(row(1, 1, device="mini"), "own", "key 1")
    liar = of(row(2, 2, device="mini", median=1.0), "stranger", "key 2")
    assert words(honest, liar) == ["disagrees", "disagrees"]


def test_replicas_that_agree_say_with_how_many() -> None:
    compared = compare_replicas([row(1, 1), row(2, 2, median=10.05), row(3, 3)])
    assert {item.agreement for item in compared} == {"agrees"}
    assert compared[0].agreement_reason == "with 2 other replicas"
    assert disagreements(compared) == []


@pytest.mark.parametrize(
    ("median", "half", "apart"),
    [
        (10.4, 0.01, False),  # intervals apart, but by less than 5 %
        (10.6, 0.01, True),
        (12.0, 1.8, True),  # 10.1 against 10.2
        (12.0, 1.95, False),  # the intervals overlap
        (20.0, 10.0, False),
    ],
)
def test_medians_are_apart_beyond_both_intervals_and_five_percent(
    median: float, half: float, apart: bool
) -> None:
    result = differences(row(1, 1), row(2, 2, median=median, half=half))
    assert bool(result) is apart
    assert differences(row(2, 2, median=median, half=half), row(1, 1)) != [] or not apart


def test_a_median_of_so_few_runs_that_it_has_no_interval_is_not_compared() -> None:
    few = row(2, 2, median=99).model_copy(update={"inference_ms_median_low": None})
    assert differences(row(1, 1), few) == []


def test_outputs_may_differ_within_the_tolerance_of_the_reference_and_not_beyond() -> None:
    one = row(1, 1)
    assert differences(one, row(2, 2, output="bb", error=9e-6)) == []
    assert differences(one, row(2, 2, output="bb", error=3e-5)) == [
        "the outputs differ by 2.99e-05 or more; 1e-05 is tolerated"
    ]
    assert differences(one, row(2, 2, output="bb", error=None)) == [
        "the outputs differ, and no reference says by how much"
    ]
    assert differences(one, row(2, 2, output="", error=None)) == [], "there was none to compare"


def test_each_group_is_compared_by_itself_and_rows_without_replicas_are_left_alone() -> None:
    rows = [row(1, None, output="zz"), row(2, 1), row(3, 2), row(4, 1, output="bb", error=None), row(5, 2)]
    assert words(*rows) == ["", "agrees", "agrees", "disagrees", "disagrees"]
    # the first replica of one group and the second of the next are no pair, whatever rows are missing between them
    assert words(row(1, 1), row(4, 2)) == ["alone", "alone"]


def test_a_replica_is_alone_when_the_others_failed_or_ran_on_the_same_device() -> None:
    failed = row(2, 2, status=RowStatus.FAILED)
    assert words(row(1, 1), failed) == ["alone", ""]
    assert words(row(1, 1, device="d"), row(2, 2, device="d")) == ["alone", "alone"]


def test_a_disagreement_is_shown_below_the_results() -> None:
    rows = compare_replicas([row(1, 1), row(2, 2, median=15.0)])
    out = io.StringIO()
    show_results(rows, Console(file=out, width=80))
    assert (
        "Replicas 1, 2 of m.onnx × CPU (ONNX) disagree: against replica 2: the median is 10 ms here, 15 ms there (50% apart)"
        in out.getvalue()
    )


@pytest.mark.parametrize("n", [6, 7, 9, 20, 57, 200])
def test_the_interval_of_the_median_is_as_narrow_as_its_confidence_allows(n: int) -> None:
    low, high = median_interval([i * 1_000_000 for i in range(1, n + 1)])
    assert low is not None
    assert high == n + 1 - low
    outside = [2 * sum(comb(n, i) for i in range(int(low) + more)) / 2**n for more in (0, 1)]
    assert outside[0] <= 0.05 < outside[1]


def test_few_samples_have_no_interval_and_many_have_a_narrow_one() -> None:
    assert median_interval([1] * 5) == (None, None)
    low, high = median_interval([i * 1_000_000 for i in range(1, 10_002)])
    assert low is not None
    assert high is not None
    assert 4890 < low < 5001 < high < 5112

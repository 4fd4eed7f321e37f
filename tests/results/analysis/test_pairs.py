"""Which rows are paired, what prevents a comparison of two rows, and the matrix with its ratios and prices."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from protocol.errors import CampaignError
from results.analysis.matrix import Price, make_matrix, read_prices
from results.analysis.pairs import pair_up, why_not_comparable
from results.export.csv import csv_lines
from results.export.raw import RawResult, ResultEntry, json_lines
from results.row.comparison import ComparisonVerdict
from results.row.row import Row, RowStatus
from scheduler.cli.analysis import app
from swarm.base.home import Home


def row(model: str = "m.onnx", device: str = "mini", ms: float | None = 2.0, **changes: Any) -> Row:
    facts: dict[str, Any] = {
        "status": RowStatus.COMPLETE,
        "job_id": "c-1/1",
        "file_name": model,
        "file_size": 9,
        "compute_units": "CPU (ONNX)",
        "device_name": device,
        "device_id": f"id-{device}",
        "soc": f"Chip of {device}",
        "threads": 1,
        "shapes": "x 1x3",
        "inference_ms_median": ms,
        "inference_ms_median_low": None if ms is None else 0.999 * ms,
        "inference_ms_median_high": None if ms is None else 1.001 * ms,
        "verdict": "valid",
    }
    return Row.model_validate(facts | changes)


def entry(found: Row, launches: int = 8) -> ResultEntry:
    chance = random.Random(f"{found.file_name} {found.device_name}")
    place = 1e6 * (found.inference_ms_median or 1)
    samples = [tuple(int(place * chance.lognormvariate(0, 0.003)) for _ in range(9)) for _ in range(launches)]
    return ResultEntry(found, tuple(samples))


def test_rows_are_paired_by_model_unit_threads_and_device() -> None:
    a = [entry(row("x", "one")), entry(row("y", "one")), entry(row("x", "two"))]
    b = [entry(row("x", "two", 4.0)), entry(row("x", "one")), entry(row("z", "one"))]
    pairs = pair_up(a, b)
    assert [(pair.a and pair.a.device_name, pair.b and pair.b.device_name) for pair in pairs] == [
        ("one", "one"),
        ("one", None),
        ("two", "two"),
        (None, "one"),
    ]
    assert [pair.comparison.verdict for pair in pairs] == [
        ComparisonVerdict.SAME,
        ComparisonVerdict.AMBIGUOUS,
        ComparisonVerdict.SLOWER,
        ComparisonVerdict.AMBIGUOUS,
    ]
    assert [pair.comparison.why for pair in pairs[1::2]] == [
        "not compared: only A has it",
        "not compared: only B has it",
    ]


def test_two_models_are_compared_where_each_side_has_one() -> None:
    (pair,) = pair_up([entry(row("old.onnx", ms=2.0))], [entry(row("new.onnx", ms=1.0))])
    assert pair.comparison.verdict is ComparisonVerdict.FASTER
    assert pair.comparison.ratio == pytest.approx(0.5, rel=0.01)


def test_two_rows_are_compared_whatever_they_ran_on() -> None:
    (pair,) = pair_up(
        [entry(row(ms=2.0))], [entry(row(ms=1.0, compute_units="GPU (ONNX)", threads=4), launches=9)]
    )
    assert pair.comparison.verdict is ComparisonVerdict.FASTER
    pairs = pair_up([entry(row()), entry(row("x"))], [entry(row(threads=4))])
    assert len(pairs) == 3, "of several rows those belong together that ran alike"


def test_devices_are_compared_where_that_is_asked_for_or_none_is_shared() -> None:
    a, b = [entry(row(device="one"))], [entry(row(device="two", ms=3.0))]
    assert pair_up(a, b)[0].comparison.verdict is ComparisonVerdict.SLOWER
    assert pair_up([*a, *b], [*a, *b], across_devices=True)[0].comparison.verdict is ComparisonVerdict.SAME


@pytest.mark.parametrize(("model", "unit"), [("y", "CPU (ONNX)"), ("x", "GPU (ONNX)")])
def test_devices_are_never_compared_by_different_models_or_units(model: str, unit: str) -> None:
    a, b = [entry(row("x", "one"))], [entry(row(model, "two", compute_units=unit))]
    assert [pair.comparison.why for pair in pair_up(a, b, across_devices=True)] == [
        "not compared: only A has it",
        "not compared: only B has it",
    ]
    assert len(pair_up(a, b)) == 1, "unless exactly these two are named"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shapes": "x 1x4"}, "the input shapes differ: x 1x3 and x 1x4"),
        ({"shapes": ""}, "the input shapes differ: x 1x3 and unknown"),
        ({"status": RowStatus.FAILED, "reason": "crashed"}, "B is Failed (crashed)"),
        ({"inference_ms_median": None}, "B has no times"),
        ({"shapes": "pixels 1x3"}, ""),
    ],
)
def test_rows_that_are_not_alike_are_not_compared_with_a_reason(changes: dict[str, Any], why: str) -> None:
    assert why_not_comparable(row(), row(**changes)) == why
    (pair,) = pair_up([entry(row())], [entry(row(**changes))])
    assert pair.comparison.why == (f"not compared: {why}" if why else pair.comparison.why)
    assert (pair.comparison.ratio is None) is bool(why)


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ({"others_percent": 1.0}, {"others_percent": 40.0}, "1% of the processors' time went to other work for A, 40% for B"),
        ({"stall_percent": 90.0}, {"stall_percent": 5.0}, "90% of the time something waited for a processor for A, 5% for B"),
        ({}, {"throttles": 2}, "B was slowed by heat or power"),
        ({"others_percent": 40.0}, {"others_percent": 45.0}, ""),
        ({"throttles": 1}, {"throttles": 2}, ""),
    ],
)  # fmt: skip
def test_a_difference_that_may_be_the_hosts_is_ambiguous(
    one: dict[str, Any], other: dict[str, Any], why: str
) -> None:
    (pair,) = pair_up([entry(row(**one))], [entry(row(ms=4.0, **other))])
    assert pair.comparison.verdict is (ComparisonVerdict.AMBIGUOUS if why else ComparisonVerdict.SLOWER)
    assert pair.comparison.why.endswith(why)


def test_devices_with_other_numbers_of_cores_are_compared_model_by_model() -> None:
    one = [entry(row(name, "one", threads=2)) for name in ("x", "y")]
    two = [entry(row(name, "two", 1.0, threads=8)) for name in ("x", "y")]
    assert [pair.comparison.verdict for pair in pair_up(one, two, across_devices=True)] == [
        ComparisonVerdict.FASTER
    ] * 2
    (x, *_) = pair_up(one, [*two, entry(row("x", "two", 1.0, threads=1))], across_devices=True)
    assert x.comparison.why == "not compared: only A has it", "on how many threads was asked for there"
    again = [entry(row(name, "one", threads=8)) for name in ("x", "y")]
    assert {pair.comparison.why[:12] for pair in pair_up(one, again)} == {"not compared"}, "of one device"


def test_what_is_in_doubt_on_either_side_is_noted() -> None:
    (pair,) = pair_up([entry(row(verdict="noisy"))], [entry(row(verdict="drift"))])
    assert pair.note == "A is noisy; B is drift"


def test_across_devices_a_reference_takes_their_speed_out() -> None:
    a = [entry(row("m", "one", 2.0)), entry(row("ref", "one", 1.0))]
    b = [entry(row("m", "two", 8.0)), entry(row("ref", "two", 4.0))]
    (pair,) = pair_up(a, b, reference="ref")
    assert pair.comparison.verdict is ComparisonVerdict.SAME
    (pair,) = pair_up(a, b[:1], reference="ref")
    assert pair.comparison.why == (
        "not compared: B did not take turns with ref, and has no complete row of ref on that device and unit"
    )


def test_rows_without_raw_samples_are_compared_by_their_intervals() -> None:
    (pair,) = pair_up([ResultEntry(row())], [ResultEntry(row(ms=4.0))])
    assert pair.comparison.verdict is ComparisonVerdict.SLOWER
    assert "raw samples would tell more" in pair.comparison.why
    (pair,) = pair_up([ResultEntry(row())], [ResultEntry(row(inference_ms_median_low=None))])
    assert "both sides need raw samples" in pair.comparison.why


# -- the matrix ---------------------------------------------------------------------------------------------------------------------


def test_ratios_are_to_the_base_and_to_nothing_else() -> None:
    rows = [row("x", "one"), row("x", "two", 6.0), row("y", "one", 1.0), row("y", "two", 5.0)]
    by_key = {(cell.model, cell.device): cell.ratio for cell in make_matrix(rows, base="one")}
    assert by_key == {("x", "one"): 1.0, ("x", "two"): 3.0, ("y", "one"): 1.0, ("y", "two"): 5.0}
    by_key = {(cell.model, cell.device): cell.ratio for cell in make_matrix(rows, base="x")}
    assert by_key == {
        ("x", "one"): 1.0,
        ("x", "two"): 1.0,
        ("y", "one"): 0.5,
        ("y", "two"): pytest.approx(5 / 6),
    }
    with pytest.raises(ValueError, match="no model, variant, device or unit named 'three'"):
        make_matrix(rows, base="three")


def test_a_cell_that_is_not_valid_carries_why() -> None:
    rows = [
        row("x", "one"),
        row("x", "two", None, status=RowStatus.FAILED, reason="crashed", detail="signal 9"),
        row("x", "three", shapes="x 2x3"),
        row("x", "four", verdict="noisy", verdict_reason="±30%"),
    ]
    values = {cell.device: (cell.ratio, cell.remark) for cell in make_matrix(rows, base="one")}
    assert values["two"] == (None, "Failed, crashed: signal 9")
    assert values["three"] == (None, "no ratio: the input shapes differ: x 1x3 and x 2x3")
    assert values["four"] == (1.0, "noisy: ±30%")
    assert values["one"] == (1.0, "")


def test_watts_and_prices_are_shown_only_where_they_are_known() -> None:
    rows = [row("x", "one", energy_per_inference_j=0.5), row("x", "two")]
    one, two = make_matrix(rows, prices={"Chip of one": Price(3.6, "EUR")})
    assert (one.joules, one.per_watt, one.price_per_hour, one.currency) == (0.5, 2.0, 3.6, "EUR")
    assert one.per_million == pytest.approx(2.0)  # 2 ms × 0.001 per second × a million
    assert (two.joules, two.per_watt, two.price_per_hour, two.per_million, two.currency) == (None,) * 4 + (
        "",
    )


def test_a_price_file_says_what_an_hour_costs(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("currency: EUR\nper_hour:\n  mini: 0.5\n")
    assert read_prices(path) == {"mini": Price(0.5, "EUR")}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is a mapping"),
        ("currency: EUR\n", "per_hour must be"),
        ("currency: 5\nper_hour: {a: 1}\n", "currency must be"),
        ("currency: EUR\nper_hour: {a: -1}\n", "the price of 'a'"),
        ("currency: EUR\nper_hour: {a: 1}\nper_day: {}\n", "unknown key 'per_day'"),
    ],
)
def test_a_wrong_price_file_is_refused_with_what_to_do(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(CampaignError, match=what) as caught:
        read_prices(path)
    assert "per_hour:" in caught.value.hint


# -- the commands ---------------------------------------------------------------------------------------------------------------------


def files(tmp_path: Path) -> tuple[str, str]:
    """Raw results, without signatures, of the same model on two devices, the second slower."""
    results = []
    for name, device, ms in (("a", "one", 2.0), ("b", "two", 6.0)):
        one = entry(row(device=device, ms=ms, campaign="c-1"))
        result = RawResult(
            row=one.row,
            inference_ns=tuple(ns for launch in one.launches for ns in launch),
            samples=tuple(map(len, one.launches)),
        )
        path = tmp_path / f"{name}.json"
        path.write_text("".join(json_lines("c-1", [result])))
        results.append(str(path))
    return results[0], results[1]


def run(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments, obj=Home.at(tmp_path))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_compare_shows_a_table_and_speaks_json_and_csv(tmp_path: Path) -> None:
    a, b = files(tmp_path)
    code, shown = run(tmp_path, "compare", a, b)
    assert code == 0
    assert "SLOWER" in shown
    assert "one → two" in shown
    assert "CPU (ONNX) ×1" in shown, "rows that differ in threads alone can be distinguished"
    _, outcome = run(tmp_path, "compare", a, b, "--json")
    (pair,) = json.loads(outcome)["pairs"]
    assert (pair["verdict"], pair["a_device"], pair["b_device"]) == ("SLOWER", "one", "two")
    assert pair["ratio_low"] < 3 < pair["ratio_high"]
    _, table = run(tmp_path, "compare", a, b, "--csv", "-")
    assert table.splitlines()[0].startswith("verdict,ratio,ratio_low,ratio_high,p_value")


def test_rows_that_are_not_compared_have_no_verdict_in_the_table(tmp_path: Path) -> None:
    a, _ = files(tmp_path)
    path = tmp_path / "c.csv"
    path.write_text("".join(csv_lines([row("x"), row("y")])))
    _, shown = run(tmp_path, "compare", a, str(path))
    assert "AMBIGUOUS" not in shown
    assert [line.count("–") for line in shown.splitlines()].count(1) == 3, "one line each"
    assert shown.count("not compared: only") == 2, "and each reason once"
    assert "and 1 more like it" in shown


def test_a_missing_price_file_and_a_missing_campaign_have_their_own_errors(tmp_path: Path) -> None:
    for words, what, hint in (
        (
            ("matrix", files(tmp_path)[0], "--prices", str(tmp_path / "none.yaml")),
            "no such file",
            "currency: EUR",
        ),
        (("compare", "mini", "studio", "--by", "device"), "no campaign on this home yet", "sark-node init"),
    ):
        done = CliRunner().invoke(app, words, obj=Home.at(tmp_path))
        assert isinstance(done.exception, CampaignError)
        assert what in str(done.exception)
        assert hint in done.exception.hint


def test_matrix_puts_several_results_together(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("currency: EUR\nper_hour: {one: 1.8}\n")
    code, shown = run(
        tmp_path, "matrix", *files(tmp_path), "--base", "one", "--prices", str(tmp_path / "p.yaml")
    )
    assert code == 0
    assert "EUR per million inputs" in shown
    assert "6 ±0% ×3" in shown
    _, outcome = run(tmp_path, "matrix", *files(tmp_path), "--json")
    assert [cell["device"] for cell in json.loads(outcome)["cells"]] == ["one", "two"]


def test_verify_ends_with_one_where_something_does_not_hold(tmp_path: Path) -> None:
    code, shown = run(tmp_path, "verify", files(tmp_path)[0])
    assert code == 1
    assert "not verified" in shown
    code, outcome = run(tmp_path, "verify", files(tmp_path)[0], "--json")
    assert (code, json.loads(outcome)["holds"]) == (1, False)


def test_a_csv_alone_cannot_be_verified(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("".join(csv_lines([row()])), newline="")
    done = CliRunner().invoke(app, ["verify", str(path)], obj=Home.at(tmp_path))
    assert isinstance(done.exception, CampaignError)
    assert "it has no signatures" in done.exception.what

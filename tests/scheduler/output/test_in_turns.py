"""Models that took turns: how their comparison is shown to people and to programs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from protocol.errors import CampaignError
from protocol.values.attempt import TaskState
from protocol.values.record import Record, SignedRecord, pack_samples, record_body
from protocol.values.task import task_body
from results.analysis.pairs import pair_up
from results.analysis.sittings import pool_sittings
from results.export.raw import RawResult, ResultEntry, ResultSource, raw_result
from results.report.facts import Report
from results.row.make import make_row
from results.row.row import Row
from scheduler.output.compare_table import compare_lines, turned_lines
from scheduler.output.comparisons import compared_in_turns, matrix_of
from scheduler.output.render import ReportFormat, render
from scheduler.output.results_table import show_results
from tests.results.analysis.test_turns import launches
from tests.results.analysis.test_turns import row as sitting
from tests.results.row.test_together import RAN, ROUNDS, TASK, TIMING, record

SHAPED = record(device=record().device.model_copy(update={"name": "mini"}))


def raw(made: Record = SHAPED, *, alone: bool = False) -> RawResult:
    """A result of b.onnx beside a.onnx, which is 10 % quicker; `alone`: without a.onnx."""
    task = TASK.model_copy(update={"beside": None}) if alone else TASK
    made = made.model_copy(update={"rounds": None, "ran_beside": None}) if alone else made
    row = make_row(task, TaskState.SUCCEEDED, made)
    return raw_result(row, task_body(task), SignedRecord(body=record_body(made), signature=b"0" * 64))


def shown(rows: list[Row]) -> str:
    out = io.StringIO()
    show_results(rows, Console(file=out, width=80))
    return out.getvalue()


def test_the_table_of_results_has_the_ratio_and_says_below_it_what_that_is() -> None:
    text = shown([raw().row])
    assert "Ratio" in text
    assert "×1.100" in text
    assert "1 is SLOWER than a.onnx: wall time 1.100 [1.100, 1.100], CPU time 1.100" in text
    alone = shown([raw(alone=True).row])
    assert "Ratio" not in alone
    assert "a.onnx" not in alone


def test_compare_of_one_result_shows_the_models_that_took_turns_in_it() -> None:
    table, pairs = compared_in_turns(ResultSource("c-1", "c-1", (raw(), raw(alone=True))))
    (pair,) = table.pairs
    assert (pair.a_model, pair.b_model, pair.verdict, pair.in_turns) == ("a.onnx", "b.onnx", "SLOWER", True)
    assert (pair.ratio, pair.cpu_ratio) == (pytest.approx(1.1), pytest.approx(1.1))
    assert (pair.a_median_ms, pair.b_median_ms) == (pytest.approx(0.001), pytest.approx(0.0011))
    assert pair.a_job == pair.b_job == "c-1/1"
    lines = [line.plain for line in compare_lines(pairs, 80)]
    assert lines[1].startswith("a.onnx → b.onnx")
    assert lines[2].split()[:2] == ["SLOWER", "×1.100"]
    assert any("CPU time 1.100" in line for line in lines)


def test_results_in_which_none_took_turns_say_how_to_compare() -> None:
    with pytest.raises(CampaignError, match="took turns") as caught:
        compared_in_turns(ResultSource("c-1", "c-1", (raw(alone=True),)))
    assert "measure: {against: NAME}" in caught.value.hint


APART = "CPU (OpenVINO)"


def of_units(name: str = "a.onnx", unit: str = APART) -> RawResult:
    """A result of b.onnx beside a model on its own unit."""
    other = (TASK.beside or ())[0].model_copy(update={"name": name})
    task = TASK.model_copy(update={"beside": (other,), "beside_units": (unit,)})
    ran = SHAPED.model_copy(update={"ran_beside": (RAN.model_copy(update={"unit": unit}),)})
    row = make_row(task, TaskState.SUCCEEDED, ran)
    return raw_result(row, task_body(task), SignedRecord(body=record_body(ran), signature=b"0" * 64))


def test_what_ran_on_another_unit_is_named_by_it_everywhere() -> None:
    same, other = of_units("b.onnx"), of_units()
    assert "1 is SLOWER than CPU (OpenVINO): wall time 1.100" in shown([same.row])
    assert "1 is SLOWER than a.onnx on CPU (OpenVINO): wall time 1.100" in shown([other.row])
    table, pairs = compared_in_turns(ResultSource("c-1", "c-1", (same,)))
    (pair,) = table.pairs
    assert (pair.a_model, pair.a_unit, pair.b_model, pair.b_unit) == ("b.onnx", APART, "b.onnx", "CPU (ONNX)")
    lines = [line.plain for line in compare_lines(pairs, 100)]
    assert lines[1].startswith("b.onnx")
    assert "CPU (OpenVINO) → CPU (ONNX)" in lines[2]
    below = [line.plain for line in turned_lines(matrix_of([other.row]).in_turns, 120)]
    assert below[2].startswith("b.onnx on mini, CPU (ONNX): SLOWER than a.onnx on CPU (OpenVINO), ×1.100 [")
    report = Report([same], campaign="c-1", title="t", written=0.0, version="1")
    text = render(report, ReportFormat.MD)
    assert "| `CPU (OpenVINO)` |" in text
    assert "in turns with CPU (OpenVINO), until the comparison is decided" in text


def test_rows_are_not_compared_through_a_model_that_ran_on_different_units() -> None:
    (pair,) = pair_up([of_units().entry()], [raw().entry()], reference="a.onnx")
    assert "did not take turns with a.onnx" in pair.comparison.why
    (pair,) = pair_up([of_units().entry()], [of_units().entry()], reference="a.onnx")
    assert pair.comparison.ratio == pytest.approx(1.0)


def test_the_report_has_a_table_of_models_in_turns_and_no_word_of_ranks() -> None:
    report = Report([raw()], campaign="c-1", title="t", written=0.0, version="1")
    text = render(report, ReportFormat.MD)
    assert "In turns" in text
    assert "1.100 (1.100 – 1.100)" in text
    assert "ranks that far apart" not in text
    assert "In turns" not in render(
        Report([raw(alone=True)], campaign="c-1", title="t", written=0.0, version="1"), ReportFormat.MD
    )


def test_rows_beside_the_same_model_are_compared_through_it() -> None:
    def row(ratio: float, device: str, wall: int) -> ResultEntry:
        times = tuple(round(wall * ratio * (1 + at / 1000)) for at in range(6))
        rounds = tuple(
            ROUNDS.model_copy(
                update={"wall": (pack_samples([wall] * 8), pack_samples([own] * 8)), "cpu": None}
            )
            for own in times
        )
        timings = tuple(TIMING.model_copy(update={"samples": pack_samples([own] * 8)}) for own in times)
        there = record().device.model_copy(update={"name": device, "device": device})
        return raw(record(rounds=rounds, timings=timings, device=there)).entry()

    slow, quick = row(5.0, "slow", 10_000_000), row(4.0, "quick", 1_000_000)
    (pair,) = pair_up([slow], [quick], across_devices=True, reference="a.onnx")
    assert (pair.comparison.verdict, pair.comparison.ratio) == ("FASTER", pytest.approx(0.8, rel=0.01))
    (pair,) = pair_up([slow], [quick], across_devices=True, reference="other.onnx")
    assert "did not take turns with other.onnx" in pair.comparison.why


def of_sittings(*middles: float) -> tuple[RawResult, ...]:
    """Sittings of b.onnx beside a.onnx, by the logs of their ratios."""
    rows = pool_sittings([sitting(n, launches(middle)) for n, middle in enumerate(middles, start=1)])
    return tuple(raw().model_copy(update={"row": row}) for row in rows)


def test_sittings_are_compared_as_one_line_that_says_how_many_they_are() -> None:
    source = ResultSource("c-1", "c-1", of_sittings(0.05, 0.06, 0.055))
    table, pairs = compared_in_turns(source)
    assert [(pair.sittings, pair.verdict) for pair in table.pairs] == [(3, "SLOWER")]
    lines = [line.plain for line in compare_lines(pairs, 80)]
    assert lines[2].split()[:2] == ["SLOWER", "×1.057"]
    assert lines[2].endswith("3 sittings · CPU (ONNX) · mini [1]")
    assert any("3 sittings: wall time 1.057 [1.0" in line for line in lines)
    (alone,) = compared_in_turns(ResultSource("c-1", "c-1", (raw(),)))[0].pairs
    assert alone.sittings is None


def test_below_the_matrix_stands_a_line_for_models_that_took_turns() -> None:
    made = matrix_of([result.row for result in of_sittings(0.05, 0.06, 0.055)])
    assert len(made.cells) == 1
    lines = [line.plain for line in turned_lines(made.in_turns, 120)]
    assert lines[2].startswith("b.onnx on mini, CPU (ONNX): SLOWER than a.onnx, ×1.057 [1.0")
    assert lines[2].endswith("] over 3 sittings")
    assert all(len(line.plain) <= 60 for line in turned_lines(made.in_turns, 60))
    assert turned_lines(matrix_of([raw(alone=True).row]).in_turns, 80) == []
    assert turned_lines(made.in_turns * 20, 120)[-1].plain == "and 8 more: sark-node compare"


def test_the_table_of_results_tells_the_comparison_of_sittings_once() -> None:
    text = shown([result.row for result in of_sittings(0.05, 0.06, 0.055)])
    (line,) = (line for line in text.splitlines() if " is SLOWER than" in line)
    assert line.startswith("3 with its other sittings is SLOWER than a.onnx: 3 sittings: wall time 1.057")
    (pooled,) = (line for line in text.splitlines() if line.startswith("sittings 3"))
    assert "×1.057" in pooled


def test_the_report_has_one_line_for_sittings() -> None:
    report = Report(of_sittings(0.05, 0.06, 0.055), campaign="c-1", title="t", written=0.0, version="1")
    text = render(report, ReportFormat.MD)
    assert text.count("`3 sittings`") == 1
    assert "1.057 (1.0" in text

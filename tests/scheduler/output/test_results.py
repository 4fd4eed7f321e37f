"""The table for a very large number of results."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from protocol.values.attempt import TaskState
from results.analysis.sittings import pool_sittings
from results.row.row import Row, RowStatus
from scheduler.output.results_table import MAX_SHOWN, ended_words, failure_lines, show_results


def row(n: int, why: str = "") -> Row:
    status = RowStatus.FAILED if why else RowStatus.COMPLETE
    return Row(
        status=status, job_id=f"c-1/{n}", file_name="m.onnx", file_size=1, compute_units="CPU", detail=why
    )


def shown(rows: Sequence[Row], *, terminal: bool, **more: dict[str, int]) -> list[str]:
    out = io.StringIO()
    show_results(rows, Console(file=out, force_terminal=terminal, color_system=None, width=90), **more)
    return out.getvalue().splitlines()


def test_a_terminal_gets_the_first_rows_and_is_told_how_to_see_all() -> None:
    lines = shown([row(n, "bad" if n > 250 else "") for n in range(1, 301)], terminal=True)
    assert sum("m.onnx" in line for line in lines) == MAX_SHOWN
    assert lines[-2:] == [
        "These are the first 200 of 300 tasks (250 complete, 50 failed).",
        "All of them: sark-node results c-1 | less, or --csv FILE",
    ]
    assert shown([row(1)], terminal=True, ended={"Complete": 7})[-2].startswith(
        "These are the first 1 of 7 tasks"
    )


def test_a_remark_stands_behind_the_verdict_below_the_table() -> None:
    measured = row(4).model_copy(
        update={"inference_ms_median": 1.0, "verdict": "valid", "remarks": "host busy 6%"}
    )
    assert shown([measured], terminal=True)[-1] == "4 valid · host busy 6%"


@pytest.mark.parametrize(("number", "terminal"), [(300, False), (MAX_SHOWN, True)])
def test_a_pipe_gets_every_row_and_so_does_a_terminal_with_room(number: int, terminal: bool) -> None:
    lines = shown([row(n) for n in range(1, number + 1)], terminal=terminal)
    assert sum("m.onnx" in line for line in lines) == number
    assert "first" not in lines[-1]


def test_tasks_that_failed_in_turn_for_one_reason_are_one_line() -> None:
    rows = [row(1, "a"), row(2), row(3, "a"), row(4, "a"), row(6, "a"), row(7, "b")]
    assert failure_lines(rows) == [
        "c-1/1 failed: a",
        "c-1/3-4, 6 failed for the same reason",
        "c-1/7 failed: b",
    ]


def test_states_that_end_a_task_are_counted_in_the_words_of_rows() -> None:
    counts = {TaskState.RUNNING: 5, TaskState.SUCCEEDED: 3, TaskState.FAILED: 1}
    assert ended_words(counts) == {"Complete": 3, "Failed": 1}


def test_a_sustained_run_is_told_in_a_line() -> None:
    lasting = row(1).model_copy(
        update={
            "sustain_s": 600.0,
            "burst_ms": 5.02,
            "steady_ms": 5.62,
            "sustained": "12 % slower from 95 s on; as fast as at first after 15 s of rest",
            "steady_j": 0.3104,
            "energy_source": "rapl package",
        }
    )
    (line,) = (line for line in shown([lasting], terminal=False) if "sustained" in line)
    assert line == (
        "1 sustained for 10 min: 5.02 ms at first, 5.62 ms at the end; 12 % slower from 95 s on; "
        "as fast as at first after 15 s of rest; 0.31 J per inference (rapl package)"
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_below_sittings_stands_what_they_come_to_together(terminal: bool) -> None:
    figures = {
        "status": RowStatus.COMPLETE,
        "verdict": "valid",
        "fingerprint": "f",
        "first_sitting": "c-1/1",
        "launches": 6,
    }
    rows = [
        row(n).model_copy(
            update={
                **figures,
                "sitting": n,
                "ended_at": f"2026-11-23T0{n}:00:00+00:00",
                "inference_ms_median": ms,
                "inference_ms_median_low": 0.99 * ms,
                "inference_ms_median_high": 1.01 * ms,
                "half_width_percent": 1.0,
                "horizon_s": 40.0,
                "load_ms_median": 7.0,
            }
        )
        for n, ms in ((1, 10.0), (2, 10.4), (3, 10.8))
    ]
    lines = shown(pool_sittings(rows), terminal=terminal)
    first, pooled = (next(line for line in lines if word in line) for word in ("10.00", "sittings 3"))
    assert "10.39 ±9.6%" in pooled
    assert "in 2 h" in pooled
    assert "7.000" in first
    assert "7.000" not in pooled
    assert any("The line `sittings N` pools all sittings on that device." in line for line in lines)
    assert not any("sittings" in line for line in shown(rows, terminal=terminal))


def test_scores_have_a_column_where_a_model_was_evaluated_and_a_line_where_there_are_none() -> None:
    first = row(1).model_copy(update={"scores": "accuracy=0.97125; top5=1"})
    second = row(2).model_copy(update={"scores_why": "example 3 of 9: too wide"})
    lines = shown([first, second], terminal=True)
    assert any("accuracy 0.9712," in line for line in lines)
    assert "2 has no scores: example 3 of 9: too wide" in lines
    assert not any("Scores" in line for line in shown([row(1)], terminal=True))


def named(n: int, name: str, shapes: str) -> Row:
    change = {"file_name": name, "compute_units": "CPU (ONNX)", "device_name": "lab-1", "shapes": shapes}
    return row(n).model_copy(update={**change, "load_ms_median": 7.0, "peak_inference_ram_usage": 36.7})


@pytest.mark.parametrize(
    ("rows", "width", "left_out"),
    [
        (
            [
                named(1, "mobilenet_v2_fp32_batch1.onnx", "x=1x64"),
                named(2, "mobilenet_v2_int8_batch1.onnx", "x=1x64"),
            ],
            84,
            "RAM MB, Load ms, Shape",
        ),
        (
            [
                named(1, "mobilenet_v2_fp32_batch1.onnx", "x=1x64"),
                named(2, "mobilenet_v2_fp32_batch1.onnx", "x=2x64"),
            ],
            89,
            "RAM MB, Load ms",
        ),
    ],
    ids=["names", "shapes"],
)
def test_on_a_narrow_terminal_lesser_columns_give_way_to_what_tells_rows_apart(
    rows: list[Row], width: int, left_out: str
) -> None:
    out = io.StringIO()
    show_results(rows, Console(file=out, force_terminal=True, color_system=None, width=width))
    assert all(row.file_name in out.getvalue() for row in rows)
    assert f"{left_out}: shown in a wider terminal, or with --csv FILE" in out.getvalue()


def test_of_names_that_have_no_room_the_middle_is_left_out() -> None:
    rows = [named(n, f"a_model_with_a_long_name_{kind}.onnx", "") for n, kind in enumerate(("fp32", "int8"))]
    out = io.StringIO()
    show_results(rows, Console(file=out, force_terminal=True, color_system=None, width=66))
    assert "…p32.onnx" in out.getvalue()
    assert "…nt8.onnx" in out.getvalue()
    wide = io.StringIO()
    show_results(rows, Console(file=wide, force_terminal=True, color_system=None, width=140))
    assert "wider terminal" not in wide.getvalue()


def test_fewer_threads_than_were_asked_for_are_said_below_the_table() -> None:
    few = row(1).model_copy(
        update={"notes": "check: none; threads: 2000 requested, this device runs 2 at once"}
    )
    assert "1 has a note on threads: 2000 requested, this device runs 2 at once" in shown(
        [few], terminal=False
    )

"""Devices of different keys are told apart wherever rows of several are shown."""

from __future__ import annotations

from results.analysis.matrix import make_matrix
from results.row.names import with_distinct_names
from results.row.row import Row, RowStatus
from scheduler.output.results_table import plain_lines


def row(n: int, name: str, worker: str) -> Row:
    return Row(
        status=RowStatus.COMPLETE, job_id=f"c-1/{n}", file_name="m.onnx", file_size=1, compute_units="CPU (ONNX)",
        device_id=f"d-{worker}", device_name=name, worker_id=worker, verdict="valid", inference_ms_median=1.0,
    )  # fmt: skip


ROWS = [
    row(1, "lab-1", "key-aaaaaa"),
    row(2, "lab-l", "key-bbbbbb"),
    row(3, "mini", "key-cccccc"),
    row(4, "lab-1", "key-aaaaaa"),
]
LABELS = ["lab-1 …aaaaaa", "lab-l …bbbbbb", "mini", "lab-1 …aaaaaa"]


def test_a_name_that_another_key_took_ends_with_the_key_and_others_stay_as_they_are() -> None:
    assert [one.device_name for one in with_distinct_names(ROWS)] == LABELS
    assert [one.device_name for one in with_distinct_names(with_distinct_names(ROWS))] == LABELS
    assert with_distinct_names(ROWS[2:3]) == ROWS[2:3]


def test_tables_and_matrices_show_two_devices_as_two() -> None:
    text = "\n".join(plain_lines(ROWS))
    assert "lab-1 …aaaaaa" in text
    assert "lab-l …bbbbbb" in text
    assert {cell.device for cell in make_matrix(ROWS)} == set(LABELS)
    assert make_matrix(ROWS, base="mini"), "a base is given by its own name"

"""Devices of different keys have different names wherever rows of several devices are shown."""

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


def test_workers_of_one_device_are_told_apart_only_where_the_same_was_asked_of_each() -> None:
    def at(n: int, name: str, worker: str, model: str = "m.onnx") -> Row:
        place = {"device_id": "d", "device_key": "key-000001", "file_name": model}
        return row(n, name, worker).model_copy(update=place)

    by_worker = [at(1, "one", "key-000001"), at(2, "two", "key-000002"), at(3, "two", "key-000003")]
    assert [each.device_name for each in with_distinct_names(by_worker)] == [
        "one",
        "two …000002",
        "two …000003",
    ]
    by_device = [at(1, "one", "key-000001"), at(2, "two", "key-000002", "n.onnx")]
    assert [each.device_name for each in with_distinct_names(by_device)] == ["one", "one"]


def test_a_worker_that_makes_another_sitting_or_replica_leaves_its_device_its_name() -> None:
    place = {"device_id": "d", "device_key": "key-000001"}
    for field in ("sitting", "replica"):
        rows = [
            row(n, "mini", f"key-00000{n}").model_copy(update={**place, field: n, "first_sitting": "c-1/1"})
            for n in (1, 2)
        ]
        assert [each.device_name for each in with_distinct_names(rows)] == ["mini", "mini"]


def test_tables_and_matrices_show_two_devices_as_two() -> None:
    text = "\n".join(plain_lines(ROWS))
    assert "lab-1 …aaaaaa" in text
    assert "lab-l …bbbbbb" in text
    assert {cell.device for cell in make_matrix(ROWS)} == set(LABELS)
    assert make_matrix(ROWS, base="mini"), "a base is given by its own name"

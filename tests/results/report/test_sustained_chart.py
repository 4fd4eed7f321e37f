"""A sustained run as a chart: its stretches, levels, knee and probes, and what is known of heat and power."""

from __future__ import annotations

import base64

import pytest

from protocol.values.attempt import TaskState
from protocol.values.record import record_body
from protocol.values.task import Measure, Model, task_body
from results.export.raw import RawResult
from results.report.drawing import Dots, Stroke, TextLabel, Tone, svg
from results.report.facts import Report
from results.report.method import method
from results.report.page import Figures, Table, quote
from results.report.sustained_chart import sustained_chart, sustained_runs
from results.report.task_charts import TaskChart, task_chart
from results.row.make import make_row
from tests.results.row.test_sustained import RAPL, TASK, record


def test_stretches_levels_knee_and_probes_are_drawn_and_told() -> None:
    drawing = task_chart(TaskChart.SUSTAINED, record(meters=(RAPL,)))
    assert drawing is not None
    stretches, probes = (mark for mark in drawing.marks if isinstance(mark, Dots))
    assert (len(stretches.points), len(probes.points)) == (60, 3)
    assert probes.points[0][0] > stretches.points[-1][0], "a rest comes after the run"
    levels = [mark for mark in drawing.marks if isinstance(mark, Stroke) and mark.tone is Tone.GOOD]
    assert len(levels) == 2
    labels = [mark.text for mark in drawing.marks if isinstance(mark, TextLabel)]
    assert {"temperature of processor, °C", "power of rapl package, W", "knee, 20.00 s"} <= set(labels)
    assert not any(label.startswith("clock") for label in labels), "nothing is drawn of what is not known"
    for sentence in (
        "20 % slower from 20 s on",
        "At first 5.000 ms and 0.07500 J per inference.",
        "Power: 9.000 to 12.00 W.",
        "Temperature: 50.00 to 79.50 °C.",
    ):
        assert sentence in drawing.description
    assert "<title>" in svg(drawing, "dark")


def test_a_run_that_was_not_sustained_has_no_such_picture() -> None:
    assert sustained_chart(record(sustained=None)) is None


@pytest.mark.parametrize("lasting", [True, False])
def test_a_report_shows_each_sustained_run(lasting: bool) -> None:
    made = record() if lasting else record(sustained=None)
    row = make_row(TASK, TaskState.SUCCEEDED, made)
    result = RawResult.model_construct(
        row=row,
        record=base64.b64encode(record_body(made)).decode(),
        task=base64.b64encode(task_body(TASK)).decode(),
    )
    section = sustained_runs(Report([result], "c-1", "t", 0.0, "1"))
    assert (section is not None) is lasting
    if section is not None:
        assert sum(isinstance(block, Figures) for block in section.blocks) == 1


@pytest.mark.parametrize("bytes_of_record", ["", "not base64 at all", base64.b64encode(b"x").decode()])
def test_a_record_that_cannot_be_read_breaks_no_report(bytes_of_record: str) -> None:
    row = make_row(TASK, TaskState.SUCCEEDED, record())
    section = sustained_runs(
        Report([RawResult.model_construct(row=row, record=bytes_of_record)], "c-1", "t", 0.0, "1")
    )
    assert section is not None
    assert "Its record cannot be read." in section.blocks


def test_a_report_says_what_models_in_turns_were_asked_for() -> None:
    together = TASK.model_copy(
        update={
            "beside": (Model(name="fp32.onnx", sha256="cd" * 32, size=1),),
            "measure": Measure(runs=100, loads=6),
        }
    )
    result = RawResult.model_construct(
        row=make_row(together, TaskState.FAILED), task=base64.b64encode(task_body(together)).decode()
    )
    (table,) = (
        block for block in method(Report([result], "c-1", "t", 0.0, "1")).blocks if isinstance(block, Table)
    )
    assert list(table.rows[0]) == [
        "inferences",
        quote("in turns with fp32.onnx, until the comparison is decided, in 6 to 200 launches"),
    ]

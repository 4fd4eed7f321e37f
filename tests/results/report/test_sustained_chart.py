"""A sustained run as a picture: its stretches, levels, knee and probes, and what is known of heat and power."""

from __future__ import annotations

import base64

import pytest

from protocol.values.attempt import TaskState
from protocol.values.record import record_body
from protocol.values.task import task_body
from results.export.raw import RawResult
from results.report.drawing import Dots, Stroke, TextLabel, Tone, svg
from results.report.facts import Report
from results.report.page import Figures
from results.report.sustained_chart import sustained_chart, sustained_runs
from results.report.task_charts import TaskChart, task_chart
from results.row.row import make_row
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
        "At first 5.000 ms and 0.07500 J each.",
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

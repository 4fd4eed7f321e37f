"""The notice above rows of strangers."""

from __future__ import annotations

from results.report.document import make_page
from results.report.facts import Report
from results.report.page import Warn
from results.row.row import Row, RowStatus
from results.row.strangers import strangers_line
from tests.scheduler.report_parts import complete


def row(trust: str) -> Row:
    return Row(
        status=RowStatus.COMPLETE,
        job_id="c-1/1",
        file_name="m.onnx",
        file_size=1,
        compute_units="CPU (ONNX)",
        trust=trust,
    )


def test_rows_of_strangers_are_counted_and_others_are_not_mentioned() -> None:
    assert strangers_line([row("own"), row("pool lab"), row("listed"), row("")]) == ""
    assert strangers_line([row("own"), row("stranger")]).startswith("1 of 2 rows is from strangers")
    assert strangers_line([row("stranger")] * 3).startswith("All rows are from strangers")


def test_a_report_says_it_at_the_top_of_its_summary() -> None:
    result = complete(1)
    strange = result.model_copy(update={"row": result.row.model_copy(update={"trust": "stranger"})})
    page = make_page(Report([strange], campaign="c-ab23cd45", title="t", written=0.0, version="1"))
    first = page.sections[0].blocks[0]
    assert isinstance(first, Warn)
    assert first.line.startswith("All rows are from strangers")
    plain = make_page(Report([result], campaign="c-ab23cd45", title="t", written=0.0, version="1"))
    assert not any(isinstance(block, Warn) for block in plain.sections[0].blocks)

"""A simulation is marked wherever results, devices or campaigns are shown, and never counts as a measurement."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pyarrow.parquet as parquet
import pytest
from rich.console import Console, RenderableType

from protocol.formats.phase import Phase
from protocol.values.advert import Advert
from protocol.values.requirement import Requirement, parse_clause
from protocol.words import SIMULATED_UNIT, asks_for_simulated_unit
from results.analysis.matrix import Axis, front
from results.analysis.pairs import pair_up
from results.analysis.regression import RegressionCell, RegressionFinding, judge
from results.export.columnar import jsonl_lines, parquet_bytes
from results.export.csv import csv_lines
from results.export.raw import RawResult, ResultEntry, json_lines
from results.report.charts import bars, pareto, ratios, strips
from results.report.document import make_page
from results.report.drawing import Drawing, svg
from results.report.facts import Report
from results.report.html import html_report
from results.report.markdown import markdown_report
from results.row.simulated import prefer_measured
from results.row.verdicts import RowVerdict
from scheduler.core.explain import explain
from scheduler.output.campaigns import campaigns_table
from scheduler.output.comparisons import matrix_of, pair_info
from scheduler.output.fleet import ObservedDevice, device_info
from scheduler.output.peers import peer_remarks, peers_table
from scheduler.output.results_table import show_results
from scheduler.output.schemas import campaign_info, task_info
from scheduler.output.task_detail import task_detail
from scheduler.output.top import draw, top_json
from scheduler.output.watch import render
from scheduler.store.rows import CampaignSummary, ResultRow, TaskRow
from tests.scheduler.output.test_top import campaign, device, now, task
from tests.scheduler.report_parts import complete
from web.routes.server import Metrics

SPEC: Final = json.dumps({"campaign": "c", "models": [], "units": [SIMULATED_UNIT], "jobs": []})


def result(pretend: bool, number: int = 1, *, ms: float = 10.0, device: int = 0) -> RawResult:
    """A complete result, simulated with `pretend`."""
    unit = SIMULATED_UNIT if pretend else "CPU (ONNX)"
    return complete(number, unit=unit, ms=ms, device=device)


def both(pretend: bool) -> list[RawResult]:
    """Two results. With `pretend`, the second and faster one is a simulation."""
    return [result(False), result(pretend, 2, ms=5.0, device=1)]


def observed(pretend: bool) -> ObservedDevice:
    outcome = device("mini")
    advert = Advert.model_validate(outcome.advert.model_dump() | {"simulated": pretend or None})
    return replace(outcome, advert=advert)


def summary(pretend: bool) -> CampaignSummary:
    outcome = campaign(1)
    return replace(outcome, campaign=replace(outcome.campaign, spec=SPEC if pretend else "{}"))


def a_task(pretend: bool) -> TaskRow:
    return replace(task(device("mini")), unit=SIMULATED_UNIT if pretend else "CPU (ONNX)", phase=Phase.RUN)


def printed(what: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(what)
    return out.getvalue()


def entries(pretend: bool) -> list[ResultEntry]:
    return [one.entry() for one in both(pretend)]


def rows_shown(pretend: bool) -> str:
    out = io.StringIO()
    show_results([one.row for one in both(pretend)], Console(file=out, width=80))
    return out.getvalue()


def drawn(drawing: Drawing | None) -> str:
    assert drawing is not None
    return svg(drawing)


def report(pretend: bool) -> str:
    page = make_page(Report(both(pretend), campaign="c-ab23cd45", title="t", written=0.0, version="1"))
    return html_report(page)


def report_in_markdown(pretend: bool) -> str:
    page = make_page(Report(both(pretend), campaign="c-ab23cd45", title="t", written=0.0, version="1"))
    return markdown_report(page)


def in_parquet(pretend: bool) -> str:
    table = parquet.read_table(io.BytesIO(parquet_bytes("c", both(pretend))))
    return json.dumps(table.select(["Verdict", "Simulated"]).to_pydict()).replace('"Simulated"', "")


def compared(pretend: bool) -> str:
    first, second = entries(pretend)
    (pair,) = pair_up([first], [second])
    return pair.note + pair.comparison.why + str({"simulation": True} if pair_info(pair).b_simulated else "")


def detail(pretend: bool) -> str:
    raw = result(pretend)
    item = ResultRow(
        task=a_task(pretend),
        body=base64.b64decode(raw.task),
        record=base64.b64decode(raw.record),
        signature=bytes.fromhex(raw.signature),
        accepted=1.0,
    )
    judged = task_detail(item, raw.row, "c", (), ()).judgement
    return "" if judged is None else judged.model_dump_json()


def history(pretend: bool) -> str:
    _, (cell,) = judge([ResultEntry(result(pretend).row)], lambda row, key: None)
    return f"{cell.finding} {cell.why}"


def in_prometheus(pretend: bool) -> str:
    text = Metrics().text(
        {"tasks": {"running": 1}} | ({"simulated_tasks": {"running": 1}} if pretend else {}),
        followers=0,
        scheduling=True,
    )
    return text.decode()


OUTPUTS: Final[dict[str, Callable[[bool], str]]] = {
    "results on a terminal": rows_shown,
    "CSV": lambda pretend: ",".join("".join(csv_lines([one.row])).splitlines()[1] for one in both(pretend)),
    "JSON Lines": lambda pretend: str([json.loads(line)["Verdict"] for line in jsonl_lines(both(pretend))]),
    "Parquet": in_parquet,
    "raw results": lambda pretend: str(
        [one["row"]["Verdict"] for one in json.loads("".join(json_lines("c", both(pretend))))["results"]]
    ),
    "report in HTML": report,
    "report in Markdown": report_in_markdown,
    "bars": lambda pretend: drawn(bars([one.row for one in both(pretend)])),
    "distributions": lambda pretend: drawn(strips(entries(pretend))),
    "Pareto picture": lambda pretend: drawn(pareto([one.row for one in both(pretend)])),
    "compare": compared,
    "matrix": lambda pretend: matrix_of([one.row for one in both(pretend)]).model_dump_json(),
    "a task's page": detail,
    "a task in a list": lambda pretend: str(
        task_info(a_task(pretend)).model_dump(include={"simulated"})
    ).replace("'simulated': False", ""),
    "campaigns": lambda pretend: printed(campaigns_table([summary(pretend)])),
    "campaigns for programs": lambda pretend: (
        "simulated" if campaign_info(summary(pretend)).simulated else ""
    ),
    "watch": lambda pretend: printed(
        render(summary(pretend).campaign, [], 0.0, width=100, height=9, hint="")
    ),
    "top": lambda pretend: printed(draw(now([summary(False)], [observed(pretend)]), width=100, height=None)),
    "campaigns in top": lambda pretend: printed(draw(now([summary(pretend)], []), width=100, height=None)),
    "top for programs": lambda pretend: (
        "simulated" if top_json(now([], [observed(pretend)]), {})["peers"][0].simulated else ""
    ),
    "peers": lambda pretend: printed(peers_table([observed(pretend)], width=140)),
    "below peers": lambda pretend: str(peer_remarks([observed(pretend)])),
    "fleet": lambda pretend: "simulated" if device_info(observed(pretend)).simulated else "",
    "explain": lambda pretend: explain(
        Requirement(clauses=(parse_clause("ram >= 900 GiB"),)), [observed(pretend).advert]
    ),
    "history of an experiment": history,
    "Prometheus": in_prometheus,
}


@pytest.mark.parametrize("tell", OUTPUTS.values(), ids=list(OUTPUTS))
def test_it_is_marked_wherever_it_is_shown_and_nothing_else_is(tell: Callable[[bool], str]) -> None:
    assert "simulat" in tell(True).lower()
    assert "simulat" not in tell(False).lower()


def test_it_has_a_verdict_of_its_own_before_all_others_and_is_never_valid() -> None:
    row = result(True).row
    assert row.verdict == RowVerdict.SIMULATED
    assert row.simulated
    assert result(False).row.verdict == RowVerdict.VALID
    assert prefer_measured([row, result(False).row]) == [result(False).row]
    assert prefer_measured([row]) == [row]


def test_it_is_the_best_of_nothing_where_anything_was_measured() -> None:
    outcome = both(True)
    page = Report(outcome, campaign="c-ab23cd45", title="t", written=0.0, version="1")
    assert [row.job_id for row in page.of_model("net.onnx")] == [outcome[0].row.job_id]
    (pair,) = (pair for _, pair in page.within)
    assert pair.a is not None
    assert not pair.a.simulated
    assert pair.comparison.ratio is None
    markdown = report_in_markdown(True)
    assert "lowest median is 5" not in markdown
    assert "0 of 1" not in markdown
    cells = matrix_of([one.row for one in outcome]).cells
    assert front(cells, Axis.MEMORY) == (outcome[0].row.job_id,)
    alone = matrix_of([outcome[1].row]).cells
    assert front(alone, Axis.MEMORY) == (outcome[1].row.job_id,)


def test_it_is_neither_a_good_result_nor_an_alarm_even_when_accepted_as_valid_before() -> None:
    finding, (cell,) = judge([ResultEntry(result(True).row)], lambda row, key: None)
    assert (finding, cell.finding, cell.good) == (
        RegressionFinding.INCOMPLETE,
        RegressionFinding.SIMULATED,
        False,
    )
    before = RegressionCell(
        key="k", model="m", unit=SIMULATED_UNIT, device="d", status="Complete", verdict="valid", finding=RegressionFinding.FIRST,
        simulated=True,
    )  # fmt: skip
    assert not before.good
    assert before.model_copy(update={"simulated": False}).good


def test_ratios_are_drawn_of_no_pair_with_one_side_simulated() -> None:
    first, second = entries(True)
    (pair,) = pair_up([first], [second])
    assert ratios([("p", pair)]) is None


@pytest.mark.parametrize(
    ("spec", "is_one"),
    [
        (SPEC, True),
        (json.dumps({"units": ["CPU (ONNX)", SIMULATED_UNIT]}), True),
        (json.dumps({"units": [], "jobs": [{"unit": SIMULATED_UNIT}]}), True),
        (json.dumps({"units": ["CPU (ONNX)"], "campaign": SIMULATED_UNIT}), False),
        ("{}", False),
        (SIMULATED_UNIT, False),
    ],
    ids=["the unit", "one of two", "a job", "a name alone", "nothing", "no JSON"],
)
def test_a_campaign_is_one_by_the_units_it_asks_for(spec: str, is_one: bool) -> None:
    assert asks_for_simulated_unit(spec) == is_one

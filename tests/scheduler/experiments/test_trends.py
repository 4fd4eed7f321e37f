"""The analysis of a history: change points, and the combined result of the runs since the last one."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from results.analysis.changes import MOST
from results.analysis.regression import RegressionCell, RegressionFinding
from scheduler.cli.experiments import trend_lines
from scheduler.experiments.trends import trend
from scheduler.experiments.view import CellHistory, history_view
from scheduler.store.rows import RunRow

DAY_S = 86_400.0


def nights(*stretches: tuple[int, float]) -> list[tuple[str, float, RegressionCell]]:
    """One run a night, with the latest first."""
    rng = random.Random(7)
    levels = [level for count, level in stretches for _ in range(count)]
    made = []
    for night, level in enumerate(levels):
        middle = level * math.exp(rng.gauss(0, 0.01))
        cell = RegressionCell(
            key="k",
            model="m.onnx",
            unit="CPU (ONNX)",
            device="mini-7",
            status="Complete",
            verdict="valid",
            median_ms=middle,
            low_ms=0.99 * middle,
            high_ms=1.01 * middle,
            finding=RegressionFinding.SAME,
        )
        made.append((f"c-{night}", night * DAY_S, cell))
    return made[::-1]


def test_a_history_says_when_it_changed_by_how_much_and_what_it_is_since() -> None:
    (shift,), pooled = trend(nights((12, 10.0), (10, 11.0)))
    assert shift.campaign == "c-12"
    assert shift.begun == "1970-01-13T00:00:00+00:00"
    assert shift.ratio == pytest.approx(1.1, abs=0.01)
    assert pooled is not None
    assert pooled.low_ms is not None
    assert pooled.high_ms is not None
    assert (pooled.sittings, pooled.span_s) == (10, 9 * DAY_S)
    assert 10.8 < pooled.low_ms < 11.0 < pooled.high_ms < 11.2
    cell = CellHistory(
        model="m", unit="u", device="d", device_id="d", points=(), changes=(shift,), pooled=pooled
    )
    changed, since = trend_lines(cell)
    assert changed.startswith("changed by +9.5% with the run of ")
    assert changed.endswith("(c-12): 10 ms → 11 ms")
    assert since.startswith("since then: ")
    assert "over 10 sittings in 9 d" in since


def test_runs_that_measured_nothing_are_no_part_of_it() -> None:
    runs = nights((12, 10.0))
    failed = runs[3][2].model_copy(update={"status": "Failed", "median_ms": None})
    runs[3] = (runs[3][0], runs[3][1], failed)
    busy = runs[4][2].model_copy(update={"cleared": True})
    runs[4] = (runs[4][0], runs[4][1], busy)
    shifts, pooled = trend(runs)
    assert shifts == ()
    assert pooled is not None
    assert pooled.sittings == 10
    assert trend(runs[:1]) == ((), None)
    assert trend([runs[3]] * 10) == ((), None)


def test_every_page_of_a_history_says_the_same_of_its_latest_runs() -> None:
    runs = [
        RunRow(campaign, "nightly", 1, True, begun, finding="fine", cells=(cell.model_dump(mode="json"),))
        for campaign, begun, cell in nights((30, 20.0), (100, 10.0))
    ]
    kept = SimpleNamespace(get=lambda name: name, runs=lambda name: runs)
    store: Any = SimpleNamespace(experiments=kept)
    (latest,), (middle,), (oldest,) = (
        history_view(store, "nightly", limit=10, after=after).cells for after in (None, "c-35", "c-10")
    )
    assert [point.campaign for point in oldest.points] == [f"c-{n}" for n in range(9, -1, -1)]
    assert latest.pooled is not None
    assert latest.pooled.sittings == MOST == 100
    assert latest.changes == ()
    assert (
        (latest.pooled, latest.changes) == (middle.pooled, middle.changes) == (oldest.pooled, oldest.changes)
    )


@pytest.mark.parametrize(
    "change",
    [{"sha256": "b" * 64}, {"finding": RegressionFinding.SLOWER}, {"finding": RegressionFinding.FASTER}],
    ids=["other bytes", "slower", "faster"],
)
def test_what_is_known_to_be_another_is_not_pooled_with_what_was_before(change: dict[str, Any]) -> None:
    """Even where there are too few runs for a change point."""
    runs = [
        (campaign, begun, cell.model_copy(update={"sha256": "a" * 64}))
        for campaign, begun, cell in nights((2, 0.147), (2, 2.377))
    ]
    changed = change.get("sha256", "a" * 64)
    runs[0] = (*runs[0][:2], runs[0][2].model_copy(update={"sha256": changed}))
    runs[1] = (*runs[1][:2], runs[1][2].model_copy(update=change))
    shifts, pooled = trend(runs)
    assert shifts == ()
    assert pooled is not None
    assert (pooled.sittings, pooled.median_ms) == (2, pytest.approx(2.377, rel=0.02))

"""How a task's time was spent: each second is in one span, and the device's own stages lie within the time at the device."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from protocol.values.record import StageTime
from scheduler.output.profile import ON_ITS_WAY, TaskProfile, profile_table, task_profile
from scheduler.store.rows import EventRow

TRIED_TWICE = (
    (2.0, "task.committing", "mini"),
    (2.1, "task.queued", "mini"),
    (5.0, "task.granted", "mini"),
    (7.0, "task.lost", "mini"),
    (9.0, "task.committing", "maxi"),
    (9.2, "task.granted", "maxi"),
    (9.5, "task.yields", "maxi"),
    (14.2, "task.succeeded", "maxi"),
    (14.3, "stop.confirmed", "mini"),
)
STAGES = (StageTime(stage="fetch", seconds=1.0), StageTime(stage="run", seconds=3.5))


def profiled(count: int = len(TRIED_TWICE), stages: tuple[StageTime, ...] = STAGES) -> TaskProfile:
    events = [
        EventRow("c-1", n, 100.0 + at, name, "c-1/1", {"device": device})
        for n, (at, name, device) in enumerate(TRIED_TWICE[:count], 1)
    ]
    return task_profile("c-1/1", 100.0, events, stages, 120.0)


def test_each_second_of_a_task_that_was_tried_twice_is_in_one_span() -> None:
    profile = profiled()
    assert (profile.total_s, profile.ended) == (pytest.approx(14.2), True)
    assert [(span.what, round(span.seconds, 3), span.inside) for span in profile.spans] == [
        ("waits for a device", 2.0, False),
        ("asks mini", 0.1, False),
        ("queued at mini", 2.9, False),
        ("at mini", 2.0, False),
        ("waits for the next attempt", 2.0, False),
        ("asks maxi", 0.2, False),
        ("at maxi", 5.0, False),
        ("fetch", 1.0, True),
        ("run", 3.5, True),
        (ON_ITS_WAY, 0.5, True),
    ]
    assert sum(span.seconds for span in profile.spans if not span.inside) == pytest.approx(profile.total_s)


@pytest.mark.parametrize(
    ("count", "last"), [(0, "waits for a device"), (2, "queued at mini"), (6, "at maxi")]
)
def test_a_task_that_goes_on_is_profiled_until_now(count: int, last: str) -> None:
    profile = profiled(count, ())
    assert (profile.total_s, profile.ended) == (20.0, False)
    assert profile.spans[-1].what == last
    assert sum(span.seconds for span in profile.spans) == pytest.approx(20.0)


def test_a_failure_without_a_record_has_no_stages_and_clocks_that_jumped_give_no_negative_span() -> None:
    events = [
        EventRow("c-1", 1, 101.0, "task.committing", "c-1/1", {}),
        EventRow("c-1", 2, 99.0, "task.granted", "c-1/1", {"device": "mini"}),
        EventRow("c-1", 3, 103.0, "task.failed", "c-1/1", {}),
    ]
    profile = task_profile("c-1/1", 100.0, events, (), 120.0)
    assert [span.what for span in profile.spans] == ["waits for a device", "at mini"]
    assert all(span.seconds > 0 for span in profile.spans)


def test_the_table_indents_stages_and_shows_shares() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(profile_table(profiled()))
    text = out.getvalue()
    assert "  fetch" in text
    assert "25 %" in text  # run, 3.5 of 14.2 s
    assert "100 ms" in text

"""Where a task's time went: in the scheduler by its events, on the device by the stages in the signed record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.table import Column, Table

from protocol.values.record import StageTime
from results.row.form import JsonModel
from scheduler.output.terminal import table
from scheduler.store.rows import EventRow
from swarm.base.text import safe_text
from swarm.base.units import show_duration

_AFTER: Final = {
    "task.committing": "asks {device}",
    "task.queued": "queued at {device}",
    "task.granted": "at {device}",
    "task.refused": "waits for a device",
    "task.ticket-ended": "at {device}",
    "task.retried": "waits for the next attempt",
    "task.lost": "waits for the next attempt",
    "task.discounted": "waits for the next attempt",
    "task.preempted": "waits for the next attempt",
}
"""The part of a task's life that follows each event, until the next of these events."""
_ENDS: Final = ("task.succeeded", "task.failed", "task.cancelled")
ON_ITS_WAY: Final = "result sent, checked and stored"


class TimeSpan(JsonModel):
    """A part of a task's life."""

    what: str
    seconds: float
    inside: bool = False
    """Whether this span is part of the last span before it that is not inside another."""


class TaskProfile(JsonModel):
    """Where a task's time went."""

    task: str
    total_s: float
    """Seconds from the creation of its campaign to its end, or until now."""
    ended: bool
    spans: tuple[TimeSpan, ...]
    """Spans in order. Those that are not inside another make up the total."""


def task_profile(
    task: str, created: float, events: Sequence[EventRow], stages: Sequence[StageTime], now: float
) -> TaskProfile:
    """`created`: of its campaign; all times are wall seconds. `events`: the task's own, in order. `stages`: from the record that decided
    it; none while it runs.
    """
    last = next((event for event in events if event.name in _ENDS), None)
    until = now if last is None else last.at
    spans: list[TimeSpan] = []
    what, since = "waits for a device", created
    for event in events:
        then = "" if event is last else _after(event)
        if not then and event is not last:
            continue
        spans += _span(what, event.at - since, stages if event is last else ())
        what, since = then, event.at
        if event is last:
            break
    if last is None:
        spans += _span(what, until - since, ())
    return TaskProfile(
        task=task, total_s=max(0.0, until - created), ended=last is not None, spans=tuple(spans)
    )


def _after(event: EventRow) -> str:
    text = _AFTER.get(event.name, "")
    return text.format(device=safe_text(str(event.fields.get("device") or "a device"), 40))


def _span(what: str, seconds: float, stages: Sequence[StageTime]) -> Iterator[TimeSpan]:
    """Leave out parts without duration. The rest of a span with stages is the transfer of the result."""
    if seconds <= 0.0:
        return
    yield TimeSpan(what=what, seconds=seconds)
    if not (stages and what.startswith("at ")):
        return
    for stage in stages:
        yield TimeSpan(what=safe_text(stage.stage, 40), seconds=stage.seconds, inside=True)
    rest = seconds - sum(stage.seconds for stage in stages)
    if rest > 0.0:
        yield TimeSpan(what=ON_ITS_WAY, seconds=rest, inside=True)


def profile_table(profile: TaskProfile) -> Table:
    """A line for each span, with its share of the whole."""
    total = profile.total_s or 1.0
    return table(
        _lines(profile.spans),
        (Column("where the time went"), lambda span: ("  " if span.inside else "") + span.what),
        (Column("time", justify="right"), lambda span: _time(span.seconds)),
        (Column("share", justify="right"), lambda span: f"{100 * span.seconds / total:.0f} %"),
    )


def _lines(spans: Iterable[TimeSpan]) -> list[TimeSpan]:
    return [span for span in spans if span.seconds >= 0.0005 or not span.inside]


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1000:.0f} ms"
        if seconds < 1
        else f"{seconds:.2f} s"
        if seconds < 60
        else show_duration(round(seconds))
    )

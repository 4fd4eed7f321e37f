"""A campaign's events for people: one line each, with the local time, the task and what happened. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from scheduler.store.rows import EventRow
from swarm.base.text import count, safe_text

TEMPLATES: Final[dict[str, str]] = {
    "campaign.created": "created: {name}, {of_tasks}",
    "campaign.planned": "planned: {of_tasks}",
    "campaign.taken-over": "taken over from another machine: {of_tasks}, {found} of them found at devices",
    "campaign.adopted": "a scheduler adopts it (epoch {epoch})",
    "campaign.ended": "ended: {outcome}",
    "cancel.requested": "cancel requested; open tasks: {tasks}",
    "task.committing": "asks {device} (attempt {attempt})",
    "task.refused": "{device} refused it",
    "task.queued": "queued at {device} (attempt {attempt})",
    "task.granted": "granted by {device} (attempt {attempt})",
    "task.ticket-ended": "no longer queued at {device} (attempt {attempt})",
    "task.attempt-ended": "attempt {attempt} at {device} is over, another attempt goes on",
    "task.late": "takes longer than expected at {device} (attempt {attempt}), so another device is asked too",
    "task.yields": "asked to give way at {device} to priority {priority}",
    "task.preempted": "preempted by a higher priority at {device}",
    "task.discounted": "failed at {device}, a stranger; a trusted device tries it: {detail}",
    "task.lost": "lost at {device} (attempt {attempt})",
    "task.retried": "failed at {device} (attempt {attempt}), to be retried",
    "task.failed": "failed",
    "task.succeeded": "done by {device} (attempt {attempt})",
    "task.cancelled": "cancelled",
    "answers.scored": "its answers score {scores}",
    "answers.unscored": "its answers have no scores",
    "stop.unconfirmed": "asked to stop, not confirmed by {device} (attempt {attempt}); asked again when it is back",
    "stop.confirmed": "{device} confirms that it stopped (attempt {attempt})",
    "stop.lapsed": "never confirmed by {device}, but its lease is over (attempt {attempt})",
    "worker.set-aside": "{device} is set aside for {seconds} s",
    "model.set-aside": "{model} on {unit} is set aside at {device} for {seconds} s",
    "worker.refused": "{device} refuses",
    "worker.back": "{device} is back",
}
"""The text for each kind of event; a missing field reads `-`."""
_WHY: Final = ("reason", "why", "detail")
"""Fields shown at the end of the line."""
_COUNTS: Final = ("succeeded", "failed", "cancelled")


def event_line(event: EventRow) -> str:
    """`2026-11-21 11:03:12.345  12  task 3  asks mini-7 (attempt 1)`"""
    at = datetime.fromtimestamp(event.at, UTC).astimezone()
    when = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"
    who = f"task {event.task.rpartition('/')[2]}" if event.task else ""
    return f"{when}  {event.seq:>4}  {safe_text(who, 20):<9}  {event_words(event)}"


def event_words(event: EventRow) -> str:
    """What happened, on one line; for an unknown event its name and fields."""
    fields = event.fields
    template = TEMPLATES.get(event.name)
    if template is None:
        values = ", ".join(f"{key} {value}" for key, value in fields.items())
        return safe_text(f"{event.name}: {values}" if values else event.name, 400)
    tasks = fields.get("tasks", "-")
    of_tasks = count(tasks, "task") if isinstance(tasks, int) else f"{tasks} tasks"
    if event.name == "campaign.created" and tasks == 0:
        of_tasks = "its tasks follow"  # the tasks are planned later
    words = template.format_map(_Fields({**fields, "of_tasks": of_tasks}))
    counts = [f"{fields[state]} {state}" for state in _COUNTS if fields.get(state)]
    why = [str(fields[key]).splitlines()[0] for key in _WHY if fields.get(key) and fields[key] != words]
    return safe_text(": ".join([words, *([", ".join(counts)] if counts else []), *why]), 400)


class _Fields(dict[str, Any]):
    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__({key: "-" if value in (None, "") else value for key, value in fields.items()})

    def __missing__(self, key: str) -> str:
        return "-"

"""What an owner reads of devices that were told something: a line for each, a table of what they have to do, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from node.cli.remote import HERE, OwnerReply
from protocol.messages.work import RunningJob
from protocol.words import WorkerState
from swarm.base.text import escape_text
from swarm.net.paths import path_json, path_words


def told_line(told: OwnerReply) -> str:
    """`lab-1 …nF2cDYa1: paused by its owner; 1 run goes on, 3 tickets wait`."""
    who = _who(told)
    if told.standing is None:
        return f"{who}: {escape_text(told.error.what) if told.error else 'said nothing'}"
    here = told.standing
    state, why = str(here.state), f" ({escape_text(here.why)})" if here.why else ""
    if (
        here.state is WorkerState.DRAINING and here.why
    ):  # paused, quiet hours, drained: the reason says it all
        state, why = escape_text(here.why), ""
    runs = f"{here.running} run{' goes' if here.running == 1 else 's go'} on"
    waits = f"{here.queue} ticket{' waits' if here.queue == 1 else 's wait'}"
    work = "; ".join([", ".join([runs, waits])] if here.running or here.queue else [])
    told_so = [
        work,
        escape_text(here.reach or ""),
        path_words(told.path, told.addresses) if told.name != HERE else "",
    ]
    return "; ".join([f"{who}: {state}{why}", *filter(None, told_so)])


def _who(told: OwnerReply) -> str:
    """Anybody can give a device any name: the end of its id, which the channel proved, stands beside it."""
    tail = f" …{told.peer[-8:]}" if told.peer and told.name != HERE else ""
    return f"{escape_text(told.name)}{tail}"


def still_held(told: OwnerReply) -> tuple[str, ...]:
    """What is to be said to an owner who resumed a device that a rule of theirs still holds back; empty: none does."""
    here = told.standing
    if here is None or here.state is not WorkerState.DRAINING or not here.why:
        return ()
    return (
        f"  it is not paused, but a rule still holds: {escape_text(here.why)}",
        "  it serves again when that ends; to have it serve now, start it again without the rule (--quiet, --on-battery)",
    )


def jobs_table(jobs: Sequence[RunningJob], me: str) -> Table:
    """A line for each run and ticket, runs first. `me`: the peer id that is shown as `you`."""
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    for column in ("task", "model", "for", "team", "priority", "state", "since"):
        table.add_column(
            column,
            no_wrap=column not in ("model", "team"),
            overflow="fold",
            justify="right" if column in ("priority", "since") else "left",
        )
    for job in jobs:
        state = escape_text(job.state)
        table.add_row(
            escape_text(job.task),
            escape_text(job.model),
            "you" if job.principal == me else f"…{job.principal[-8:]}",
            escape_text(job.team),
            str(job.priority),
            f"{state}, {job.phase}" if job.phase is not None and state == "running" else state,
            show_since(job.since_s),
        )
    return table


def show_since(seconds: float) -> str:
    """`12 s`, `3 min`, `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6_000 else f"{seconds / 3600:.1f} h"


def told_json(told: OwnerReply) -> dict[str, Any]:
    """A device's answer for programs."""
    document: dict[str, Any] = {"device": told.name, "peer": told.peer or None}
    if told.standing is None:
        return {**document, "error": told.error.what if told.error else None}
    path = path_json(told.path) if told.name != HERE else None
    return {**document, **told.standing.model_dump(mode="json", exclude={"type"}), "path": path}

"""What an owner reads of a worker's reply: one line, a table of its jobs, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from node.cli.remote import HERE, OwnerReply
from protocol.messages.work import RunningJob
from protocol.words import WorkerState
from swarm.base.text import escape_text
from swarm.net.paths import path_json, path_words


def status_line(reply: OwnerReply) -> str:
    """`lab-1 …nF2cDYa1: paused by its owner; 1 running, 3 queued`."""
    # Anybody can give a device any name, so the end of its id, which the channel proved, stands beside it.
    tail = f" …{reply.peer[-8:]}" if reply.peer and reply.name != HERE else ""
    who = f"{escape_text(reply.name)}{tail}"
    status = reply.status
    if status is None:
        return f"{who}: {escape_text(reply.error.what) if reply.error else 'no reply'}"
    state = f"{status.state} ({escape_text(status.why)})" if status.why else str(status.state)
    if (
        status.state is WorkerState.DRAINING and status.why
    ):  # paused, quiet hours, drained: the reason says it all
        state = escape_text(status.why)
    work = f"{status.running} running, {status.queue} queued" if status.running or status.queue else ""
    path = path_words(reply.path, reply.addresses) if reply.name != HERE else ""
    return "; ".join([f"{who}: {state}", *filter(None, (work, escape_text(status.reach or ""), path))])


def still_held(reply: OwnerReply) -> tuple[str, ...]:
    """What to tell an owner whose `resume` did not end a rule that still holds the worker back; empty: none does."""
    status = reply.status
    if status is None or status.state is not WorkerState.DRAINING or not status.why:
        return ()
    return (
        f"  it is not paused, but a rule still applies: {escape_text(status.why)}",
        "  it serves again when the rule ends; to serve now, restart it without the rule (--quiet, --on-battery)",
    )


def jobs_table(jobs: Sequence[RunningJob], me: str) -> Table:
    """A row for each job, running ones first. `me`: the peer id that is shown as `you`."""
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


def reply_json(reply: OwnerReply) -> dict[str, Any]:
    document: dict[str, Any] = {"device": reply.name, "peer": reply.peer or None}
    if reply.status is None:
        return {**document, "error": reply.error.what if reply.error else None}
    path = path_json(reply.path) if reply.name != HERE else None
    return {**document, **reply.status.model_dump(mode="json"), "path": path}

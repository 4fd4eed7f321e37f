"""What a device's owner reads while others use it: a line when a run begins, one when it ends."""

from __future__ import annotations

from protocol.values.record import Record
from protocol.values.task import Task
from protocol.words import RunOutcome
from swarm.base.text import escape_text


def began(task: Task) -> str:
    """`c-1a2b/3 m.onnx on CPU (ONNX) for …nF2cDYa1: running`."""
    what = f"{task.task} {task.model.name} on {task.unit} for …{task.scheduler[-8:]}"
    return f"{escape_text(what)}: running"


def ended(record: Record, seconds: float) -> str:
    """`c-1a2b/3: done in 3.2 s`, or how else it ended and why. `seconds` since it began."""
    if record.outcome is RunOutcome.COMPLETE:
        return f"{escape_text(record.task)}: done in {seconds:.1f} s"
    why = f"{record.outcome}: {record.reason}"
    detail = (
        ""
        if record.detail in ("", f"stopped: {record.reason}", str(record.reason))
        else f" ({record.detail})"
    )
    return escape_text(f"{record.task}: {why}{detail}")

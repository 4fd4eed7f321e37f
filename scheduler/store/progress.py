"""The state of a task in words, the same in every view.

queued 3rd, starts in ~40 s · fetch 43 % (12.1 of 28.0 MB) · load 2/5 · warm-up 12 · run 120/200 (median 12.5 ms) · check · done
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from protocol.formats.phase import BUSY, Phase
from protocol.values.attempt import TaskState
from protocol.values.lease import MAX_PREEMPTIONS
from protocol.words import Reason
from results.row.form import instant
from scheduler.core.words import COPIED, ELSEWHERE
from scheduler.store.rows import FINAL_TASK_STATES, AttemptRow, AttemptState, TaskRow
from swarm.base.text import ordinal, safe_text
from swarm.base.units import show_duration, show_estimate, show_ms

ADOPTED: Final = ELSEWHERE
"""For a task that ended here because another scheduler adopted it."""

UNTIL: Final = ", until "
"""Separates why a task waits from the instant until which it waits."""
WAITS_FOR_SITTING: Final = re.compile(r"waits for its [0-9]+[a-z]{2} sitting")
"""The beginning of the note of a task whose sitting may not begin yet; see `scheduler.core.sittings`."""

STATE_WORDS: Final = {TaskState.COMMITTING: "asking", TaskState.LEASED: "leased"}
"""Words for states that would otherwise show the protocol's name."""


def progress_text(task: TaskRow, outcome: str = "", *, wall: Callable[[], float] = time.time) -> str:
    """One phrase, safe to display. `outcome`: the measured result, in words."""
    match task.state:
        case TaskState.SUCCEEDED:
            return "; ".join(filter(None, [outcome or "done", safe_text(task.note, 200)]))
        case TaskState.FAILED:
            why = task.detail.splitlines() or [str(task.reason)]
            return safe_text(f"failed: {why[0]}", 300)
        case TaskState.CANCELLED:
            if task.reason is Reason.ADOPTED:
                return COPIED if task.detail == COPIED else ADOPTED
            return safe_text(f"cancelled: {task.detail}", 300) if task.detail else "cancelled"
        case TaskState.PENDING:
            note = waiting_text(task.note, wall())
            return safe_text(note, 200) or preemption_text(task) or "looking for a device"
        case TaskState.COMMITTING:
            return STATE_WORDS[TaskState.COMMITTING]
        case TaskState.QUEUED:
            return queued_text(task)
        case _:
            return _running(task)


def waiting_text(note: str, wall: float) -> str:
    """`waits for its 2nd sitting, in 43 m`, from a note with an instant; other notes unchanged."""
    words, _, when = note.rpartition(UNTIL)
    try:
        left_s = instant(when) - wall
    except ValueError:
        return note
    return f"{words}, in {show_duration(_rounded(left_s))}" if left_s >= 1 else f"{words}, now"


def _rounded(seconds: float) -> float:
    """Rounded to the minute; below two minutes, to the second."""
    return float(round(seconds)) if seconds < 120 else 60.0 * round(seconds / 60)


def unconfirmed_text(device: str, asked: float, until: float) -> str:
    """`asked to stop at 19:21:08 UTC, not confirmed by mini-7; its run ends by 19:31:33 UTC at the latest`, from wall seconds."""
    first, last = (f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC" for at in (asked, until))
    return f"asked to stop at {first}, not confirmed by {device or 'its device'}; its run ends by {last} at the latest"


def queued_text(task: TaskRow) -> str:
    """`queued 3rd, starts in ~40 s`, and the note."""
    text = "queued" if task.position is None else f"queued {ordinal(task.position)}"
    if task.start_s is not None:
        text += ", starts soon" if task.start_s < 1 else f", starts in {show_estimate(task.start_s)}"
    elif task.position is not None:
        text += ", start not known yet"
    return f"{text}; {safe_text(task.note, 200)}" if task.note else text


def preemption_text(task: TaskRow) -> str:
    """`preempted, 1 of 2: mini-7 needed it for a task of priority 80`; empty if the task's last attempt ended otherwise."""
    if task.reason is not Reason.PREEMPTED or not task.preempted:
        return ""
    why = safe_text((task.detail.splitlines() or [""])[0], 120)
    return f"preempted, {task.preempted} of {MAX_PREEMPTIONS}" + (f": {why}" if why else "")


def nobody_line(campaign: str) -> str:
    """For an unfinished campaign while no scheduler process runs."""
    return f"No scheduler runs {campaign} now: sark-node watch {campaign}"


def _running(task: TaskRow) -> str:
    text = _phase(task)
    shown = task.note and task.phase is not Phase.QUEUED
    return f"{safe_text(task.note, 200)}; {text}" if shown else text


def _phase(task: TaskRow) -> str:
    match task.phase:
        case None:
            return "starting"
        case Phase.FETCH if task.total:
            share = 100 * task.done / task.total
            return f"fetch {share:.0f} % ({task.done / 1e6:.1f} of {task.total / 1e6:.1f} MB)"
        case Phase.RUN if task.total:
            median = f" (median {show_ms(task.median_ms)})" if task.median_ms is not None else ""
            return f"run {task.done}/{task.total}{median}"
        case Phase.PREPARE if task.total:
            return f"{BUSY}, {task.done} of at most {task.total} s"
        case Phase.LOAD if task.total and task.total > 1:
            return f"load {task.done}/{task.total}"
        case Phase.WARM_UP if task.done:
            return f"warm-up {task.done}"
        case Phase.QUEUED:
            return safe_text(task.note, 200) or "waiting for the device"
        case phase:
            return str(phase)


def fraction(task: TaskRow) -> float | None:
    """The completed share of the current phase, 0 to 1; None: unknown."""
    if task.state in FINAL_TASK_STATES:
        return 1.0
    if task.state in (TaskState.LEASED, TaskState.RUNNING) and task.total:
        return min(1.0, task.done / task.total)
    return None


_PEER: Final = re.compile(r"12D3Koo[1-9A-HJ-NP-Za-km-z]{45}")
_ADDRESS: Final = re.compile(r"/ip[46]/([^/\s]+)/tcp/[0-9]+(?:/p2p/\w+)?")
_ATTEMPT_WORDS: Final[dict[AttemptState, str]] = {
    AttemptState.INTENDED: "was asked",
    AttemptState.QUEUED: "has it in its queue",
    AttemptState.GRANTED: "granted a lease",
    AttemptState.REFUSED: "refused it",
    AttemptState.LOST: "lost it",
    AttemptState.FAILED: "failed",
    AttemptState.SUCCEEDED: "succeeded",
    AttemptState.CANCELLED: "was cancelled",
    AttemptState.PREEMPTED: "was preempted",
    AttemptState.UNCONFIRMED: "may still run it",
}


def attempt_words(attempt: AttemptRow) -> str:
    """`mini-7 refused it: busy`"""
    detail = (attempt.detail.splitlines() or [""])[0]
    device, reason = safe_text(attempt.device), str(attempt.reason or "")
    if device in ("", str(Reason.UNKNOWN)):
        device = f"…{attempt.worker[-8:]}"
    why = clipped(safe_text(detail, 300))
    for word in (f"{reason}: ", f"{device}: ", f"{reason}: "):
        why = why.removeprefix(word)
    if reason not in ("", why, attempt.state):  # "lost it" already says that it was lost
        why = ": ".join(filter(None, [reason, why]))
    return f"{device} {_ATTEMPT_WORDS[attempt.state]}" + (f": {why}" if why else "")


def clipped(text: str) -> str:
    """`no way to 12D3Koo…R5DXUdsR`: shortens peer ids and addresses."""
    return _PEER.sub(lambda match: f"…{match[0][-8:]}", _ADDRESS.sub(r"\1", text))

"""What always holds in the book, whatever workers say: checked by the tests after every step."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import LocalProtocolError
from protocol.values.attempt import TaskState
from scheduler.core.state import HAS_PLACE, TaskEntry
from scheduler.core.transitions import Transitions


def check(book: Transitions) -> None:
    """Raises `LocalProtocolError` with the first invariant that does not hold."""
    for view in book.views.values():
        for task in view.held:
            entry = book.entries[task]
            if not entry.live or entry.at(view.peer) is None:
                raise LocalProtocolError(f"{view.peer} is said to hold {task}, which is elsewhere")
        if (view.peer in book.free) != (view.quoted and view.idle()):
            raise LocalProtocolError(f"{view.peer} is taken for free, or for busy, and is not")
        if (view.peer in book.strangers) == view.quoted:
            raise LocalProtocolError(
                f"{view.peer} is a stranger that has said how it stands, or none that has not"
            )
    holders: dict[str, list[str]] = {}
    for view in book.views.values():
        for task in view.held:
            holders.setdefault(task, []).append(view.peer)
    for entry in book.entries.values():
        _task(book, entry, holders.get(entry.id, []))
    for name, need in book.needs.items():
        states = [book.entries[task].state for task in need.tasks]
        if need.placed != sum(state in HAS_PLACE for state in states):
            raise LocalProtocolError(f"{name} counts {need.placed} places")
    for course in book.courses.values():
        open_ = sum(1 for task in course.tasks if not book.entries[task].over)
        if open_ != course.open or (course.done and open_):
            raise LocalProtocolError(f"{course.terms.campaign} counts {course.open} open of {open_}")
    for cell in book.cells.values():
        _replicas(book, cell)


def _task(book: Transitions, entry: TaskEntry, holders: list[str]) -> None:
    need = book.needs[entry.need]
    tickets = entry.tickets()
    if sorted(holders) != sorted(ticket.worker for ticket in tickets) or len(set(holders)) != len(holders):
        raise LocalProtocolError(f"{entry.id} is {entry.state} and held by {holders}")
    if entry.spare is not None and (entry.state is not TaskState.QUEUED or entry.stopping):
        raise LocalProtocolError(f"{entry.id} is {entry.state} and has a second ticket")
    if len({ticket.attempt for ticket in tickets}) != len(tickets) or entry.last < max(
        (ticket.attempt for ticket in tickets), default=0
    ):
        raise LocalProtocolError(f"{entry.id} has two attempts of one number")
    lists: tuple[tuple[Mapping[str, None], TaskState], ...] = (
        (need.lacking if entry.lacks_model else need.pending, TaskState.PENDING),
        (need.queued, TaskState.QUEUED),
        (book.queued, TaskState.QUEUED),
    )
    for names, state in lists:
        if (entry.id in names) != (entry.state is state):
            raise LocalProtocolError(f"{entry.id} is {entry.state} and misplaced among the {state}")
    if any((ticket.fence is None) != (ticket.lease is None) for ticket in tickets):
        raise LocalProtocolError(f"{entry.id} has half a lease")
    if entry.tries > book.courses[entry.task.campaign].terms.attempts:
        raise LocalProtocolError(f"{entry.id} was tried {entry.tries} times")


def _replicas(book: Transitions, cell: list[str]) -> None:
    entries = [book.entries[task] for task in cell]
    live = [
        entry for entry in entries if not entry.restored and entry.owed_until is None
    ]  # others' runs may be long over
    at = [book.view(ticket.worker).place() for entry in live for ticket in entry.tickets()]
    if len(set(at)) != len(at):
        raise LocalProtocolError(f"replicas of {cell[0]} meet on one device")

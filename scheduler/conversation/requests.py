"""A scheduler's requests to a worker, and the checks of the answers.

All fail with `Unreachable`, after which the fate of the request is unknown, or with `RemoteProtocolError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from protocol.errors import RemoteProtocolError, Unreachable
from protocol.messages.work import (
    MAX_BATCH,
    AdoptReply,
    AdoptRequest,
    Cancel,
    Denied,
    HeldLease,
    LiveLease,
    Probe,
    Quote,
    Release,
    Shape,
    Stopped,
)
from protocol.values.task import Task
from protocol.wire.base import MAX_ELEMENTS, MAX_FRAME, Message
from protocol.wire.codec import pack
from protocol.words import Reason
from scheduler.conversation.effects import CALL_S, Call, LinkHandle, Reintroduce, Reset, Stored
from scheduler.core.commands import CancelOn, ReleaseOn

MAX_SHAPES: Final = 16
MAX_PAGES: Final = 64
"""Most pages of leases that a worker may hold of one campaign."""
PROBE_S: Final = 3.0
STOP_S: Final = 10.0
"""Seconds to wait for the answer to a cancel: the worker answers once the processes are dead."""


def shapes_of(tasks: Iterable[Task], priority: Callable[[Task], int]) -> tuple[Shape, ...]:
    """The kinds of tasks about which a probe asks: at most `MAX_SHAPES`, as many as fit into half a frame, and at least one.

    The worker judges each task again when it is asked to take it.
    """
    counts: dict[Shape, int] = {}
    space, elements = MAX_FRAME // 2, MAX_ELEMENTS // 2
    for task in tasks:
        shape = Shape(
            unit=task.unit,
            requirement=task.requirement,
            model=task.model.sha256,
            size=task.model.size,
            priority=priority(task),
        )
        if shape in counts:
            counts[shape] += 1
        elif len(counts) < MAX_SHAPES:
            wire = shape.to_wire()
            space -= len(pack(wire))
            elements -= _elements(wire)
            if not counts or (space >= 0 and elements >= 0):
                counts[shape] = 1
    return tuple(shape.model_copy(update={"count": count}) for shape, count in counts.items())


def _elements(value: Any) -> int:
    """Items and entries of all containers in `value`, which itself counts as one: the measure of a frame's size."""
    if isinstance(value, dict):
        return 1 + sum(_elements(item) for item in value.values())
    if isinstance(value, (tuple, list)):
        return 1 + sum(_elements(item) for item in value)
    return 1


async def ask(link: LinkHandle, message: Message, *answers: type[Message], max_wait_s: float = CALL_S) -> Any:
    """The answer, of one of these types. If a worker denies for lack of permission and then accepts a credential, the request is repeated.
    Nothing is sent before the writes it depends on are on disk.
    """
    await Stored()
    answer = await Call(link, message, max_wait_s)
    denied = isinstance(answer, Denied) and answer.reason is Reason.NOT_ALLOWED
    if denied and await Reintroduce(link):
        answer = await Call(link, message, max_wait_s)
    if not isinstance(answer, answers):
        await Reset(link)
        what = f"{link.peer} answered {type(message).__name__} with {type(answer).__name__}"
        raise RemoteProtocolError(what)
    return answer


async def probe(link: LinkHandle, campaign: str, shapes: Sequence[Shape]) -> Quote | Denied:
    """Request a quote."""
    message = Probe(campaign=campaign, shapes=tuple(shapes))
    answer: Quote | Denied = await ask(link, message, Quote, Denied, max_wait_s=PROBE_S)
    if isinstance(answer, Quote) and len(answer.shapes) not in (0, len(shapes)):
        raise RemoteProtocolError(f"{link.peer} answered {len(shapes)} shapes with {len(answer.shapes)}")
    return answer


async def adopt(link: LinkHandle, request: AdoptRequest, left_s: Callable[[], float]) -> AdoptReply | Denied:
    """Take over the leases that a worker has of a campaign, all pages in one reply. `left_s`: seconds left for this."""
    leases: list[LiveLease] = []
    cursor = 0
    for _ in range(MAX_PAGES):
        wait_s = min(CALL_S, left_s())
        if wait_s <= 0:
            raise Unreachable(f"{link.peer} did not report its leases in time")
        page = request.model_copy(update={"cursor": cursor})
        answer: AdoptReply | Denied = await ask(link, page, AdoptReply, Denied, max_wait_s=wait_s)
        if isinstance(answer, Denied):
            return answer
        leases += answer.leases
        if answer.cursor is None:
            return answer.model_copy(update={"leases": tuple(leases)})
        if answer.cursor <= cursor:
            break
        cursor = answer.cursor
    await Reset(link)
    raise RemoteProtocolError(f"{link.peer} sent lease pages that never end")


async def stop(link: LinkHandle, command: CancelOn | ReleaseOn) -> tuple[str, ...] | Denied:
    """Stop runs, or return queued leases. Returns the leases under which nothing runs any more; `Denied`: some are not ours to end."""
    stopped: list[str] = []
    for held in batched(command.held):
        reason = command.reason if isinstance(command, CancelOn) else None
        message = Release(held=held) if reason is None else Cancel(held=held, reason=reason)
        answer: Stopped | Denied = await ask(link, message, Stopped, Denied, max_wait_s=STOP_S)
        if isinstance(answer, Denied):
            return answer
        stopped += answer.leases
    return tuple(stopped)


def batched(held: tuple[HeldLease, ...]) -> Iterator[tuple[HeldLease, ...]]:
    """The leases in batches that fit into one message."""
    for first in range(0, len(held), MAX_BATCH):
        yield held[first : first + MAX_BATCH]

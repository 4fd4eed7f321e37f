"""The words we say to a worker: the probe, and the commit with its signed task. Each is one call over a kept link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from protocol.errors import RemoteProtocolError
from protocol.messages.work import (
    MAX_BATCH,
    AdoptReply,
    AdoptRequest,
    Cancel,
    Commit,
    Conflict,
    Denied,
    Granted,
    HeldLease,
    LiveLease,
    Probe,
    Queued,
    Quote,
    Release,
    Renew,
    Renewed,
    Shape,
    Stopped,
)
from protocol.values.task import Task, task_message
from protocol.wire.base import MAX_ELEMENTS, MAX_FRAME
from protocol.wire.codec import pack
from scheduler.core.commands import CancelOn, CommitTo, ReleaseOn
from scheduler.run.manifests import StoredManifest
from swarm.net.identity import Identity
from swarm.net.link import Link

MAX_SHAPES: Final = 16
MAX_PAGES: Final = 64
"""Of leases that a worker may hold of one campaign."""
STOP_PATIENCE_S: Final = 10.0
"""A cancel is answered once the child is dead."""

CommitAnswer = Granted | Queued | Conflict | Denied


def shapes_of(tasks: Iterable[Task], priority: int) -> tuple[Shape, ...]:
    """What a probe asks about: the tasks, those that are alike taken together, at most `MAX_SHAPES` kinds.

    Fewer, but one at least, where more would not fit into half a frame; the worker judges each task again when it is asked to take it.
    """
    counts: dict[Shape, int] = {}
    room, elements = MAX_FRAME // 2, MAX_ELEMENTS // 2
    for task in tasks:
        shape = Shape(
            unit=task.unit,
            requirement=task.requirement,
            model=task.model.sha256,
            size=task.model.size,
            priority=priority,
        )
        if shape in counts:
            counts[shape] += 1
        elif len(counts) < MAX_SHAPES:
            wire = shape.to_wire()
            room -= len(pack(wire))
            elements -= _elements(wire)
            if not counts or (room >= 0 and elements >= 0):
                counts[shape] = 1
    return tuple(shape.model_copy(update={"count": count}) for shape, count in counts.items())


def _elements(value: Any) -> int:
    """Items and entries of all the containers in `value`, itself counted as one: how a frame is measured."""
    if isinstance(value, dict):
        return 1 + sum(_elements(item) for item in value.values())
    if isinstance(value, (tuple, list)):
        return 1 + sum(_elements(item) for item in value)
    return 1


async def probe(
    link: Link, campaign: str, shapes: Sequence[Shape], *, max_wait_s: float = 3.0
) -> Quote | Denied:
    """Could you, and when? Raises `Unreachable`, `RemoteProtocolError`."""
    answer = await link.call(Probe(campaign=campaign, shapes=tuple(shapes)), max_wait_s=max_wait_s)
    if isinstance(answer, Quote) and len(answer.shapes) not in (0, len(shapes)):
        raise RemoteProtocolError(f"{link.peer} answered {len(shapes)} shapes with {len(answer.shapes)}")
    if isinstance(answer, (Quote, Denied)):
        return answer
    raise await _nonsense(link, "a probe", answer)


def commit_message(
    order: CommitTo,
    body: bytes,
    identity: Identity,
    *,
    epoch: int,
    priority: int,
    manifest: StoredManifest | None = None,
    proof: bytes | None = None,
) -> Commit:
    """The commit of one attempt. The same order makes the same message: a worker answers its key only once."""
    return Commit(
        key=order.key,
        attempt=order.attempt,
        epoch=epoch,
        task=body,
        signature=identity.sign(task_message(body)),
        priority=priority,
        queue=True,
        preempted=order.preempted,
        left_s=order.left_s,
        manifest=manifest.sha256 if manifest is not None else None,
        manifest_size=manifest.size if manifest is not None else 0,
        proof=proof,
    )


async def commit(link: Link, message: Commit, *, max_wait_s: float = 5.0) -> CommitAnswer:
    """Take it. Raises `Unreachable` (whether it was taken is unknown: ask again with the same key), `RemoteProtocolError`."""
    answer = await link.call(message, max_wait_s=max_wait_s)
    if isinstance(answer, (Granted, Queued, Conflict, Denied)):
        return answer
    raise await _nonsense(link, "a commit", answer)


async def adopt(
    link: Link, campaign: str, epoch: int, *, again: bool = False, proof: bytes | None = None
) -> AdoptReply | Denied:
    """Carry on what it has of a campaign: all pages of it in one. `again`: have it send the results that another scheduler took.
    `proof`: that it is ours to carry on, for others.

    Raises `Unreachable`, `RemoteProtocolError`.
    """
    leases: list[LiveLease] = []
    cursor = 0
    for _ in range(MAX_PAGES):
        page = AdoptRequest(campaign=campaign, epoch=epoch, cursor=cursor, again=again, proof=proof)
        answer = await link.call(page)
        if isinstance(answer, Denied):
            return answer
        if not isinstance(answer, AdoptReply):
            raise await _nonsense(link, "adopt", answer)
        leases += answer.leases
        if answer.cursor is None:
            return answer.model_copy(update={"leases": tuple(leases)})
        if answer.cursor <= cursor:
            break
        cursor = answer.cursor
    await link.reset()
    raise RemoteProtocolError(f"{link.peer} does not come to an end of what it holds")


async def renew(link: Link, held: tuple[HeldLease, ...]) -> Renewed | Denied:
    """I still want these. Raises `Unreachable`, `RemoteProtocolError`."""
    answer = await link.call(Renew(held=held))
    if isinstance(answer, (Renewed, Denied)):
        return answer
    raise await _nonsense(link, "a renewal", answer)


async def stop(link: Link, order: CancelOn | ReleaseOn) -> tuple[str, ...]:
    """Have runs stopped or tickets taken back. Gives the leases under which nothing runs any more."""
    done: list[str] = []
    for first in range(0, len(order.held), MAX_BATCH):
        batch = order.held[first : first + MAX_BATCH]
        message = _stop_message(order, batch)
        answer = await link.ask(message, Stopped, max_wait_s=STOP_PATIENCE_S)
        done += answer.leases
    return tuple(done)


def _stop_message(order: CancelOn | ReleaseOn, held: tuple[HeldLease, ...]) -> Cancel | Release:
    return Cancel(held=held, reason=order.reason) if isinstance(order, CancelOn) else Release(held=held)


async def _nonsense(link: Link, what: str, answer: object) -> RemoteProtocolError:
    await link.reset()
    return RemoteProtocolError(f"{link.peer} answered {what} with {type(answer).__name__}")

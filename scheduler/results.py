"""Taking a result: its bytes, its signature, that it is what was asked for, and the one transaction that records it."""

from __future__ import annotations

import hashlib

from protocol.attempt import TaskEvent
from protocol.errors import Refused, RemoteProtocolError
from protocol.messages import Result
from protocol.record import MAX_RECORD, Record, read_record, record_message
from protocol.task import Task
from protocol.words import Outcome, Reason
from swarm.blobs import fetch_blob
from swarm.identity import verify
from swarm.network import Network


async def pull(network: Network, peer: str, result: Result) -> bytes:
    """The record's bytes: from the message, or fetched by hash when they were too many for it. Hash and size are checked.

    Raises `RemoteProtocolError`, and `Unreachable` when the fetch breaks off (the worker will send the result again).
    """
    body = result.body
    if result.size > MAX_RECORD:
        raise RemoteProtocolError(f"a record of {result.size} bytes; {MAX_RECORD} are allowed")
    if body is None:
        fetched = bytearray()

        def store(piece: bytearray) -> None:
            if len(fetched) + len(piece) > result.size:
                raise ValueError("more than announced")
            fetched.extend(piece)

        try:
            await fetch_blob(network, peer, (), result.sha256, sink=store, size=result.size)
        except (Refused, ValueError) as exc:
            raise RemoteProtocolError(
                f"the record of {result.task} cannot be had from its worker: {exc}"
            ) from exc
        body = bytes(fetched)
    if len(body) != result.size or hashlib.sha256(body).hexdigest() != result.sha256:
        raise RemoteProtocolError(f"the record of {result.task} is not what its message says")
    return body


def check(result: Result, body: bytes, peer: str, task: Task, task_body: bytes) -> Record:
    """The record in `body`, if `peer` signed it and it speaks of this very task, attempt, fence and model. Else `RemoteProtocolError`."""
    if not verify(peer, record_message(body), result.signature):
        raise RemoteProtocolError(f"the record of {result.task} is not signed by the worker that sent it")
    record = read_record(body)
    asked = {
        "campaign": (record.campaign, task.campaign, result.campaign),
        "task": (record.task, task.task, result.task),
        "attempt": (record.attempt, result.attempt),
        "fence": (record.fence, result.fence),
        "worker": (record.worker, peer),
        "task_sha256": (record.task_sha256, hashlib.sha256(task_body).hexdigest()),
        "model_sha256": (record.model_sha256, task.model.sha256),
    }
    for name, values in asked.items():
        if len(set(values)) != 1:
            raise RemoteProtocolError(f"the record of {result.task} has another {name} than was asked for")
    if record.outcome is Outcome.COMPLETE and (record.ran is None or record.timing is None):
        raise RemoteProtocolError(f"the record of {result.task} is complete without a measurement")
    if record.outcome is Outcome.FAILED and record.reason is None:
        raise RemoteProtocolError(f"the record of {result.task} failed without a reason")
    return record


def wrong_unit(record: Record, task: Task) -> tuple[TaskEvent, Reason, str] | None:
    """The verdict on a measurement that was made on another unit than was asked for; None when it was the right one."""
    if record.outcome is not Outcome.COMPLETE or record.ran is None or record.ran.unit == task.unit:
        return None
    return (
        TaskEvent.FAIL,
        Reason.WRONG_UNIT,
        f"{task.unit} was asked for, {record.ran.unit} ran the model",
    )

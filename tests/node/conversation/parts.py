"""A conversation driven by hand: links that record what the worker sends, a real folder, and a clock that the test sets."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import structlog

from node.capacity.allocations import Allocation, KillCommand, RunCommand
from node.capacity.ledger import Ledger
from node.conversation.commands import (
    Command,
    DropLink,
    ForgetFiles,
    ReadRecord,
    RevealRun,
    SendCall,
    SendNote,
    SendReply,
    SettleRecords,
    WriteHead,
    WriteRecord,
)
from node.conversation.conversation import WorkerConversation
from node.conversation.outbox import Outbox, OutboxItem
from node.conversation.requests import WorkerContext
from node.store.outbox_files import open_outbox
from protocol.errors import ResourceError
from protocol.messages.permission import ALL, CallPermission
from protocol.messages.work import Commit
from protocol.values.advert import Advert, UnitOffer
from protocol.values.lease import Fence
from protocol.values.reading import DeviceReading
from protocol.values.record import DeviceFacts, Record
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from protocol.wire.base import Message
from protocol.words import RunOutcome

ANN = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAn"
BOB = "12D3KooWBobBobBobBobBobBobBobBobBobBobBobBobBobBobBo"
UNIT = "CPU (ONNX)"
DISK = (WriteRecord, WriteHead, ReadRecord, SettleRecords)


def item(body: bytes, *, peer: str = ANN, stored: float = 100.0, **changes: Any) -> OutboxItem:
    """The head of a record of Ann's campaign."""
    fields: dict[str, Any] = {
        "peer": peer,
        "campaign": "c-1",
        "task": "c-1/1",
        "attempt": 1,
        "lease": "w-1.1",
        "fence": Fence(incarnation=1, number=1),
        "sha256": hashlib.sha256(body).hexdigest(),
        "size": len(body),
        "signature": bytes(64),
        "stored": stored,
    }
    return OutboxItem(**(fields | changes))


def commit(number: int, *, epoch: int = 1, queue: bool = False, scheduler: str = ANN) -> Commit:
    """The first attempt at one of Ann's tasks."""
    task = Task(
        campaign="c-1",
        task=f"c-1/{number}",
        scheduler=scheduler,
        model=Model(name="m.onnx", sha256="a" * 64, size=5),
        unit=UNIT,
        requirement=Requirement(),
        measure=Measure(runs=10, loads=1),
        timeouts=Timeouts(),
    )
    return Commit(
        key=f"c-1/{number}", attempt=1, epoch=epoch, task=task_body(task), signature=bytes(64), queue=queue
    )


class FakeLink:
    """A scheduler's link."""

    def __init__(self, peer: str = ANN) -> None:
        self.peer = peer


class Shell:
    """One life of a worker. Carries out disk commands at once, unless `hold_disk` is set."""

    def __init__(
        self,
        folder: Path,
        *,
        wall: float = 100.0,
        incarnation: int = 1,
        slots: int = 1,
        max_duration_s: float = math.inf,
    ) -> None:
        self.wall = wall
        self.now = 0.0
        self.files = open_outbox(folder)
        self.outbox = Outbox(lambda: self.wall, lambda: self.now, self.files.waiting, self.files.settled)
        self.hold_disk = False
        self.principals: dict[str, str] = {}
        self.owner = self.strange = False
        """Whether the peer that asks is the owner; whether it is a stranger."""
        self.disk: list[Any] = []
        self.replies: dict[object, Message] = {}
        self.calls: list[SendCall] = []
        self.notes: list[SendNote] = []
        self.dropped: list[object] = []
        self.revealed: list[RevealRun] = []
        self.forgets: list[ForgetFiles] = []
        self.started: list[str] = []
        self.killed: list[str] = []
        advert = Advert.model_construct(
            v=1, peer=BOB, seq=1, device="d", name="w", ram=2**33, units=(UnitOffer(unit=UNIT, runtime="r"),)
        )
        self.conversation = WorkerConversation(
            Ledger(incarnation, slots=slots),
            self.outbox,
            WorkerContext(
                now=lambda: self.now,
                wall=lambda: self.wall,
                permit=lambda peer, message, campaign: CallPermission(
                    principal=self.principals.get(peer, peer),
                    rights=ALL,
                    owner=self.owner,
                    stranger=self.strange,
                ),
                authenticate=lambda peer, message: pytest_fail(),
                advert=lambda: advert,
                has_model=lambda sha256: False,
                manifests=NoManifests(),
                sign=lambda message: bytes(64),
                verify=lambda peer, message, signature: True,
                log=structlog.get_logger(),
                reading=lambda: DeviceReading(age_s=1.0, cpu=0.25),
                max_duration_s=max_duration_s,
            ),
        )

    # -- inputs ----------------------------------------------------------------------------------------------------------

    def connect(self, peer: str = ANN) -> FakeLink:
        link = FakeLink(peer)
        self.conversation.connected(link)
        self.flush()
        return link

    def ask(self, link: FakeLink, message: Message) -> Message | None:
        """Send a call to the worker. Returns the reply, or None if there is none yet."""
        request = object()
        self.conversation.received(link, message, request)
        self.flush()
        self.last_request = request
        return self.replies.get(request)

    def answer(self, reply: Message | None, call: int = 0) -> None:
        """Answer one of the worker's pending calls."""
        self.conversation.commands.answered(self.calls.pop(call), reply)
        self.flush()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.conversation.run_timers()
        self.flush()

    def end_run(self, lease: str, outcome: RunOutcome = RunOutcome.COMPLETE, **changes: Any) -> Record:
        """A run ends and is reported."""
        record = self.record(lease, outcome=outcome, **changes)
        self.conversation.processes_ended(lease, record)
        self.flush()
        self.conversation.finish_run(lease, record)
        self.flush()
        return record

    def record(self, lease: str, **changes: Any) -> Record:
        allocation = self.conversation.ledger.allocation(lease)
        assert isinstance(allocation, Allocation)
        task = allocation.request.task
        fields: dict[str, Any] = {
            "campaign": task.campaign,
            "task": task.task,
            "attempt": allocation.request.commit.attempt,
            "fence": allocation.fence,
            "worker": BOB,
            "task_sha256": allocation.request.task_sha256,
            "model_sha256": task.model.sha256,
            "outcome": RunOutcome.COMPLETE,
            "device": DeviceFacts(device="d", name="w"),
        }
        return Record(**(fields | changes))

    # -- outputs ---------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Carry out all commands."""
        while commands := self.conversation.commands.take():
            for command in commands:
                self._do(command)

    def _do(self, command: Command) -> None:
        match command:
            case SendReply(request, message):
                self.replies[request] = message
            case SendCall():
                self.calls.append(command)
            case SendNote():
                self.notes.append(command)
            case DropLink(link):
                self.dropped.append(link)
            case RevealRun():
                self.revealed.append(command)
            case ForgetFiles():
                self.forgets.append(command)
            case RunCommand():
                self.started.append(command.lease)
            case KillCommand():
                self.killed.append(command.lease)
            case _ if isinstance(command, DISK):
                self.disk.append(command)
                if not self.hold_disk:
                    self.run_disk()

    def run_disk(self) -> None:
        """Carry out the pending disk commands."""
        while self.disk:
            command, data, error = self.disk.pop(0), None, ""
            try:
                data = self.files.carry_out(command)
            except ResourceError as exc:
                error = exc.what
            self.conversation.commands.disk_done(command, data, error)
            self.flush()

    def put(self, head: OutboxItem, body: bytes) -> Path:
        """Put a waiting record on disk, as an earlier life would have left it."""
        self.files.carry_out(WriteRecord(head, body))
        self.outbox.put(head)
        self.conversation.delivery.outbox_changed()
        self.flush()
        return self.files.folder / f"{head.sha256}.record"


class NoManifests:
    """Campaign manifests of schedulers that name none."""

    def of(self, campaign: str, owner: str) -> None:
        return None

    def note(self, campaign: str, owner: str, peer: str, sha256: str, size: int) -> None:
        raise AssertionError("none is named")


def pytest_fail() -> Any:
    raise AssertionError("no credentials are shown")

"""What the conversation waits for, as plain values.

The conversation's procedures are coroutines that await nothing but effects. A shell runs each with `drive`: it performs the effect and
passes the reply, or the failure, back in. The trio service and the simulation are two such shells.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from protocol.errors import ProtocolError, SarkError, Unreachable
from protocol.messages.work import Result
from protocol.values.advert import Advert
from protocol.values.record import Record
from protocol.values.requirement import Requirement
from protocol.values.task import Task
from protocol.values.trust import MINE, TrustScope
from protocol.wire.base import Message
from protocol.words import Reason
from results.row.canary import CanaryVerdict
from results.row.scores import Scores
from results.row.witness import WitnessAccount

T = TypeVar("T")
CALL_S: Final = 5.0


class LinkHandle(Protocol):
    """A link of the shell. The conversation compares links, and passes them back."""

    @property
    def peer(self) -> str: ...


class Effect(Generic[T]):
    """Something to wait for; awaiting it returns the reply."""

    __slots__ = ()

    def __await__(self) -> Generator[Effect[Any], Any, T]:
        reply: T = yield self
        return reply


@dataclass(frozen=True, slots=True)
class Stored(Effect[None]):
    """Wait until everything written to the store so far is on disk. Every message about such a write waits for this."""


@dataclass(frozen=True, slots=True)
class Connect(Effect[LinkHandle]):
    """The kept link to a worker, or a new one on which credentials were presented. Fails with `Unreachable`."""

    peer: str


@dataclass(frozen=True, slots=True)
class Introduce(Effect[None]):
    """Present credentials renewed since the last introduction. Fails with `Unreachable`."""

    link: LinkHandle


@dataclass(frozen=True, slots=True)
class Reintroduce(Effect[bool]):
    """A worker denies for lack of permission: present all credentials. True: it accepted one. Fails with `Unreachable`."""

    link: LinkHandle


@dataclass(frozen=True, slots=True)
class Call(Effect[Message]):
    """The answer to a message. Fails with `Unreachable`; then it is unknown whether the message arrived."""

    link: LinkHandle
    message: Message
    max_wait_s: float = CALL_S


@dataclass(frozen=True, slots=True)
class Reset(Effect[None]):
    """Abandon a link at once."""

    link: LinkHandle


@dataclass(frozen=True, slots=True)
class Drop(Effect[None]):
    """Abandon the kept link to a worker, if any."""

    peer: str


@dataclass(frozen=True, slots=True)
class WaitFor(Effect[None]):
    """Wait until `ready` is true or the deadline passes. `ready` is evaluated again after every event."""

    ready: Callable[[], bool]
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class SleepUntil(Effect[None]):
    """Wait until the instant; no event ends the wait sooner."""

    until: float


@dataclass(frozen=True, slots=True)
class WaitClosed(Effect[bool]):
    """Whether the link closes before the deadline."""

    link: LinkHandle
    until: float


@dataclass(frozen=True, slots=True)
class SearchIndex(Effect[Sequence[Advert]]):
    """About `want` devices that fit; None: devices of all kinds, to explain why none fits."""

    requirement: Requirement
    want: int | None
    trust: TrustScope = MINE
    """Whom the campaign admits. Only those devices are returned, except for an explanation."""


@dataclass(frozen=True, slots=True)
class FetchRecord(Effect[bytes]):
    """The bytes of a result. Fails with `Unreachable`, or with `RemoteProtocolError` if hash or size differ."""

    peer: str
    result: Result


@dataclass(frozen=True, slots=True)
class CheckedRecord:
    """A record whose signature and content were verified."""

    record: Record
    columns: dict[str, Any]
    """Columns of the record that lists show."""
    rejection: tuple[Reason, str] | None = None
    """Why the record does not measure what was asked for; None: it does."""
    scores: Scores | None = None
    """Why its answers have no scores; `WAITING`: they are to be scored. None: its model was not evaluated."""


@dataclass(frozen=True, slots=True)
class CheckRecord(Effect[CheckedRecord]):
    """Check the signature, content and meaning of a record. Fails with `RemoteProtocolError`."""

    peer: str
    result: Result
    body: bytes
    task: Task
    signed_task: bytes
    account: WitnessAccount | None = None
    """What was witnessed of the run, if its worker is a stranger."""


@dataclass(frozen=True, slots=True)
class ScoreAnswers(Effect[Scores]):
    """The scores of the answers in a stored record. Does not fail."""

    task: Task
    attempt: int
    unwanted: Callable[[], str]
    """Why the answers no longer need scoring; empty: they must be scored. Other threads also call this."""


@dataclass(frozen=True, slots=True)
class RepeatInference(Effect[CanaryVerdict]):
    """Repeat an inference of a stranger's run on this machine and compare its outputs. Does not fail."""

    task: Task
    record: Record


async def drive(job: Coroutine[Any, Any, T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """Run a procedure to its end."""
    reply: Any = None
    error: SarkError | None = None
    try:
        while True:
            try:
                effect = job.send(reply) if error is None else job.throw(error)
            except StopIteration as stop:
                value: T = stop.value
                return value
            reply = error = None
            try:
                reply = await perform(effect)
            except (Unreachable, ProtocolError) as exc:
                error = exc
    finally:
        job.close()


async def perform_call(effect: Any) -> Message | bool | None:
    """Perform the effects of a single request over a link that can be called. Raises `Unreachable`."""
    link: Any = getattr(effect, "link", None)
    match effect:
        case Call():
            answer: Message = await link.call(effect.message, max_wait_s=effect.max_wait_s)
            return answer
        case Reset():
            await link.reset()
            return None
        case Stored():
            return None  # a caller from here has stored nothing
        case Reintroduce():
            return False  # the caller of a single request has already been introduced
        case _:
            raise AssertionError(f"{effect} is not performed here")

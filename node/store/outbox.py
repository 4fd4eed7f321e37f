"""Signed records, on disk until their scheduler has them, and a day longer for whoever adopts the campaign after it.

Each is two files named by the record's sha256: `.record` is its bytes (served as a blob when large), `.head` says for whom it is and
comes last, so that a head means a whole record. Both are durable before `store` returns. What does not read well is set aside.
A settled one is kept under a head that is called `.kept`: renamed, not written, for that may happen while something is measured.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
import trio
from pydantic import Field, ValidationError

from node.store.shares import gives_way
from protocol.errors import RemoteProtocolError, ResourceError
from protocol.messages.work import Attempt, Result
from protocol.values.lease import Fence
from protocol.values.record import MAX_RECORD
from protocol.wire.base import MAX_INLINE, Count, Id, Message, PeerName, Sha256, Signature
from protocol.wire.codec import pack, unpack
from swarm.base.durable import UNFINISHED, write_durably

RETENTION_S: Final = 24 * 3600.0
"""A scheduler that did not come back for so long will not."""
CLOCK_JUMP_S: Final = 30 * 24 * 3600.0
"""What looks older than this was stored by a clock that had not been set yet, as on boards that start in 1970: no age at all."""
MAX_ITEMS: Final = 2_000
MAX_BYTES: Final = 512 * 1024**2
KEPT_BYTES: Final = 64 * 1024**2
"""Settled records, all together; the oldest go first. They go after `RETENTION_S` too."""
KEEP_BROKEN: Final = 16
MAX_IN_MEMORY: Final = 64
"""Records that no disk could take, each of at most MAX_INLINE bytes: better delivered late than lost."""
_HEADS: Final = ("head", "kept")

log = structlog.get_logger("sark.outbox")


class OutboxItem(Message):
    """A record that waits for its scheduler."""

    peer: PeerName
    """Who is to get it."""
    owner: PeerName | None = None
    """Whose campaign it is of, where another scheduler acts for the owner."""
    campaign: Id
    task: Id
    attempt: Attempt
    lease: Id
    fence: Fence
    sha256: Sha256
    size: Count
    signature: Signature
    stored: float = Field(ge=0)
    """Wall clock, seconds since the epoch: retention goes on while no process runs."""

    @property
    def principal(self) -> str:
        """Whose campaign it is of."""
        return self.owner or self.peer


class Outbox:
    """One folder of records; one process at a time has it."""

    def __init__(self, folder: Path, wall: Callable[[], float]) -> None:
        """Open it and read what waits (blocking). Raises `ResourceError`."""
        self.folder = self._folder = folder
        self._wall = wall
        self._items: dict[str, OutboxItem] = {}
        self._kept: dict[str, OutboxItem] = {}
        """Settled: their schedulers have them."""
        self._homeless: dict[str, bytes] = {}
        self.changed = trio.Event()
        """Set, and replaced, when something was stored."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for head in sorted(folder.glob("*.head")):
                self._load(head, self._items)
            for head in sorted(folder.glob("*.kept")):
                if head.stem in self._items:  # put back, and killed before this one was removed
                    head.unlink()
                else:
                    self._load(head, self._kept)
            for half in folder.glob(".*"):  # a write that a kill cut short
                if UNFINISHED.fullmatch(half.name):
                    half.unlink()
            for record in folder.glob("*.record"):
                if (
                    record.stem not in self._items and record.stem not in self._kept
                ):  # its head never came, or was set aside
                    record.unlink()
            for old in sorted(folder.glob("*.broken"))[:-KEEP_BROKEN]:
                old.unlink()
        except OSError as exc:
            raise ResourceError(
                f"cannot use the outbox {folder}: {exc.strerror or exc}",
                hint="check that the folder is yours",
            ) from exc

    def __len__(self) -> int:
        """How many wait."""
        return len(self._items)

    def waiting(self, peer: str) -> tuple[OutboxItem, ...]:
        """What waits for one scheduler, oldest first."""
        return tuple(
            sorted((item for item in self._items.values() if item.peer == peer), key=lambda item: item.stored)
        )

    def find(self, peer: str, sha256: str) -> Path | bytes | None:
        """The record's bytes, for the scheduler it is for and nobody else."""
        item = self._items.get(sha256)
        if item is None or item.peer != peer:
            return None
        return self._homeless.get(sha256) or self._record(sha256)

    def of(self, campaign: str, principal: str) -> tuple[tuple[OutboxItem, bool], ...]:
        """All records of a campaign that are here, oldest first, each with whether it is settled."""
        found = [(item, False) for item in self._items.values()] + [
            (item, True) for item in self._kept.values() if self._young(item)
        ]
        mine = [(i, settled) for i, settled in found if (i.campaign, i.principal) == (campaign, principal)]
        return tuple(sorted(mine, key=lambda each: each[0].stored))

    def campaigns(self) -> tuple[str, ...]:
        """Campaigns of which there are records here, the one with the newest first."""
        newest = sorted((*self._items.values(), *self._kept.values()), key=lambda item: -item.stored)
        return tuple(dict.fromkeys(item.campaign for item in newest if self._young(item)))

    async def hand_over(
        self,
        campaign: str,
        principal: str,
        peer: str,
        *,
        again: bool,
        still: Callable[[], bool] = lambda: True,
    ) -> int:
        """From now on `peer` gets the campaign's records: those that wait, and with `again` the settled ones too. Gives how many.

        `still`: whether `peer` speaks for it yet. Raises `ResourceError` when the disk does not take it; asking once more is safe.
        """
        moved = 0
        for item, settled in self.of(campaign, principal):
            if settled and not again:
                continue
            if not still():
                break
            fresh = item.model_copy(update={"peer": peer, "owner": principal})
            if settled or fresh != item:
                if item.sha256 not in self._homeless:
                    await trio.to_thread.run_sync(self._put_back, fresh)
                self._kept.pop(item.sha256, None)
                self._items[item.sha256] = fresh
            moved += 1
        if moved:
            self._tell()
        return moved

    async def redirect(self, item: OutboxItem) -> None:
        """A record that waits is for `item.peer` from now on. Raises `ResourceError`."""
        if item.sha256 in self._items:
            if item.sha256 not in self._homeless:
                await trio.to_thread.run_sync(self._put_back, item)
            self._items[item.sha256] = item
            self._tell()

    async def store(self, item: OutboxItem, body: bytes) -> tuple[OutboxItem, ...]:
        """Keep a record; durable on return. Gives what was given up for it (too old, or no room).

        On a full disk a small one stays in memory, with a line in the log. Raises `ResourceError` when there is no place at all.
        """
        dropped = self._overdue(item)
        for old in dropped:
            log.warning("result.given_up", task=old.task, attempt=old.attempt, scheduler=old.peer)
            await self.settle(old.sha256)
        try:
            await trio.to_thread.run_sync(self._write, item, body)
        except ResourceError as exc:
            await trio.to_thread.run_sync(self._remove, item.sha256)
            if len(body) > MAX_INLINE or len(self._homeless) >= MAX_IN_MEMORY:
                raise
            log.warning("outbox.in_memory", task=item.task, why=exc.what)
            self._homeless[item.sha256] = body
        self._items[item.sha256] = item
        self._tell()
        return dropped

    async def settle(self, sha256: str, *, keep: bool = False) -> None:
        """The scheduler has it, or never will. `keep` it a while: the scheduler may be lost, and the campaign adopted by another."""
        item = self._items.pop(sha256, None)
        if item is None or self._homeless.pop(sha256, None) is not None:
            return
        if keep:
            self._kept[sha256] = item
        too_much = self._too_much()
        for old in too_much:
            del self._kept[old]
        renamed = [sha256] if keep and sha256 not in too_much else []
        removed = [*too_much, *([] if keep else [sha256])]
        await trio.to_thread.run_sync(self._set_aside, renamed, removed)

    def _too_much(self) -> list[str]:
        """Settled records that are too old, or more than there is room for."""
        oldest_first = sorted(self._kept.values(), key=lambda item: item.stored)
        old = [item for item in oldest_first if not self._young(item)]
        rest = [item for item in oldest_first if self._young(item)]
        over = gives_way(rest, _principal, _size, number=MAX_ITEMS, room=KEPT_BYTES)
        return [item.sha256 for item in (*old, *over)]

    def _young(self, item: OutboxItem) -> bool:
        return not RETENTION_S < self._wall() - item.stored < CLOCK_JUMP_S

    def _tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def message(self, item: OutboxItem) -> Result | None:
        """The `Result` to send; None when the record is gone for good. A large one is only named; the scheduler pulls it.

        Raises `ResourceError` when it cannot be read now: perhaps it can be later.
        """
        body = self._homeless.get(item.sha256)
        if body is None:
            path = self._record(item.sha256)
            try:
                if item.size <= MAX_INLINE:
                    body = await trio.to_thread.run_sync(path.read_bytes)
                else:
                    await trio.to_thread.run_sync(path.stat)
            except FileNotFoundError:
                return None
            except OSError as exc:
                raise ResourceError(f"a result cannot be read back: {exc.strerror or exc}") from exc
        return Result(
            campaign=item.campaign,
            task=item.task,
            attempt=item.attempt,
            lease=item.lease,
            fence=item.fence,
            sha256=item.sha256,
            size=item.size,
            signature=item.signature,
            body=body,
        )

    def _record(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.record"

    def _overdue(self, coming: OutboxItem) -> tuple[OutboxItem, ...]:
        """Who takes the most room loses its own first, the oldest of them, and perhaps not what comes."""
        oldest_first = sorted(self._items.values(), key=lambda item: item.stored)
        old = [item for item in oldest_first if not self._young(item)]
        rest = [item for item in oldest_first if self._young(item)]
        over = gives_way([*rest, coming], _principal, _size, number=MAX_ITEMS, room=MAX_BYTES)
        return tuple(item for item in (*old, *over) if item is not coming)

    def _write(self, item: OutboxItem, body: bytes) -> None:
        write_durably(self._record(item.sha256), body)
        write_durably(self._folder / f"{item.sha256}.head", pack(item.to_wire()))

    def _put_back(self, item: OutboxItem) -> None:
        write_durably(self._folder / f"{item.sha256}.head", pack(item.to_wire()))
        with contextlib.suppress(FileNotFoundError):
            (self._folder / f"{item.sha256}.kept").unlink()

    def _set_aside(self, kept: list[str], removed: list[str]) -> None:
        """Nothing here waits for the disk: what a crash undoes is sent once more."""
        for sha256 in kept:
            with contextlib.suppress(OSError):
                (self._folder / f"{sha256}.head").rename(self._folder / f"{sha256}.kept")
        for sha256 in removed:
            self._remove(sha256)

    def _remove(self, sha256: str) -> None:
        """The head first: a record without one is nothing. What cannot be removed is sent, and called stale, once more."""
        for path in (*(self._folder / f"{sha256}.{head}" for head in _HEADS), self._record(sha256)):
            with contextlib.suppress(OSError):
                path.unlink()

    def _load(self, head: Path, into: dict[str, OutboxItem]) -> None:
        try:
            item = OutboxItem.model_validate(unpack(head.read_bytes()))
            body = self._record(item.sha256).read_bytes()
            if item.sha256 != head.stem or len(body) != item.size or item.size > MAX_RECORD:
                raise RemoteProtocolError("head and record do not belong together")
            if hashlib.sha256(body).hexdigest() != item.sha256:
                raise RemoteProtocolError("the record's bytes have changed")
        except (RemoteProtocolError, ValidationError, FileNotFoundError) as exc:
            aside = head.with_suffix(".broken")
            head.replace(aside)
            with contextlib.suppress(FileNotFoundError):
                self._record(head.stem).replace(head.with_suffix(".record.broken"))
            log.warning("outbox.broken", file=str(aside), why=str(exc).splitlines()[0])
            return
        into[item.sha256] = item


def _principal(item: OutboxItem) -> str:
    return item.principal


def _size(item: OutboxItem) -> int:
    return item.size

"""The trust of a home, read from its keys, its pools and its list, and read again whenever one of these files changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from protocol.errors import ResourceError
from scheduler.trust.book import PoolName, TrustBook
from scheduler.trust.listed import listed_file, read_listed
from scheduler.trust.pinned import pinned_file, read_pinned
from scheduler.trust.reputation import change_reputation, read_reputation, reputation_file
from swarm.base.home import Home
from swarm.base.names import disambiguate_names
from swarm.net.identity import load_or_create
from swarm.pools.owner import JOINED, pools_folder
from swarm.pools.trusted import peer_of, trusted_workers

REVIEW_S: Final = 30.0
"""Seconds after which the book is read again without a change, since memberships expire by the clock."""

log = structlog.get_logger("sark.trust")


def read_book(home: Home, now: float) -> TrustBook:
    """Whom this home trusts. `now`: wall seconds. Raises `ResourceError` when its list is damaged. Blocking."""
    own: frozenset[str] = frozenset()
    pools: dict[str, PoolName] = {}
    signed: dict[str, dict[str, frozenset[str]]] = {}
    known = trusted_workers(home, now)
    names = disambiguate_names({pool.id: pool.name for pool in known})
    for pool in known:
        for peer, device in pool.devices.items():
            if device is not None:
                by_pool = signed.setdefault(device, {})
                by_pool[pool.id] = by_pool.get(pool.id, frozenset()) | {peer}
        if pool.own:
            own |= pool.peers
        else:
            pools |= dict.fromkeys(pool.peers - pools.keys(), PoolName(names[pool.id], pool.id))
    key = home.key("scheduler")  # a home that adopts with the owner's key has none yet
    learned = read_reputation(home)
    return TrustBook(
        root=load_or_create(key).peer_id if key.exists() else "",
        own=own,
        pools=pools,
        listed=read_listed(home).peers,
        refuted=learned.refuted,
        confirmed=learned.confirmed,
        home=peer_of(home, "worker") or "",
        signed=signed,
        pinned=read_pinned(home),
    )


@dataclass(eq=False)
class HomeTrust:
    """The `TrustSource` of a home. If its list is damaged while a scheduler runs, the last book stays in force, with a warning."""

    home: Home
    wall: Callable[[], float] = time.time
    _seen: tuple[object, ...] = ()
    _read_at: float = float("-inf")
    _book: TrustBook | None = None
    _warned: str = field(default="")

    def book(self) -> TrustBook:
        """The newest book; the same object while nothing changed. Raises `ResourceError` when the first one cannot be read."""
        now, seen = self.wall(), tuple(_stamps(self.home))
        if self._book is not None and seen == self._seen and 0 <= now - self._read_at < REVIEW_S:
            return self._book
        try:
            fresh = read_book(self.home, now)
        except ResourceError as exc:
            if self._book is None:
                raise
            if exc.what != self._warned:
                self._warned = exc.what
                log.warning("trust.unreadable", why=exc.what)
            return self._book
        self._seen, self._read_at = seen, now
        if self._book is None or fresh != self._book:
            self._book = fresh
        return self._book


def learn(home: Home, peer: str, right: bool, why: str, now: float) -> None:
    """Record that a stranger's result was confirmed, or cannot be true; it counts for or against the key. Raises `ResourceError`."""
    change_reputation(home, lambda book: book.confirm(peer, now) if right else book.refute(peer, why, now))


def _stamps(home: Home) -> Iterator[tuple[str, int, int, int]]:
    """Name, time, size and inode of every file from which trust is read."""
    folders = [pools_folder(home)]
    folders += [Path(entry.path) for entry in _entries(folders[0]) if entry.is_dir(follow_symlinks=False)]
    for path in (home.key("worker"), listed_file(home), reputation_file(home), pinned_file(home)):
        yield from _stamp(path)
    for folder in folders[1:]:
        for name in (
            ["manifest"] if folder.name != JOINED else sorted(entry.name for entry in _entries(folder))
        ):
            yield from _stamp(folder / name)


def _stamp(path: Path) -> Iterator[tuple[str, int, int, int]]:
    try:
        info = path.stat()
    except OSError:
        return
    yield str(path), info.st_mtime_ns, info.st_size, info.st_ino


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []

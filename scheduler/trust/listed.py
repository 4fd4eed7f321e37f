"""The keys that a home lists by hand, in one durable file: `sark-node trust PEER_ID`.

A file that cannot be read is an error, never an empty list: otherwise campaigns would go on without the devices meant for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import NotPermitted, ResourceError, SettingsError
from protocol.wire.base import PeerName
from swarm.base.durable import unusable, write_durably
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.net.identity import peer_id_bytes

MAX_LISTED: Final = 4_096
MAX_FILE: Final = 4 * 1024 * 1024
LOCK_WAIT_S: Final = 2.0


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ListedPeer(_Part):
    """A key that the home's owner trusts."""

    peer: PeerName
    name: Annotated[str, Field(max_length=64)] = ""
    """Name that the owner gave the key."""
    since: Annotated[float, Field(ge=0)]
    """When the key was listed, in wall seconds."""


class ListedPeers(_Part):
    """The content of the file."""

    format: Literal[1] = 1
    trusted: Annotated[tuple[ListedPeer, ...], Field(max_length=MAX_LISTED, strict=False)] = ()
    declined: Annotated[tuple[PeerName, ...], Field(max_length=MAX_LISTED, strict=False)] = ()
    """Keys that the owner was asked about and does not trust. The owner is not asked about them again."""

    @property
    def peers(self) -> frozenset[str]:
        return frozenset(each.peer for each in self.trusted)

    def find(self, peer: str) -> ListedPeer | None:
        return next((each for each in self.trusted if each.peer == peer), None)


def listed_file(home: Home) -> Path:
    """The file with the listed keys."""
    return home.folder("scheduler") / "trust" / "keys.json"


def read_listed(home: Home) -> ListedPeers:
    """The listed keys; none when there is no file. Raises `ResourceError` for a file that is unreadable or damaged."""
    path = listed_file(home)
    try:
        if path.stat().st_size > MAX_FILE:
            raise _damaged(path, "it is too large")
        data = path.read_bytes()
    except FileNotFoundError:
        return ListedPeers()
    except OSError as exc:
        raise unusable(path, exc) from exc
    try:
        listed = ListedPeers.model_validate_json(data)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _damaged(path, f"{where}: {first['msg']}" if where else str(first["msg"])) from None
    for each in listed.trusted:
        try:
            peer_id_bytes(each.peer)
        except ValueError:
            raise _damaged(path, f"{each.peer} is not a peer id") from None
    return listed


def _damaged(path: Path, why: str) -> ResourceError:
    return ResourceError(
        f"{path} is damaged: {why[:200]}",
        hint="restore it from a copy, or move it away and list the devices again: sark-node trust PEER_ID",
    )


def change_listed(home: Home, how: Callable[[ListedPeers], ListedPeers]) -> ListedPeers:
    """Change the listed keys durably. If `how` raises, nothing changes. Raises `ResourceError`."""
    with lock_folder(listed_file(home).parent, wait_s=LOCK_WAIT_S):
        before = read_listed(home)
        after = how(before)
        if after != before:
            write_durably(
                listed_file(home), json.dumps(after.model_dump(mode="json"), indent=2).encode() + b"\n"
            )
    return after


def check_peer(peer: str) -> str:
    """The peer id. Raises `SettingsError` for an invalid one."""
    try:
        peer_id_bytes(peer)
    except ValueError:
        raise SettingsError(
            f"{peer[:80]!r} is not a peer id",
            hint="it looks like 12D3Koo… and has 52 characters; the device's owner sees it with: sark-node info",
        ) from None
    return peer


def trust_peer(home: Home, peer: str, name: str, *, now: float) -> ListedPeers:
    """List a key from now on. Raises `SettingsError` for an invalid peer id, `NotPermitted` when the list is full."""
    check_peer(peer)

    def add(listed: ListedPeers) -> ListedPeers:
        before = listed.find(peer)
        fresh = ListedPeer(
            peer=peer, name=name or (before.name if before else ""), since=before.since if before else now
        )
        others = tuple(each for each in listed.trusted if each.peer != peer)
        if len(others) >= MAX_LISTED:
            raise NotPermitted(
                f"{MAX_LISTED:,} keys are listed already", hint="make a pool: sark-node pool create NAME"
            )
        declined = tuple(each for each in listed.declined if each != peer)
        return listed.model_copy(update={"trusted": (*others, fresh), "declined": declined})

    return change_listed(home, add)


def forget_peer(home: Home, peer: str) -> bool:
    """Remove a key from the list. False: it was not listed. Raises `SettingsError` for an invalid peer id."""
    check_peer(peer)
    listed = False

    def drop(before: ListedPeers) -> ListedPeers:
        nonlocal listed
        listed = before.find(peer) is not None
        return before.model_copy(
            update={"trusted": tuple(each for each in before.trusted if each.peer != peer)}
        )

    change_listed(home, drop)
    return listed


def decline_peer(home: Home, peer: str) -> None:
    """Remember that the owner was asked about a key and does not trust it."""

    def decline(listed: ListedPeers) -> ListedPeers:
        others = tuple(each for each in listed.declined if each != peer)[-(MAX_LISTED - 1) :]
        return listed.model_copy(update={"declined": (*others, peer)})

    change_listed(home, decline)

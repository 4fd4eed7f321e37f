"""What an attack is: a plain value. `tests/rig/attacks` has one file for each family of attacks.

    Attack("page-bomb", "3", "…what it does", start)        start(target) → async context; leaving it ends the attack

`start` runs in its own process (`tests/rig/attacker.py`), with its own homes and keys, and speaks to the swarm over sockets. It yields a
dictionary of facts, which go into the report when the attack ends.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Facts = dict[str, Any]
"""What the attackers observed: numbers and short words, printable as JSON."""

STRANGERS: Final = {"devices": {"trust": "anyone"}}
"""Campaign option: the submitter admits strangers."""


OWN_DEVICE: Final = "OWN-DEVICE"
"""Placeholder in a campaign for the id of the submitter's own device."""


@dataclass(frozen=True)
class Node:
    """A node of the swarm, with those attributes of a `swarm.net.network.Network` that `tests.swarm.attacker` needs of its victim."""

    name: str
    peer_id: str
    address: str

    @property
    def addresses(self) -> tuple[str, ...]:
        return (self.address,)

    @property
    def gate(self) -> str:
        """The gate's address in the form that `--gate` takes."""
        return f"{self.address}/p2p/{self.peer_id}"


@dataclass(frozen=True)
class Target:
    """A swarm, as far as its attackers know it."""

    gate: Node
    workers: tuple[Node, ...]
    scheduler: str
    """Peer id of the honest scheduler, which listens nowhere."""
    folder: Path
    """Folder for the attackers' files; the homes of the honest nodes are elsewhere."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the attack."""

    def write(self) -> str:
        """Serialise this target for `read`."""
        nodes = [vars(node) for node in (self.gate, *self.workers)]
        plain = {"nodes": nodes, "scheduler": self.scheduler, "folder": str(self.folder)}
        return json.dumps(plain | {"options": dict(self.options)})

    @staticmethod
    def read(text: str) -> Target:
        plain = json.loads(text)
        gate, *workers = (Node(**node) for node in plain["nodes"])
        return Target(gate, tuple(workers), plain["scheduler"], Path(plain["folder"]), plain["options"])


Start = Callable[[Target], AbstractAsyncContextManager[Facts]]
Check = Callable[[list[dict[str, Any]], Facts], list[str]]
"""(rows of the campaign that ran beside the attack, the attackers' facts) → violations that they show."""


@dataclass(frozen=True)
class Attack:
    """One attack."""

    name: str
    shows: str
    """The rows of the reference that this attack repeats: a number of the list of attacks, a row of the threat table (N2, D6)."""
    what: str
    start: Start
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options for `start`, so that two attacks may share one function."""
    campaign: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the honest campaign file. `models`: other models than the scripted ones, in the swarm's folder."""
    check: Check = lambda rows, facts: []
    evidence: Mapping[str, int] = field(default_factory=dict)
    """Minimum values of facts. An attack that did less has shown nothing, and does not count as held off."""
    strangers: bool = False
    """The campaign admits strangers: their rows are optional, and must say that they are strangers'."""
    short: bool = False
    """Belongs to the short form, which `make test` runs."""
    brief: Mapping[str, Any] = field(default_factory=dict)
    """Options for the short form, to make it quicker."""
    during_s: float = 6.0
    """Minimum duration of the attack, campaign included."""
    leaves: bool = False
    """The attack leaves something in the swarm for a while, such as adverts."""
    schedulers: tuple[str, ...] = ()
    """Further homes that the honest workers serve, and whose keys the attackers have."""


@asynccontextmanager
async def nothing(target: Target) -> AsyncIterator[Facts]:
    """No attack: shows what the rig reports of a quiet swarm."""
    yield {}

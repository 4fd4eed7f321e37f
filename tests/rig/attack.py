"""What an attack is: a plain value. `tests/rig/attacks` has one file for each family of them.

    Attack("page-bomb", "3", "…what it does", start)        start(target) → async context; leaving it ends the attack

`start` runs in a process of its own (`tests/rig/attacker.py`), with homes and keys of its own, and speaks to the swarm over its sockets.
It yields a dictionary of facts, which go into the report when it ends.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Facts = dict[str, Any]
"""What the attackers saw: numbers and short words, printable as JSON."""

STRANGERS: Final = {"devices": {"trust": "anyone"}}
"""Added to a campaign: its submitter admits strangers."""


OWN_DEVICE: Final = "OWN-DEVICE"
"""In a campaign: the id of the submitter's own device."""


@dataclass(frozen=True)
class Node:
    """A node of the swarm: as much of a `swarm.net.network.Network` as `tests.swarm.attacker` needs of its victim."""

    name: str
    peer_id: str
    address: str

    @property
    def addresses(self) -> tuple[str, ...]:
        return (self.address,)

    @property
    def gate(self) -> str:
        """As `--gate` takes it."""
        return f"{self.address}/p2p/{self.peer_id}"


@dataclass(frozen=True)
class Target:
    """A swarm as its attackers know it."""

    gate: Node
    workers: tuple[Node, ...]
    scheduler: str
    """Peer id of the honest scheduler, which listens nowhere."""
    folder: Path
    """For what the attackers keep; homes of the honest nodes are elsewhere."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the attack."""

    def write(self) -> str:
        """As `read` takes it."""
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
"""(rows of the campaign that ran beside the attack, the attackers' facts) → what they show that must not be."""


@dataclass(frozen=True)
class Attack:
    """One attack."""

    name: str
    shows: str
    """The rows of the reference that it repeats: a number of the list of attacks, a row of the threat table (N2, D6)."""
    what: str
    start: Start
    options: Mapping[str, Any] = field(default_factory=dict)
    """For `start`: two attacks may share one."""
    campaign: Mapping[str, Any] = field(default_factory=dict)
    """What the honest campaign file says besides. `models`: others than the scripted ones, in the swarm's folder."""
    check: Check = lambda rows, facts: []
    evidence: Mapping[str, int] = field(default_factory=dict)
    """Facts that must be at least so many: an attack that did less has shown nothing, and has not held."""
    strangers: bool = False
    """The campaign admits strangers: their rows need not be there, and must say so where they are."""
    short: bool = False
    """In the short form, which `make test` runs."""
    brief: Mapping[str, Any] = field(default_factory=dict)
    """Options there, to be quicker."""
    during_s: float = 6.0
    """The least time that the attack lasts, campaign included."""
    leaves: bool = False
    """Something of it stays in the swarm for a while, such as adverts."""
    schedulers: tuple[str, ...] = ()
    """Homes that the honest workers serve besides, whose keys the attackers have."""


@asynccontextmanager
async def nothing(target: Target) -> AsyncIterator[Facts]:
    """No attack: shows what the rig says of a quiet swarm."""
    yield {}

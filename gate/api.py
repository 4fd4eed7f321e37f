"""The gates that this home knows, over HTTP: the status of each, as `gate status` shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio
from fastapi import APIRouter
from pydantic import BaseModel

from gate.status.client import GateClient, asking
from protocol.errors import NotPermitted, SarkError
from protocol.messages.gate import GateSnapshot
from swarm.base.home import Home
from swarm.join.known_gates import local_gates, worker_addresses
from swarm.net.addresses import Contact, gate_contacts

MAX_ASKED: Final = 8
AT_ONCE: Final = 3
"""Requests served at a time: each asks every gate through a node of its own."""

Ways = Callable[[], tuple[str, ...]]
Asking = Callable[[Home, Sequence[str]], AbstractAsyncContextManager[GateClient]]


class GateInfo(BaseModel):
    """A gate, and its status if it is readable."""

    peer: str
    addresses: tuple[str, ...]
    """That this home knows."""
    own: bool
    """It is, or was, this home's own."""
    reached: bool
    """It answered."""
    status: GateSnapshot | None = None
    error: str | None = None
    hint: str = ""


class Gates(BaseModel):
    """This home's gate if it has one, else those that it joined or submitted through."""

    count: int
    gates: tuple[GateInfo, ...]


def router(home: Home, ways: Ways, ask: Asking = asking) -> APIRouter:
    """Endpoints for `home`. `ways`: its ways into the swarm as of now, blocking; `ask`: another way to a gate, for tests."""
    gates = APIRouter(prefix="/api/v1", tags=["gate"])
    asking = trio.Semaphore(AT_ONCE)

    @gates.get("/gate", operation_id="getGates")
    async def status() -> Gates:
        """The status of the gates: peers, reservations, circuits, refusals, index, load. Only operators of a gate may read it."""
        own, known = await trio.to_thread.run_sync(_known, home, ways)
        shown: dict[str, GateInfo] = {}

        async def one(contact: Contact) -> None:
            shown[contact.peer] = await _shown(home, contact, contact.peer in own, ask)

        async with asking, trio.open_nursery() as nursery:
            for contact in known:
                nursery.start_soon(one, contact)
        statuses = tuple(shown[contact.peer] for contact in known)
        return Gates(count=len(statuses), gates=statuses)

    return gates


def _known(home: Home, ways: Ways) -> tuple[frozenset[str], tuple[Contact, ...]]:
    """Peer ids of this home's own gates, and the gates to ask: only the own ones if there are any."""
    own = gate_contacts(local_gates(home))
    workers = worker_addresses(home)
    known = own or gate_contacts([way for way in ways() if way not in workers])
    return frozenset(contact.peer for contact in own), known[:MAX_ASKED]


async def _shown(home: Home, contact: Contact, own: bool, ask: Asking) -> GateInfo:
    info = GateInfo(peer=contact.peer, addresses=contact.addresses, own=own, reached=False)
    addresses = [f"{address}/p2p/{contact.peer}" for address in contact.addresses]
    error: SarkError | None = None
    try:
        async with ask(home, addresses) as client:
            info = info.model_copy(update={"status": await client.status(), "reached": True})
    except* SarkError as group:
        error = _first(group)
    if error is None:
        return info
    reached = isinstance(error, NotPermitted)
    return info.model_copy(update={"reached": reached, "error": error.what, "hint": error.hint})


def _first(group: BaseExceptionGroup[SarkError]) -> SarkError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner

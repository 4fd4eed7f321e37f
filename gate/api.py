"""The gates that this home knows over HTTP: how each stands, as `gate status` tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio
from fastapi import APIRouter
from pydantic import BaseModel

from gate.status.client import GateAnswer, asking
from protocol.errors import NotPermitted, SarkError
from protocol.messages.gate import GateSnapshot
from swarm.base.home import Home
from swarm.join.known_gates import local_gates, own_worker
from swarm.net.addresses import Contact, gate_contacts

MAX_ASKED: Final = 8
AT_ONCE: Final = 3
"""Requests that are answered at a time: each asks every gate with a node of its own."""

Ways = Callable[[], tuple[str, ...]]
Asking = Callable[[Home, Sequence[str]], AbstractAsyncContextManager[GateAnswer]]


class GateInfo(BaseModel):
    """A gate, and how it stands where it tells us."""

    peer: str
    addresses: tuple[str, ...]
    """Where this home knows it."""
    own: bool
    """It is, or was, this home's own."""
    reached: bool
    """It answered."""
    standing: GateSnapshot | None = None
    error: str | None = None
    hint: str = ""


class Gates(BaseModel):
    """This home's gate if it has one, else those that it joined or submitted by."""

    count: int
    gates: tuple[GateInfo, ...]


def router(home: Home, ways: Ways, ask: Asking = asking) -> APIRouter:
    """Endpoints for `home`. `ways`: its ways into the swarm as of now, blocking; `ask`: another way to a gate, for tests."""
    gates = APIRouter(prefix="/api/v1", tags=["gate"])
    asking = trio.Semaphore(AT_ONCE)

    @gates.get("/gate", operation_id="getGates")
    async def status() -> Gates:
        """How the gates stand: peers, places, circuits, refusals, index, load. A gate tells its operators alone."""
        own, known = await trio.to_thread.run_sync(_known, home, ways)
        shown: dict[str, GateInfo] = {}

        async def one(contact: Contact) -> None:
            shown[contact.peer] = await _shown(home, contact, contact.peer in own, ask)

        async with asking, trio.open_nursery() as nursery:
            for contact in known:
                nursery.start_soon(one, contact)
        told = tuple(shown[contact.peer] for contact in known)
        return Gates(count=len(told), gates=told)

    return gates


def _known(home: Home, ways: Ways) -> tuple[frozenset[str], tuple[Contact, ...]]:
    """Peer ids of this home's own, and the gates to ask: those alone where there is one."""
    own = gate_contacts(local_gates(home))
    workers = own_worker(home)
    known = own or gate_contacts([way for way in ways() if way not in workers])
    return frozenset(contact.peer for contact in own), known[:MAX_ASKED]


async def _shown(home: Home, contact: Contact, own: bool, ask: Asking) -> GateInfo:
    told = GateInfo(peer=contact.peer, addresses=contact.addresses, own=own, reached=False)
    addresses = [f"{address}/p2p/{contact.peer}" for address in contact.addresses]
    error: SarkError | None = None
    try:
        async with ask(home, addresses) as asked:
            told = told.model_copy(update={"standing": await asked.standing(), "reached": True})
    except* SarkError as group:
        error = _first(group)
    if error is None:
        return told
    reached = isinstance(error, NotPermitted)
    return told.model_copy(update={"reached": reached, "error": error.what, "hint": error.hint})


def _first(group: BaseExceptionGroup[SarkError]) -> SarkError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner

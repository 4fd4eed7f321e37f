"""The gates that this home knows, over HTTP, with the status of each as `gate status` shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio
from fastapi import APIRouter
from pydantic import BaseModel

from gate.status.client import GateClient, asking
from protocol.errors import NotPermitted, SarkError, first_error
from protocol.messages.gate import GateSnapshot
from swarm.base.home import Home
from swarm.base.threads import DISK
from swarm.join.known_gates import local_gates, worker_addresses
from swarm.net.addresses import Contact, gate_contacts

MAX_ASKED: Final = 8
AT_ONCE: Final = 3
"""Requests served at once. Each asks every gate through a node of its own."""

Ways = Callable[[], tuple[str, ...]]
Asking = Callable[[Home, Sequence[str]], AbstractAsyncContextManager[GateClient]]


class GateInfo(BaseModel):
    """A gate, and its status if it is readable."""

    peer: str
    addresses: tuple[str, ...]
    """Addresses of the gate that this home knows."""
    own: bool
    """Whether the gate is, or was, this home's own."""
    reached: bool
    """Whether the gate answered."""
    status: GateSnapshot | None = None
    error: str | None = None
    hint: str = ""


class Gates(BaseModel):
    """This home's gate if it has one, else the gates through which it joined or submitted."""

    count: int
    gates: tuple[GateInfo, ...]


def router(home: Home, ways: Ways, ask: Asking = asking) -> APIRouter:
    """Endpoints for `home`. `ways`: returns the current addresses by which it enters the swarm; blocks. `ask`: a double in tests."""
    gates = APIRouter(prefix="/api/v1", tags=["gate"])
    asking = trio.Semaphore(AT_ONCE)

    @gates.get("/gate", operation_id="getGates")
    async def status() -> Gates:
        """The status of the gates: peers, reservations, circuits, refusals, index, load. Only operators of a gate may read it."""
        own, contacts = await DISK.run(_known, home, ways)
        shown: dict[str, GateInfo] = {}

        async def one(contact: Contact) -> None:
            shown[contact.peer] = await _shown(home, contact, own, ask)

        async with asking, trio.open_nursery() as nursery:
            for contact in contacts:
                nursery.start_soon(one, contact)
        return Gates(count=len(contacts), gates=tuple(shown[contact.peer] for contact in contacts))

    return gates


def _known(home: Home, ways: Ways) -> tuple[bool, tuple[Contact, ...]]:
    """Whether the gates to ask are this home's own, and those gates. A home that has its own gate asks no other."""
    if own := gate_contacts(local_gates(home)):
        return True, own[:MAX_ASKED]
    workers = worker_addresses(home)
    return False, gate_contacts([way for way in ways() if way not in workers])[:MAX_ASKED]


async def _shown(home: Home, contact: Contact, own: bool, ask: Asking) -> GateInfo:
    info = GateInfo(peer=contact.peer, addresses=contact.addresses, own=own, reached=False)
    addresses = [f"{address}/p2p/{contact.peer}" for address in contact.addresses]
    try:
        async with ask(home, addresses) as client:
            info.status, info.reached = await client.status(), True
    except* SarkError as group:
        error = first_error(group)
        info.reached = isinstance(error, NotPermitted)
        info.error, info.hint = error.what, error.hint
    return info

"""Devices of an imaginary swarm, and their observer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from protocol.errors import Unreachable
from protocol.messages.health import Pong
from protocol.values.advert import Advert, UnitOffer
from protocol.values.match import match
from protocol.values.requirement import Requirement
from protocol.words import WorkerState
from scheduler.output.fleet import ObservedDevice
from swarm.net.identity import Identity
from swarm.net.network import Path

GATE = Identity.from_seed("gate").peer_id
HOSTILE = "<img src=x onerror=alert(1)>"


def observed(
    name: str,
    gib: int,
    *,
    via: str | None = None,
    silent: bool = False,
    state: WorkerState | None = WorkerState.ACTIVE,
    addresses: tuple[str, ...] = (),
) -> ObservedDevice:
    """A device as an observer has it."""
    advert = Advert(
        peer=Identity.from_seed(name).peer_id,
        seq=1,
        device=f"d-{name}",
        name=name,
        ram=gib * 1024**3,
        soc=HOSTILE,
        units=(UnitOffer(unit="CPU (ONNX)", runtime="onnxruntime"),),
        models=("ab" * 32,),
        addresses=addresses,
    )
    pong = Pong(role="worker", incarnation=1, state=state, running=1, why="\x1b[31mred")
    path = Path(via is None, via, 2.04)
    return ObservedDevice(
        advert,
        None if silent else pong,
        "silence" if silent else "",
        match(Requirement(), advert),
        None if silent else path,
    )


class Swarm:
    """The devices that the observer finds."""

    def __init__(self, *devices: ObservedDevice) -> None:
        self.devices = list(devices)
        self.opened = 0
        self.dark = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Swarm]:
        if self.dark:
            raise Unreachable("no gate is known here", hint="start one with: sark-node gate")
        self.opened += 1
        yield self

    async def observe(self) -> tuple[ObservedDevice, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(self.devices)

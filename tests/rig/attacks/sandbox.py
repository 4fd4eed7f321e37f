"""A model that has taken over its process, in the sandbox of a worker on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from drivers.contract import frames
from drivers.contract.base import MIB, DriverError, Limits, RunFindings, WorkOrder
from drivers.launch import probe_tier
from drivers.launch.launch import Launch
from drivers.launch.process import ForkedChild, ZygoteProcess
from drivers.sandbox.enter import Tier
from tests.rig import hostile_model
from tests.rig.attack import Attack, Facts, Target

LIMITS: Final = Limits(load_s=20, run_s=20, memory_bytes=512 * MIB, output_bytes=4 * MIB)
MOST_MIB: Final = 64


class _Process(ZygoteProcess):
    @staticmethod
    def command(*arguments: str) -> list[str]:
        """See `ZygoteProcess`."""
        return [sys.executable, "-P", hostile_model.__file__, *arguments]


class RigZygote:
    """Like `drivers.launch.launch.Zygote`, with the hostile model as its driver."""

    driver = "rig"

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.process = _Process("rig", False, True, tier)

    def prepare(self) -> None:
        """Nothing: no preparation is needed."""

    def launch(self, order: WorkOrder, limits: Limits, job: str) -> ForkedChild:
        """See `Zygote.launch`."""
        return self.process.fork(
            frames.pack_order(order, limits, self.driver, False, job), limits.output_bytes
        )


def play(zygote: RigZygote, model: str) -> dict[str, float]:
    """Run one launch and return its findings."""
    launch = Launch(WorkOrder(model, "CPU (Rig)", 1, 1), LIMITS, zygote)  # type: ignore[arg-type]
    for event in launch.events():
        if isinstance(event, RunFindings):
            return dict(event.figures)
    return {}


@asynccontextmanager
async def takeover(target: Target) -> AsyncIterator[Facts]:
    """Run the hostile model again and again, in the best sandbox tier of this machine. Options: `acts`, from `tests.rig.hostile_model`."""
    facts: Facts = {"tier": str(probe_tier.probe().tier)}
    model = target.folder / "model.json"
    model.write_text(json.dumps(target.options["acts"]), "utf-8")
    zygote = RigZygote(Tier(facts["tier"]))

    async def once() -> None:
        try:
            found = await trio.to_thread.run_sync(partial(play, zygote, str(model)), abandon_on_cancel=True)
        except DriverError as exc:
            facts["ended"] = str(exc)[:200]
            return
        facts["ran"] = facts.get("ran", 0) + bool(found)
        for name, figure in found.items():
            facts[name] = max(figure, facts.get(name, 0.0))

    async def again() -> None:
        while True:
            await once()
            await trio.sleep(1)

    await once()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again)
        yield facts
        nursery.cancel_scope.cancel()


def bounded(rows: object, facts: dict[str, Any]) -> list[str]:
    mib = facts.get("kernel_mib", 0.0)
    return (
        [f"leak: {mib:.0f} MiB of kernel memory in a limit of {LIMITS.memory_bytes // MIB}"]
        if mib > MOST_MIB
        else []
    )


WORDS: Final = {
    "opt": "reads /opt",
    "mac": "reads the network card's address",
    "cmdline": "reads the kernel's command line",
    "root": "is root outside its namespace",
}


def blind(rows: object, facts: dict[str, Any]) -> list[str]:
    if facts["tier"] != "full":
        return [f"this machine's sandbox is {facts['tier']}: nothing is shown"]
    return [f"leak: the model {words}" for name, words in WORDS.items() if facts.get(name)]


ATTACKS: Final = (
    Attack(
        "socket-memory",
        "10, E3",
        "a model fills pairs of sockets until the kernel refuses",
        takeover,
        {"acts": ["kernel_mib"]},
        evidence={"ran": 1},
        check=bounded,
    ),
    Attack(
        "look-around",
        "11, E4, E8",
        "a model looks for /opt, the network card's address, the kernel's command line, its user",
        takeover,
        {"acts": list(WORDS)},
        evidence={"ran": 1},
        check=blind,
    ),
)

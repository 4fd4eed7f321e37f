"""A gate: a node with a known address that routes for the swarm, keeps index shards and runs nothing for anybody."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
import trio

from gate.enrolment import Enrolment
from gate.settings import GateSettings
from protocol.errors import ResourceError
from protocol.index_messages import Refused
from protocol.pool_messages import Enrol, Enrolled
from swarm.entry import Here, enter, until_told_to_stop
from swarm.home import Home
from swarm.pool_node import PoolNode

log = structlog.get_logger("sark.gate")


async def run_gate(
    home: Home,
    settings: GateSettings,
    *,
    with_stdin: bool = False,
    stopping: Callable[[], None] = lambda: None,
    task_status: trio.TaskStatus[Here] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Be a gate until told to stop. Raises `ResourceError` for a port or folder that cannot be had.

    `with_stdin`: the end of standard input ends it too. `stopping` is called when it was told to stop.
    """
    async with enter("gate", home, settings, holder=True) as here, trio.open_nursery() as nursery:
        await nursery.start(_pools(here).run)
        addresses = full_addresses(here)
        _tell_this_home(home.gate_file, addresses)
        log.info("gate.up", addresses=list(addresses), peer=here.identity.peer_id)
        task_status.started(here)
        name = await until_told_to_stop(with_stdin=with_stdin)
        log.info("gate.stopping", signal=name)
        stopping()
        nursery.cancel_scope.cancel()
    home.gate_file.unlink(missing_ok=True)


def _pools(here: Here) -> PoolNode:
    """What the gate does for pools: lets into those of its home, and keeps the newest manifest of any."""
    enrolment, one = Enrolment(here.home, time.time), trio.CapacityLimiter(1)

    async def enrol(peer: str, message: Enrol) -> Enrolled | Refused:
        return await trio.to_thread.run_sync(enrolment, peer, message, limiter=one)  # it waits for the disk

    node = PoolNode(
        here.network,
        here.index,
        here.home,
        None,
        name="gate",
        wall=time.time,
        rng=here.rng,
        enrol=enrol,
        gates=lambda: here.gates,
    )
    node.serve()
    return node


def full_addresses(here: Here) -> tuple[str, ...]:
    """What others put behind `--gate`, loopback last."""
    ordered = sorted(here.network.addresses, key=lambda address: "/127." in address or "/::1/" in address)
    return tuple(f"{address}/p2p/{here.identity.peer_id}" for address in ordered)


def _tell_this_home(path: Path, addresses: Sequence[str]) -> None:
    """Leave the addresses where `join` and `submit` of the same home look for them."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text("\n".join(addresses) + "\n", encoding="ascii")
        fresh.replace(path)
    except OSError as exc:
        raise ResourceError(
            f"cannot write {path}: {exc.strerror}", hint="free disk or choose another --home"
        ) from None

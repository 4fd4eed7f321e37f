"""The worker process of a home: probes the device, joins the network, and serves until it is stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import structlog
import trio

from drivers.contract.base import DriverError
from drivers.contract.registry import SIMULATED
from drivers.launch.launch import ProbedUnits, probe_units
from drivers.launch.probe_tier import TierProbe
from drivers.sandbox.enter import Tier
from node.access.authorization import Authorization
from node.device.calibrate import calibration_tools
from node.device.calibration_file import calibration_file
from node.device.calibration_rounds import Calibrator
from node.device.gpu_units import UnitsOnGpus, units_on_gpus
from node.device.known_units import known_units, state_of
from node.device.lock import DeviceLock
from node.device.monitor import DeviceMonitor
from node.device.probe import Profile, lock_name, probe_device, trouble_with
from node.device.simulated import SimulatedDevice
from node.run.launchers import Launchers
from node.serve.owner_control import Pause
from node.serve.run_manager import DeviceParts
from node.serve.service import Worker, WorkerParts, run_worker
from node.settings.settings import DriverSecrets, WorkerSettings
from node.store.cache import ModelCache
from node.store.outbox_files import open_outbox
from protocol.errors import ResourceError, SettingsError
from protocol.words import Role
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.base.threads import DISK, WAITING
from swarm.join.known_gates import addresses_file, local_gates, save_gates
from swarm.join.node import RunningNode, open_node, wait_for_stop
from swarm.net.addresses import expand_wildcards
from swarm.net.identity import load_or_create
from swarm.p2p.connection_gater import ConnectionGater
from swarm.pools.manifests import verified
from swarm.pools.membership import Membership, join_pool, joined_pools, leave_pool, stored_manifest
from swarm.pools.service import PoolNode
from swarm.pools.tickets import read_ticket

MAX_POOLS = 4
"""The most pools that an advert names."""
AHEAD = 6
"""Launches prepared while nothing runs: those of one task."""

log = structlog.get_logger("sark.worker")


async def run_process(
    home: Home,
    settings: WorkerSettings,
    stop_with_stdin: bool,
    joined: Callable[[RunningNode, Profile, Worker], None],
    tell: Callable[[str], None],
    probe: Callable[[], TierProbe],
    secrets: DriverSecrets | None = None,
    simulated: SimulatedDevice | None = None,
    must: Collection[str] = (),
) -> None:
    """Run a worker until stopped. `joined` is called once other nodes can reach it, `tell` with a line for each event; `probe` (blocks)
    tries out the sandbox. `secrets`: the owner's variables for single drivers; `simulated`: the device that it simulates, for
    demonstrations. `must`: ids of pools for which it has a ticket.

    Raises `ResourceError` for a port, folder or key that is not available, and for a device on which no unit works; `NotPermitted` if one
    of the pools in `must` refuses it.
    """
    folder = home.folder("worker")
    secrets = secrets or DriverSecrets()
    if simulated is not None:
        settings, secrets = settings.model_copy(update={"simulate": True}), simulated.private()
    probing = partial(probe_units, settings.simulate, only=SIMULATED if simulated is not None else None)
    owner = load_or_create(home.key("scheduler")).peer_id
    pools = joined_pools(home, Role.WORKER)
    settings = with_gates_of(settings, pools, local_gates(home))
    served: list[Authorization] = []
    gater = ConnectionGater(knows=lambda peer: peer == owner or any(each.knows(peer) for each in served))
    async with open_node(
        "worker", home, settings, holder=True, health=False, gater=gater, tell=tell
    ) as running:
        sandbox = await WAITING.run(probe)
        warning = check_anyone(settings, sandbox)
        if warning:
            tell(warning)
        look = await WAITING.run(units_on_gpus, settings.gpus, probing, secrets)
        monitor = DeviceMonitor(gpus=look.gpus.numbers)
        profile = await WAITING.run(
            partial(
                probe_device,
                folder,
                partial(units_at_start, home.cache / "units.json", look) if not settings.simulate else look,
                sandbox=sandbox,
                wanted_name=settings.name or "",
                on=look.gpus,
                monitor=monitor,
            )
        )
        if simulated is not None:
            profile = simulated.profile(profile)
            tell("this worker is simulated, for a demonstration")
        for note in profile.notes:
            log.warning("device.note", note=note)
        if not profile.units:
            raise ResourceError("no compute unit works on this device", hint="see why with: sark-node info")
        lock = DeviceLock(await DISK.run(lock_name))
        with contextlib.suppress(ResourceError):  # the runs report the error; no launch is prepared
            await DISK.run(lock.make)
        with contextlib.ExitStack() as stack:
            launchers = stack.enter_context(
                Launchers(
                    profile,
                    secrets,
                    settings.max_wait_s,
                    settings.meter_file,
                    simulate=settings.simulate,
                    tier=sandbox.tier,
                    prefork=AHEAD,
                    device_lock=str(lock.path),
                    held=lambda: lock.handle,
                )
            )
            try:
                launchers.start(sorted(set(profile.drivers.values())))
            except DriverError as exc:
                raise ResourceError(str(exc), hint="check that the temporary folder has free space") from exc
            calibrator = None
            if settings.calibrate and not settings.simulate:
                path = await DISK.run(calibration_file, profile.fingerprint)
                tools = calibration_tools(launchers.launch_at_once, launchers.samples, profile.gpu_choice)
                calibrator = Calibrator(path, profile, tools, lock)
                await calibrator.ensure(tell, old=folder)
            device = DeviceParts(
                profile=profile,
                lock=lock,
                launch=launchers.launch,
                examine=lambda: trouble_with(profile, look),
                version=version("sark-node"),
                calibrator=calibrator,
                open_sensors=monitor.open if simulated is None else None,
            )
            parts = WorkerParts(
                device=device,
                incarnation=running.incarnation,
                owners={owner, *settings.owners},
                pools={pool.pool: pool.name for pool in pools},
                manifests=[
                    verified(signed) for pool in pools if (signed := stored_manifest(home, pool.pool))
                ],
                pause=Pause(folder / "paused"),
                cache=await DISK.run(ModelCache, home.cache / "models", settings.cache_bytes),
                outbox=await DISK.run(open_outbox, folder / "outbox"),
                wall=time.time,
                tell=tell,
                addresses=lambda: running.addresses,
                reach=lambda: running.reach.words if running.reach is not None else "",
            )
            async with trio.open_nursery() as nursery:

                async def signals() -> None:
                    name = await wait_for_stop(with_stdin=stop_with_stdin)
                    log.info("worker.stopping", signal=name)
                    tell("stopping: ending the runs, delivering the results, withdrawing the advert")
                    parts.leave.set()

                nursery.start_soon(signals)
                worker: Worker = await nursery.start(partial(_serve, settings, running, parts, nursery))
                served.append(worker.permits)
                nursery.start_soon(_follow, running, worker)
                node = PoolNode(
                    running.network,
                    running.index,
                    home,
                    Role.WORKER,
                    name=profile.name,
                    device=profile.device,
                    wall=time.time,
                    rng=running.rng,
                    news=worker.revocation.update,
                    gates=lambda: settings.gates or local_gates(home),
                    must=must,
                    tell=tell,
                )
                worker.revocation.store = node.registry.store
                node.serve()
                await nursery.start(node.run)
                with contextlib.suppress(ResourceError):  # a convenience for this home's other commands
                    save_gates(home, settings.gates, "worker")
                near = near_addresses(settings.listen, running.network.addresses)
                stack.enter_context(addresses_file(home.worker_file, near))
                log.info(
                    "worker.up", peer=running.identity.peer_id, units=[unit.unit for unit in profile.units]
                )
                joined(running, profile, worker)


def units_at_start(file: Path, look: UnitsOnGpus) -> ProbedUnits:
    """The units that work here: those in `file` unless something has changed (blocks). With an owner's server, always probe them."""
    return known_units(file, state_of(look.gpus), look) if not look.private else look()


def pool_changes(home: Home, ticket: str | None, leave: Sequence[str]) -> tuple[Membership, ...]:
    """Use a ticket and leave pools. Returns the pools for which this device works from now on. Changes nothing while a worker runs here.

    Raises `NotPermitted` for a ticket that cannot be used, `SettingsError` for a pool that the device is not in, `ResourceError`.
    """
    if ticket is None and not leave:
        return joined_pools(home, Role.WORKER)
    with lock_folder(home.folder("worker")):
        for word in leave:
            joined = joined_pools(home, Role.WORKER)
            matches = [pool for pool in joined if word in (pool.name, pool.pool)]
            if len(matches) != 1:
                names = ", ".join(f"{pool.name} ({pool.pool})" for pool in matches or joined) or "none"
                what = "matches several pools" if matches else "is not a pool that this device works for"
                raise SettingsError(f"--leave-pool {word!r} {what}", hint=f"it is one of: {names}")
            leave_pool(home, matches[0].pool, Role.WORKER)
        if ticket is not None:
            worker = load_or_create(home.key("worker")).peer_id
            fresh = read_ticket(ticket)
            joined = joined_pools(home, Role.WORKER)
            if len(joined) >= MAX_POOLS and fresh.pool not in {pool.pool for pool in joined}:
                raise SettingsError(
                    f"this device works for {len(joined)} pools, the most that it can announce: "
                    + ", ".join(pool.name for pool in joined),
                    hint="leave one with the same command: --leave-pool NAME",
                )
            join_pool(home, fresh, Role.WORKER, worker, now=time.time())
        return joined_pools(home, Role.WORKER)


def check_anyone(settings: WorkerSettings, sandbox: TierProbe) -> str:
    """The warning for the owner at each start; empty: none. Raises `ResourceError` if the sandbox would not confine strangers' work."""
    if not settings.accept_anyone:
        return ""
    if sandbox.tier is not Tier.FULL:
        raise ResourceError(
            f"--accept-anyone needs the full sandbox, but the sandbox here is {sandbox.tier}: {'; '.join(sandbox.reasons)}",
            hint="admit people you know instead: sark-node pool create NAME, sark-node pool invite NAME; or --allow SCHEDULER_ID",
        )
    return "WARNING: this device runs models for anybody who asks, in the full sandbox; to end this, restart it without --accept-anyone"


def with_gates_of(
    settings: WorkerSettings, pools: Sequence[Membership], local: Sequence[str]
) -> WorkerSettings:
    """`settings` with the gates of the joined pools added to the configured gates, or to this home's own gates."""
    theirs = [gate for pool in pools for gate in pool.gates]
    if not theirs:
        return settings
    return settings.model_copy(update={"gates": tuple(dict.fromkeys([*(settings.gates or local), *theirs]))})


def near_addresses(listen: Sequence[str], announced: Sequence[str]) -> tuple[str, ...]:
    """Where this machine reaches its own worker: its listen addresses, if their ports are fixed, and its announced addresses."""
    fixed = [address for address in listen if not address.endswith("/tcp/0")]
    return tuple(dict.fromkeys([*expand_wildcards(fixed), *announced]))


async def _follow(running: RunningNode, worker: Worker) -> None:
    """Publishes a new advert whenever the addresses of this node change."""
    while running.reach is not None:
        await running.reach.changed()
        worker.announcer.changed()


async def _serve(
    settings: WorkerSettings,
    running: RunningNode,
    parts: WorkerParts,
    nursery: trio.Nursery,
    *,
    task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
) -> None:
    await run_worker(settings, running.network, running.index, parts, task_status=task_status)
    nursery.cancel_scope.cancel()

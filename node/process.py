"""The worker process of a home: look at the device, onto the network, then the service until told to stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import structlog
import trio

from drivers.base import DriverError, Limits, WorkOrder
from drivers.launch import Launch, Zygote, probe_units
from node.cache import ModelCache
from node.device_lock import DeviceLock
from node.outbox import Outbox
from node.probe import Profile, lock_name, probe_device, trouble_with
from node.service import Parts, run_worker
from node.settings import WorkerSettings
from protocol.errors import LocalProtocolError, ResourceError
from swarm.entry import Here, enter, until_told_to_stop
from swarm.home import Home
from swarm.identity import load_or_create

log = structlog.get_logger("sark.worker")


async def run_process(
    home: Home,
    settings: WorkerSettings,
    stop_with_stdin: bool,
    joined: Callable[[Here, Profile], None],
    tell: Callable[[str], None],
) -> None:
    """Be a worker until told to stop. `joined` is called once others can reach it, `tell` with a line for each thing that happens.

    Raises `ResourceError` for a port, folder or key that cannot be had, and for a device on which no unit works.
    """
    folder = home.folder("worker")
    owner = load_or_create(home.key("scheduler")).peer_id
    async with enter("worker", home, settings, holder=True, health=False) as here:
        profile = await trio.to_thread.run_sync(
            partial(
                probe_device,
                folder,
                partial(probe_units, settings.simulate),
                wanted_name=settings.name or "",
            )
        )
        for note in profile.notes:
            log.warning("device.note", note=note)
        if not profile.units:
            raise ResourceError("no compute unit works on this device", hint="see why with: sark-node info")
        with contextlib.ExitStack() as stack:
            try:
                zygotes = {
                    name: stack.enter_context(Zygote(name, simulate=settings.simulate).start())
                    for name in sorted(set((profile.drivers or {}).values()))
                }
            except DriverError as exc:
                raise ResourceError(str(exc), hint="see that there is room in the temporary folder") from exc

            def launch(order: WorkOrder, limits: Limits) -> Launch:
                driver = profile.driver_of(order.unit)
                if driver is None:
                    raise LocalProtocolError(f"a run on {order.unit} was let in, which does not work here")
                return Launch(order, limits, zygotes[driver])

            def examine() -> str:
                return trouble_with(profile, partial(probe_units, settings.simulate))

            parts = Parts(
                profile=profile,
                incarnation=here.incarnation,
                owners={owner},
                cache=await trio.to_thread.run_sync(ModelCache, home.cache / "models", settings.cache_bytes),
                outbox=await trio.to_thread.run_sync(Outbox, folder / "outbox", time.time),
                lock=DeviceLock(await trio.to_thread.run_sync(lock_name)),
                launch=launch,
                examine=examine,
                wall=time.time,
                tell=tell,
                version=version("sark-node"),
            )
            async with trio.open_nursery() as nursery:

                async def signals() -> None:
                    name = await until_told_to_stop(with_stdin=stop_with_stdin)
                    log.info("worker.stopping", signal=name)
                    tell("stopping: what runs is ended, results are handed over, the swarm is told")
                    parts.leave.set()

                nursery.start_soon(signals)
                await nursery.start(partial(_serve, settings, here, parts, nursery))
                log.info("worker.up", peer=here.identity.peer_id, units=[unit.unit for unit in profile.units])
                joined(here, profile)


async def _serve(
    settings: WorkerSettings,
    here: Here,
    parts: Parts,
    nursery: trio.Nursery,
    *,
    task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED,
) -> None:
    await run_worker(settings, here.network, here.index, parts, task_status=task_status)
    nursery.cancel_scope.cancel()

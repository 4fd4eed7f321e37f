"""The scheduler process of a home: joins the network, then runs the service until no campaign is left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from protocol.errors import ResourceError, StoreUnreachable, first_error
from protocol.words import Role
from scheduler.campaign.model import Campaign
from scheduler.experiments.confirm import good_models
from scheduler.experiments.schedule import Schedules
from scheduler.models.fetch import DownloadProgress, downloader
from scheduler.models.spool import tidy
from scheduler.planning.devices import VerifiedIndex
from scheduler.planning.tasks import requirements
from scheduler.run.canaries import AnswerModel, no_answers
from scheduler.run.seats import place_of, seat_identity, seat_peers
from scheduler.run.sending import send_apart
from scheduler.run.service import SchedulerService
from scheduler.store.database import LeadershipLost
from scheduler.store.readings import ReadingsFile
from scheduler.store.retention import Retention
from scheduler.store.settings import SchedulerSettings
from scheduler.store.store import Store, open_store
from scheduler.submit.daemon import is_running
from scheduler.trust.home import HomeTrust, learn
from scheduler.trust.pinned import pin_devices
from scheduler.trust.search import disputed_by
from swarm.base.home import Home
from swarm.base.process import own_command
from swarm.base.threads import DISK
from swarm.join.node import open_node, wait_for_stop
from swarm.net.identity import Identity, load_or_create
from swarm.pools.membership import (
    Credential,
    credentials,
    host_name,
    known_manifests,
    signed_manifests,
)
from swarm.pools.service import PoolNode

LOCK_TRIES: Final = 10
LOCK_TRY_S: Final = 0.1
SUPERVISOR_CHECK_S: Final = 5.0
STORE_RETRY_S: Final = (1.0, 10.0)
"""Seconds of the first and the longest pause while the database server does not answer."""

log = structlog.get_logger("sark.scheduler")


async def run_process(
    home: Home,
    settings: SchedulerSettings,
    stay: bool,
    stop_with_stdin: bool,
    answer: AnswerModel = no_answers,
    keep_supervisor: Callable[[], object] = lambda: None,
) -> None:
    """Run every unfinished campaign of `home`; with `stay`, wait for more. `answer`: runs a model here, to check strangers' results.
    `keep_supervisor`: blocking, called now and then. Raises `ResourceError` when another process already runs the campaigns.

    The store is checked once more after the lock of the home was released: a command that submits while this process leaves sees the lock
    still held, starts no other process, and relies on this one.

    If the database server stops answering, the process waits for it. A server that does not answer at the start is an error: its address
    may be wrong.
    """
    pause_s, stop, reached = STORE_RETRY_S[0], trio.Event(), False
    while True:
        for _ in range(LOCK_TRIES):  # the previous process may be exiting, or another only checks
            if not is_running(home):
                break
            await trio.sleep(LOCK_TRY_S)
        silent = False
        began = trio.current_time()
        try:
            with open_store(home) as store:
                reached = True
                await _run_once(home, settings, stay, stop_with_stdin, answer, keep_supervisor, store, stop)
            with open_store(home) as store:
                if stop.is_set() or not store.campaigns.unfinished():
                    return
        except* LeadershipLost as group:
            log.warning("scheduler.superseded", why=first_error(group).what)
        except* StoreUnreachable as group:
            if not reached:
                raise
            silent = True
            if trio.current_time() >= began + STORE_RETRY_S[1]:
                pause_s = STORE_RETRY_S[0]
            log.warning("scheduler.store_silent", why=first_error(group).what, again_in_s=pause_s)
        if stop.is_set():
            return
        if silent:
            with trio.move_on_after(pause_s):
                await wait_for_stop(with_stdin=stop_with_stdin)
                return
            pause_s = min(2 * pause_s, STORE_RETRY_S[1])


async def _run_once(
    home: Home,
    settings: SchedulerSettings,
    stay: bool,
    stop_with_stdin: bool,
    answer: AnswerModel,
    keep_supervisor: Callable[[], object],
    store: Store,
    stop: trio.Event,
) -> None:
    """Join the network, and run until no campaign is left or a signal stops it, which sets `stop`."""
    key = load_or_create(home.key("scheduler"))
    seat = store.seats.take(place_of(home), seat_peers(key))
    try:
        await _run_seated(
            home,
            settings,
            stay,
            stop_with_stdin,
            answer,
            keep_supervisor,
            store,
            key,
            seat_identity(key, seat),
            stop,
        )
    finally:  # others may continue at once
        with contextlib.suppress(ResourceError):
            store.seats.leave()


async def _run_seated(
    home: Home,
    settings: SchedulerSettings,
    stay: bool,
    stop_with_stdin: bool,
    answer: AnswerModel,
    keep_supervisor: Callable[[], object],
    store: Store,
    key: Identity,
    identity: Identity,
    stop: trio.Event,
) -> None:
    """As `_run_once`. `key`: the home's key; `identity`: this process's, in its seat."""
    trust = HomeTrust(home)
    async with (
        open_node("scheduler", home, settings, holder=False, identity=identity) as here,
        trio.open_nursery() as nursery,
    ):

        async def signals() -> None:
            name = await wait_for_stop(with_stdin=stop_with_stdin)
            stop.set()
            log.info("scheduler.stopping", signal=name)
            nursery.cancel_scope.cancel()

        async def look_after_supervisor() -> None:
            while True:
                await DISK.run(keep_supervisor)
                await trio.sleep(SUPERVISOR_CHECK_S)

        def can_present() -> tuple[Credential, ...]:
            try:
                return credentials(home, now=time.time())
            except ResourceError as exc:
                log.warning("credentials.unusable", why=exc.what)
                return ()

        pools = PoolNode(
            here.network,
            here.index,
            home,
            Role.SUBMIT,
            name=host_name(),
            wall=time.time,
            rng=here.rng,
            gates=lambda: here.gates,
        )
        nursery.start_soon(signals)
        nursery.start_soon(look_after_supervisor)
        nursery.start_soon(pools.run)

        def check(campaign: Campaign) -> None:
            needs = requirements(campaign)
            ask = partial(disputed_by, here.index, needs, campaign.trust, trust.book())
            dispute = trio.from_thread.run(ask)
            if dispute is not None:
                raise dispute.error()

        fetch = downloader(home, DownloadProgress(sys.stderr))
        schedules = Schedules(home, lambda: open_store(home), fetch, check)
        nursery.start_soon(partial(schedules.run, trio.lowlevel.checkpoint, begin=stay))
        if settings.keep is not None:
            nursery.start_soon(
                Retention(
                    home.folder("scheduler"),
                    settings.keep,
                    partial(open_store, home),
                    scheduler=here.identity.peer_id,
                ).run
            )
        trust.book()  # an unreadable list ends the process here, before any request
        tidied = tidy(home.spool, store.campaigns.needed_models() | good_models(store))
        log.info(
            "scheduler.up",
            models_removed=tidied,
            peer=here.identity.peer_id,
            seat=store.seats.seat,
            gates=list(here.gates),
        )
        service = SchedulerService(
            network=here.network,
            index=VerifiedIndex(here.index, lambda: known_manifests(home, Role.SUBMIT), pools.doubt),
            hearsay=here.index.hearsay,
            identity=here.identity,
            home=key,
            trust=trust,
            pin=partial(pin_devices, home),
            store=store,
            spool=home.spool,
            credentials=can_present,
            manifests=lambda: [
                signed for _, signed in signed_manifests(home, Role.SUBMIT) if signed is not None
            ],
            stop_when_idle=not stay,
            answer=answer,
            send=partial(send_apart, _this_program(home)),
            learn=lambda peer, right, why: learn(home, peer, right, why, time.time()),
            show=ReadingsFile(home.readings_file).put,
        )
        await service.run()
        nursery.cancel_scope.cancel()
    if not stop.is_set():
        await _last_look(schedules)


def _this_program(home: Home) -> list[str]:
    """The command line before `results` and the like, for this home."""
    return own_command() + ([] if home == Home.at() else ["--home", str(home.data.parent)])


async def _last_look(schedules: Schedules) -> None:
    """Before leaving, judge and report experiments whose run ended with the last campaign."""
    try:
        await schedules.step(begin=False)
    except ResourceError as exc:
        log.warning("experiments.waiting", why=exc.what)
    finally:
        schedules.close()

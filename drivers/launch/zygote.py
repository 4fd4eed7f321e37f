"""The process that measuring processes are forked from.

    node ── control socket ──▶ zygote            runtime imported, no session made, one thread; never runs a model
                                 └ fork ▶ keeper    drivers/launch/init.py: one for each launch; ends everything below it
                                            └ fork ▶ worker    drivers/launch/child.py: shut in, runs the model

The full sandbox costs some milliseconds of making namespaces and mounts. So that a launch need not wait for them, keepers are
made ahead while nothing runs, never beside a measurement: one for the first launch, and as many as a task has launches for as long as
there are tasks. Each with its porter costs about 3 MiB, which a device that only waits should not pay six times over.

`multiprocessing`'s forkserver is not used because it imports the parent's main module in every child, unpickles what they
say, and hands its alive-pipe on to them. Here nothing crosses but three file descriptors and one JSON order.

Nobody outlives the node: when its end of a socket closes, even by SIGKILL, the zygote exits and each keeper kills its
worker's group and whatever was re-parented to it (on Linux it is their subreaper, so that double forks do not escape).
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

from drivers.contract import registry
from drivers.contract.base import Driver, Unfit, looks_outside, opens_connections
from drivers.launch import tier_probe
from drivers.launch.init import keep, pass_on, poll, receive_request, shelter_for
from drivers.sandbox import linux, mounts, rlimits
from drivers.sandbox.mounts import MountPlan
from drivers.sandbox.rlimits import Tier

IDLE_MS: Final = 200
"""Nothing has run for so long before a keeper is made ahead: launches of one task follow each other more quickly."""

FEW: Final = 1
"""Keepers that are ready where nothing was launched lately."""
LATELY_S: Final = 600.0


def main(arguments: list[str]) -> NoReturn:
    """Serve forks until the parent's end closes.

    `arguments`: socket fd, driver, simulate (0/1), the tier of its launches or `best`, how many keepers to
    have ready, preload (0/1).
    """
    control = socket.socket(fileno=int(arguments[0]))
    driver, simulate, preload = arguments[1], arguments[2] == "1", arguments[5] == "1"
    loaded = None
    rlimits.be_called("sark-zygote")
    rlimits.have_files()
    if preload:
        loaded = preload_driver(driver, simulate)
        if (
            thread_count() > 1
        ):  # forking beside threads can leave a lock held for ever: start again without the imports
            os.set_inheritable(control.fileno(), True)
            os.execv(sys.executable, [*sys.orig_argv[:-1], "0"])  # noqa: S606
    serve(control, loaded, best_tier() if arguments[3] == "best" else Tier(arguments[3]), int(arguments[4]))


def serve(control: socket.socket, loaded: Driver | None, tier: Tier, ahead: int = 0) -> NoReturn:
    """A keeper for each request, until there is nobody to make one. `ahead`: keepers made while nothing runs, for the full sandbox."""
    usual = mounts.plan("", "", 0, code=mounts.code_folders(), in_dev=os.listdir("/dev"))  # noqa: PTH208
    if tier is Tier.FULL:
        linux.prepare(usual)
    gc.collect()
    gc.freeze()  # forked children then leave these objects' pages shared
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    ahead = worth_preparing(loaded, tier, ahead)
    ready: list[socket.socket] = []
    running: list[socket.socket] = []
    used = -math.inf

    def fork(begun: MountPlan | None, of_request: Sequence[int] = ()) -> socket.socket:
        """A keeper that waits for its order at the other end. `of_request`: what is passed on to it there, and must not reach its
        worker in another way: who holds a launch's control socket can speak in the keeper's name.
        """
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            signal.set_wakeup_fd(-1)
            os.close(woken)
            os.close(wake)
            for mine in (control, ours, *ready, *running):
                mine.close()
            for fd in of_request:
                os.close(fd)
            keep(theirs, loaded, tier, begun)
        theirs.close()
        return ours

    while True:
        now = time.monotonic()
        used = now if running else used
        wanted = ready_for(ahead, now - used)
        while len(ready) > wanted:
            ready.pop().close()  # which ends it
        wanting = len(ready) < wanted and not running
        pause = pause_ms(wanting, len(ready), used + LATELY_S - now)
        awaited = [control.fileno(), woken, *(keeper.fileno() for keeper in running)]
        heard = {fd for fd, _ in poll(*awaited, timeout_ms=pause)}
        if not heard and wanting:
            ready.append(fork(usual))
        if woken in heard:
            os.read(woken, 512)
            reap()
        if control.fileno() not in heard:
            running = still(running)
            continue
        request = receive_request(control)
        if request is None:
            os._exit(0)
        told, fds = request
        shelter = shelter_for(told, loaded, tier)
        begun = shelter.plan if shelter is not None and shelter.tier is Tier.FULL else None
        fits = begun is not None and begun.devices == usual.devices
        ready = still(ready)  # one may have been ended while it waited, as by a device short of memory
        keeper = ready.pop() if ready and fits else fork(begun, fds)
        with suppress(OSError):  # one that died just now: its launch is told as vanished
            pass_on(keeper, told, fds)
        for fd in fds:
            os.close(fd)
        running = [*still(running), keeper]
        used = time.monotonic()


def ready_for(ahead: int, unused_s: float) -> int:
    """How many keepers to have ready where the last launch was so long ago (infinity: never)."""
    return ahead if unused_s < LATELY_S else min(ahead, FEW)


def pause_ms(wanting: bool, ready: int, left_s: float) -> int | None:
    """How long to wait for something to happen before the next keeper is made, or those there are have become too many; None: for ever."""
    if wanting:
        return IDLE_MS
    return math.ceil(max(left_s, 0.0) * 1000) if ready > FEW else None


def worth_preparing(driver: Driver | None, tier: Tier, ahead: int) -> int:
    """How many keepers to have ready: none where launches are not in the full sandbox, which is all that can be made before an order."""
    never = driver is not None and (opens_connections(driver) or looks_outside(driver))
    return ahead if tier is Tier.FULL and not never else 0


def preload_driver(name: str, simulate: bool) -> Driver | None:
    """Import what every launch of the driver would import. One that fails here fails again, and is reported, in its launch."""
    if name == tier_probe.NAME:
        return tier_probe.TierProber(os.environ.get("HOME", ""), mounts.code_folders())
    try:
        driver = registry.load(name, simulate)
        for module in driver.preload():
            importlib.import_module(module)
    except (Unfit, *registry.BREAKAGE) as why:
        print(f"preload: {why}", file=sys.stderr)  # noqa: T201
        return None
    return driver


def thread_count() -> int:
    """Threads of this process as the kernel counts them (native ones too); 1 where it cannot be told."""
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208
    except OSError:
        return 1


def reap() -> None:
    """Take leave of keepers that have ended. They report for themselves; but only what was waited for counts as ours when somebody
    asks how much processor time others took (`drivers.measure.idle_wait`)."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def still(running: list[socket.socket]) -> list[socket.socket]:
    """Those keepers that have not ended; the ends of the others are closed. A keeper has nothing to say here."""
    over = {fd for fd, _ in poll(*(keeper.fileno() for keeper in running), timeout_ms=0)}
    for keeper in running:
        if keeper.fileno() in over:
            keeper.close()
    return [keeper for keeper in running if keeper.fileno() >= 0]


def best_tier() -> Tier:
    """The tier that works here, as tried out in a child; what each part is worth is `drivers.launch.tier`'s affair."""
    if sys.platform == "darwin":
        return Tier.PARTIAL
    if not linux.is_here():
        return Tier.NONE
    for tier in (Tier.FULL, Tier.PARTIAL):
        tried = os.fork()
        if tried == 0:
            linux.try_out(tier is Tier.FULL, mounts.code_folders())
        if os.waitpid(tried, 0)[1] == 0:
            return tier
    return Tier.NONE

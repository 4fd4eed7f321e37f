"""The process that measuring processes are forked from.

    node ── control socket ──▶ zygote           runtime imported, no session made, one thread; never runs a model
                                 └ fork ▶ reaper    drivers/launch/reaper.py: one per launch; ends everything below it
                                            └ fork ▶ worker    drivers/launch/child.py: sandboxed, runs the model

The full sandbox costs some milliseconds of namespaces and mounts. So that a launch need not wait for them, reapers are forked in advance:
one for the first launch, and as many as a task has launches while tasks keep coming. Each takes some MiB, which an idle device should not
pay six times. In a queue, and within a task, the next launch comes too soon for that: one is forked as soon as a launch has nothing to
measure any more, while it ends and the node makes a record of it; the node asks for it. Never during a measurement: a zygote has the
device's lock until what it has forked is idle, its own or the node's, as a run has it while it lasts, whichever driver, node or user it
is of.

`multiprocessing`'s forkserver imports the parent's main module in every child, unpickles what children send, and hands its alive-pipe on
to them. Here nothing crosses but three file descriptors and one JSON order.

Nothing outlives the node: when its end of a socket closes, even by SIGKILL, the zygote exits and each reaper kills its worker's group and
whatever was re-parented to it (it is their subreaper on Linux, so that double forks do not escape).
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
from dataclasses import replace
from typing import Final, NoReturn

from drivers.contract import registry
from drivers.contract.base import Driver, Unfit, looks_outside, opens_connections
from drivers.contract.frames import NOTHING_TO_PREPARE, TO_PREPARE, receive_request, send_request
from drivers.contract.memory import leave_libraries
from drivers.launch.device_lock import FreeDevice
from drivers.launch.reaper import poll, sandbox_for, serve_launch, watch_children
from drivers.sandbox import enter, linux, mounts
from drivers.sandbox.enter import Tier
from drivers.sandbox.mounts import MountPlan

IDLE_MS: Final = 200
"""Idle time before a further reaper is forked in advance: launches of one task follow each other more quickly."""
MIN_READY: Final = 1
"""Reapers that are ready where nothing was launched recently."""
RECENT_S: Final = 600.0
MAKE_MS: Final = 2000
"""The longest that a reaper in advance may take until it is idle. Milliseconds are enough; whoever wants to measure waits meanwhile."""
RETRY_MS: Final = (5, 10_000)
"""Before another try where the device is in use or nothing could be forked: at first, soon after a launch, and at most. Doubles."""


def main(arguments: list[str]) -> NoReturn:
    """Serve forks until the parent's end closes.

    `arguments`: socket fd, driver, simulate (0/1), the tier of its launches or `best`, how many reapers to fork in advance, the file of the
    device's lock (empty: nobody else measures here), preload (0/1).
    """
    gc.disable()  # what is imported lasts: looking through it takes a tenth of the time
    control = socket.socket(fileno=int(arguments[0]))
    driver, simulate, preload = arguments[1], arguments[2] == "1", arguments[6] == "1"
    loaded = None
    enter.set_process_name("sark-zygote")
    enter.allow_open_files()
    if preload:
        loaded = preload_driver(driver, simulate)
        if thread_count() > 1:
            # a fork next to threads can leave a lock held forever: restart without the imports
            os.set_inheritable(control.fileno(), True)
            os.execv(sys.executable, [*sys.orig_argv[:-1], "0"])  # noqa: S606
    tier = best_tier() if arguments[3] == "best" else Tier(arguments[3])
    serve(control, loaded, tier, int(arguments[4]), arguments[5])


def serve(
    control: socket.socket, loaded: Driver | None, tier: Tier, prefork: int = 0, device_lock: str = ""
) -> NoReturn:
    """Fork a reaper for each request, until the parent hangs up. `prefork`: reapers forked in advance, for the full sandbox, while nobody
    else has `device_lock`."""
    device = FreeDevice(device_lock)
    base = mounts.plan("", (), 0, code=mounts.code_folders(), in_dev=os.listdir("/dev"))  # noqa: PTH208
    if tier is Tier.FULL:
        linux.prepare(base)
    gc.freeze()  # forked children then leave these objects' pages shared
    gc.enable()
    leave_libraries()  # whose code a forked child maps for itself anyway
    woken, wake = watch_children()
    prefork = prefork_of(loaded, tier, prefork)
    ready: list[socket.socket] = []
    running: list[socket.socket] = []
    used = -math.inf

    def fork(
        view: MountPlan | None, request_fds: Sequence[int] = (), made: Sequence[socket.socket] = ()
    ) -> tuple[socket.socket, int]:
        """A reaper that waits for its order at the other end, and its process id. `request_fds`: sent to it there, and must not reach its
        worker by inheritance: whoever holds a launch's control socket can speak for the reaper. `made`: two ends; the first hangs up once
        the reaper waits with all below it. Raises OSError.
        """
        own, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            os.close(woken)
            os.close(wake)
            device.forget()
            for inherited in (control, own, *ready, *running, *made[:1]):
                inherited.close()
            for fd in request_fds:
                os.close(fd)
            serve_launch(theirs, loaded, tier, view, *made[1:])
        theirs.close()
        return own, pid

    def make(shared: int = -1) -> bool:
        """Fork a reaper in advance, and hold the device until it is idle, with all below it. False if the device is in use, or short of
        processes, memory or time. `shared`: the lock of a node that has the device; it is closed."""
        if shared < 0 and not device.take():
            return False
        try:
            made, makers = socket.socketpair()
            with made:
                with makers:
                    reaper, pid = fork(base, [shared] if shared >= 0 else (), made=(made, makers))
                if not poll(made.fileno(), timeout_ms=MAKE_MS):
                    os.kill(pid, signal.SIGKILL)  # and with it those below it
                    reaper.close()
                    return False
            ready.append(reaper)
            return True
        except OSError:
            return False
        finally:
            if shared >= 0:
                os.close(shared)  # not unlocked: the node may still have it
            else:
                device.give()

    retry_ms = 0
    while True:
        now = time.monotonic()
        used = now if running else used
        target = ready_for(prefork, now - used)
        while len(ready) > target:
            ready.pop().close()  # which ends it
        forking = len(ready) < target and not running
        pause = pause_ms(forking, len(ready), used + RECENT_S - now, retry_ms)
        fds = [control.fileno(), woken, *(reaper.fileno() for reaper in running)]
        readable = {fd for fd, _ in poll(*fds, timeout_ms=pause)}
        if not readable and forking:
            retry_ms = 0 if make() else min(max(2 * retry_ms, RETRY_MS[0]), RETRY_MS[1])
        if woken in readable:
            os.read(woken, 512)
            reap()
        if control.fileno() not in readable:
            running = alive(running)
            continue
        request = receive_request(control)
        if request is None:
            os._exit(0)
        order_bytes, request_fds = request
        if not order_bytes:
            ready = alive(ready)
            missing = prefork and not ready
            if not request_fds:
                with suppress(OSError):
                    control.sendall(TO_PREPARE if missing else NOTHING_TO_PREPARE)
            elif missing:
                make(request_fds.pop())
            for fd in request_fds:
                os.close(fd)
            continue
        sandbox = sandbox_for(order_bytes, loaded, tier)
        view = sandbox.plan if sandbox is not None and sandbox.tier is Tier.FULL else None
        ready = alive(ready)  # one may have been killed while it waited, as on a device short of memory
        reaper = ready.pop() if ready and fits(view, base) else fork(view, request_fds)[0]
        with suppress(OSError):  # if it died just now, its launch is reported as vanished
            send_request(reaper, order_bytes, request_fds)
        for fd in request_fds:
            os.close(fd)
        running = [*alive(running), reaper]
        used, retry_ms = time.monotonic(), 0


def fits(view: MountPlan | None, base: MountPlan) -> bool:
    """Whether a reaper made with `base` can launch in `view`: only what an order sets may differ. `view` None: it cannot."""
    return view is not None and replace(view, folder="", models=(), size_bytes=0) == base


def ready_for(prefork: int, unused_s: float) -> int:
    """How many reapers to keep ready `unused_s` seconds after the last launch (infinity: there was none)."""
    return prefork if unused_s < RECENT_S else min(prefork, MIN_READY)


def pause_ms(forking: bool, ready: int, left_s: float, retry_ms: int = 0) -> int | None:
    """How long to wait before the next reaper is forked, or before those that are ready become too many; None: forever. `left_s`: how long
    a launch still counts as recent, after which another may follow at any moment. `retry_ms`: the least after a fork that was not made."""
    if forking:
        return max(retry_ms, 0 if not ready and left_s > 0 else IDLE_MS)
    return math.ceil(max(left_s, 0.0) * 1000) if ready > MIN_READY else None


def prefork_of(driver: Driver | None, tier: Tier, prefork: int) -> int:
    """How many reapers to have ready: none outside the full sandbox, where nothing can be prepared before an order."""
    never = driver is not None and (opens_connections(driver) or looks_outside(driver))
    return prefork if tier is Tier.FULL and not never else 0


def preload_driver(name: str, simulate: bool) -> Driver | None:
    """Import what every launch of the driver would import. What fails here fails again, and is reported, in its launch."""
    if name == registry.SANDBOX_PROBE:
        from drivers.launch.prober import SandboxProber  # nobody else pays for its imports

        return SandboxProber(os.environ.get("HOME", ""), mounts.code_folders())
    try:
        driver = registry.load(name, simulate)
        for module in driver.preload():
            importlib.import_module(module)
    except (Unfit, *registry.BREAKAGE) as why:
        print(f"preload: {why}", file=sys.stderr)  # noqa: T201
        return None
    return driver


def thread_count() -> int:
    """Threads of this process as the kernel counts them (native ones too); 1 where it does not tell."""
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208
    except OSError:
        return 1


def reap() -> None:
    """Wait for reapers that have ended. They report for themselves; but only the processor time of children that were waited for counts
    as ours (`drivers.measure.idle_wait`)."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def alive(reapers: list[socket.socket]) -> list[socket.socket]:
    """Those reapers that have not ended; the sockets of the others are closed."""
    ended = {fd for fd, _ in poll(*(reaper.fileno() for reaper in reapers), timeout_ms=0)}
    for reaper in reapers:
        if reaper.fileno() in ended:
            reaper.close()
    return [reaper for reaper in reapers if reaper.fileno() >= 0]


def best_tier() -> Tier:
    """The best tier that a forked child can enter; what it is worth, `drivers.launch.probe_tier` finds out."""
    if sys.platform == "darwin":
        return Tier.PARTIAL
    if not linux.is_supported():
        return Tier.NONE
    for tier in (Tier.FULL, Tier.PARTIAL):
        pid = os.fork()
        if pid == 0:
            linux.try_out(tier is Tier.FULL, mounts.code_folders())
        if os.waitpid(pid, 0)[1] == 0:
            return tier
    return Tier.NONE

"""The process that measuring processes are forked from.

    node ── control socket ──▶ zygote           runtime imported, no session made, one thread; never runs a model
                                 └ fork ▶ reaper    drivers/launch/reaper.py: one per launch; ends everything below it
                                            └ fork ▶ worker    drivers/launch/child.py: sandboxed, runs the model

The namespaces and mounts of the full sandbox take some milliseconds. So that a launch need not wait for them, the zygote forks reapers in
advance: one for the first launch, and as many as a task has launches while tasks keep coming. Each takes some MiB, too much for an idle
device to keep six. Within a queue or a task the next launch comes too soon for this. There the node asks for one reaper as soon as a launch
has nothing left to measure, and the zygote forks it while the launch ends and the node makes its record. The zygote never forks in advance
during a measurement: it holds the device's lock, its own or one shared by the node, until the processes that it forked are idle. A run
holds the same lock while it lasts, whatever its driver, node or user.

`multiprocessing`'s forkserver imports the parent's main module in every child, unpickles what children send, and passes its alive-pipe on
to them. Here only three or four file descriptors and one JSON order cross.

Nothing outlives the node: when its end of a socket closes, even by SIGKILL, the zygote exits and each reaper kills its worker's group and
everything that was re-parented to it (on Linux it is their subreaper, so that double forks do not escape).
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
"""Idle time before another reaper is forked in advance: launches of one task follow each other faster than this."""
MIN_READY: Final = 1
"""Reapers that are ready if nothing was launched recently."""
RECENT_S: Final = 600.0
MAKE_MS: Final = 2000
"""The longest that a reaper forked in advance may take to become idle. It takes milliseconds; measurements wait for it."""
RETRY_MS: Final = (5, 10_000)
"""Wait before another attempt if the device was in use or the fork failed: the first, soon after a launch, and the longest. Each wait
doubles."""


def main(arguments: list[str]) -> NoReturn:
    """Serve forks until the parent's end closes.

    `arguments`: socket fd, driver, simulate (0/1), the tier of its launches or `best`, how many reapers to fork in advance, the file of the
    device's lock (empty: nothing else measures here), preload (0/1).
    """
    gc.disable()  # imported objects stay: collecting among them takes a tenth of the time
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
    """Fork a reaper for each request, until the parent hangs up. `prefork`: how many reapers to fork in advance, for the full sandbox,
    while nobody else holds `device_lock`."""
    device = FreeDevice(device_lock)
    base = mounts.plan("", (), 0, code=mounts.code_folders(), in_dev=os.listdir("/dev"))  # noqa: PTH208
    if tier is Tier.FULL:
        linux.prepare(base)
    gc.freeze()  # forked children then leave these objects' pages shared
    gc.enable()
    leave_libraries()  # a forked child maps their code itself
    woken, wake = watch_children()
    prefork = prefork_of(loaded, tier, prefork)
    ready: list[socket.socket] = []
    running: list[socket.socket] = []
    used = -math.inf

    def fork(
        view: MountPlan | None, request_fds: Sequence[int] = (), made: Sequence[socket.socket] = ()
    ) -> tuple[socket.socket, int]:
        """Fork a reaper that waits for its order at the other end of a socket; return this end and the reaper's process id. `request_fds`:
        descriptors that the socket will deliver. The worker must not inherit them: a process that holds a launch's control socket can speak
        for the reaper. `made`: two ends; the first hangs up once the reaper and all below it wait. Raises OSError."""
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
        """Fork a reaper in advance, and hold the device until the reaper and all below it are idle. False if the device is in use, or lacks
        processes, memory or time. `shared`: the lock shared by a node that has the device; closed here."""
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
            ready.pop().close()  # this ends it
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
    """Whether a reaper made with `base` can launch in `view`: only the values that an order sets may differ. False if `view` is None."""
    return view is not None and replace(view, folder="", models=(), size_bytes=0) == base


def ready_for(prefork: int, unused_s: float) -> int:
    """How many reapers to keep ready `unused_s` seconds after the last launch (infinity: there was none)."""
    return prefork if unused_s < RECENT_S else min(prefork, MIN_READY)


def pause_ms(forking: bool, ready: int, left_s: float, retry_ms: int = 0) -> int | None:
    """How long to wait before forking the next reaper, or before the ready ones become too many; None: without limit. `left_s`: how long a
    launch still counts as recent, so that another may follow at any moment. `retry_ms`: the least wait after a failed fork."""
    if forking:
        return max(retry_ms, 0 if not ready and left_s > 0 else IDLE_MS)
    return math.ceil(max(left_s, 0.0) * 1000) if ready > MIN_READY else None


def prefork_of(driver: Driver | None, tier: Tier, prefork: int) -> int:
    """How many reapers to keep ready: none outside the full sandbox, where nothing can be prepared before an order."""
    never = driver is not None and (opens_connections(driver) or looks_outside(driver))
    return prefork if tier is Tier.FULL and not never else 0


def preload_driver(name: str, simulate: bool) -> Driver | None:
    """Import what every launch of the driver would import. An import that fails here fails again in the launch, which reports it."""
    if name == registry.SANDBOX_PROBE:
        from drivers.launch.prober import SandboxProber  # nobody else pays for its imports

        return SandboxProber(os.environ.get("HOME", ""), mounts.code_folders())
    try:
        driver = registry.load(name, simulate)
        for module in driver.preload():
            importlib.import_module(module)
    except (Unfit, *registry.BROKEN_DRIVER_ERRORS) as why:
        print(f"preload: {why}", file=sys.stderr)  # noqa: T201
        return None
    return driver


def thread_count() -> int:
    """Threads of this process as the kernel counts them, including native ones; 1 where the kernel does not report them."""
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208
    except OSError:
        return 1


def reap() -> None:
    """Wait for reapers that have ended. They report for themselves, but the processor time of a child counts as ours only after this wait
    (`drivers.measure.idle_wait`)."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def alive(reapers: list[socket.socket]) -> list[socket.socket]:
    """The reapers that have not ended; closes the sockets of the others."""
    ended = {fd for fd, _ in poll(*(reaper.fileno() for reaper in reapers), timeout_ms=0)}
    for reaper in reapers:
        if reaper.fileno() in ended:
            reaper.close()
    return [reaper for reaper in reapers if reaper.fileno() >= 0]


def best_tier() -> Tier:
    """The best tier that a forked child can enter; `drivers.launch.probe_tier` finds out what it really prevents."""
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

"""The process that measuring processes are forked from, and the keeper that stands between them.

    node ── control socket ──▶ zygote            runtime imported, no session made, one thread; never runs a model
                                 └ fork ▶ keeper    one for each launch; ends everything below it, tells the status
                                            └ fork ▶ worker    drivers/child.py: shut in, runs the model; in the full
                                                               sandbox there is a porter between (drivers/sandbox_linux.py)

`multiprocessing`'s forkserver is not used because it imports the parent's main module in every child, unpickles what they
say, and hands its alive-pipe on to them. Here nothing crosses but three file descriptors and one JSON order.

Nobody outlives the node: when its end of a socket closes, even by SIGKILL, the zygote exits and each keeper kills its
worker's group and whatever was re-parented to it (on Linux it is their subreaper, so that double forks do not escape).
"""

from __future__ import annotations

import array
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from drivers import child, confine, registry, sandbox_linux, sandbox_probe, view, wire
from drivers.base import Driver, Unfit, looks_outside, opens_connections
from drivers.confine import Shelter, Tier

FDS: Final = 3
"""Passed with each request: the launch's control socket, the pipe for events, the file for what it prints."""
HEADER_BYTES: Final = 4
RETRY_MS: Final = 5


def main(arguments: list[str]) -> NoReturn:
    """Serve forks until the parent's end closes.

    `arguments`: socket fd, driver, simulate (0/1), the tier of its launches or `best`, preload (0/1).
    """
    control = socket.socket(fileno=int(arguments[0]))
    driver, simulate, preload = arguments[1], arguments[2] == "1", arguments[4] == "1"
    loaded = None
    confine.have_files()
    if preload:
        loaded = preload_driver(driver, simulate)
        if (
            thread_count() > 1
        ):  # forking beside threads can leave a lock held for ever: start again without the imports
            os.set_inheritable(control.fileno(), True)
            os.execv(sys.executable, [*sys.orig_argv[:-1], "0"])  # noqa: S606
    serve(control, loaded, best_tier() if arguments[3] == "best" else Tier(arguments[3]))


def serve(control: socket.socket, loaded: Driver | None, tier: Tier) -> NoReturn:
    """Fork a keeper for each request, until there is nobody to make one."""
    if tier is Tier.FULL:
        sandbox_linux.prepare(
            view.plan("", "", 0, code=view.code_folders(), in_dev=os.listdir("/dev"))  # noqa: PTH208
        )
    gc.collect()
    gc.freeze()  # forked children then leave these objects' pages shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers report for themselves; nobody waits for them here
    while True:
        request = receive_request(control)
        if request is None:
            os._exit(0)
        told, fds = request
        if os.fork() == 0:
            control.close()
            keep(socket.socket(fileno=fds[0]), fds[1], fds[2], told, loaded, tier)
        for fd in fds:
            os.close(fd)


def preload_driver(name: str, simulate: bool) -> Driver | None:
    """Import what every launch of the driver would import. One that fails here fails again, and is reported, in its launch."""
    if name == sandbox_probe.NAME:
        return sandbox_probe.Prober(os.environ.get("HOME", ""))
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


def receive_request(control: socket.socket) -> tuple[bytes, list[int]] | None:
    """One launch: what it is told and its three file descriptors. None when the parent is gone."""
    data, ancillary, _, _ = control.recvmsg(65536, socket.CMSG_LEN(FDS * array.array("i").itemsize))
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content)
    if not data:
        return None
    while len(data) < HEADER_BYTES or len(data) < HEADER_BYTES + int.from_bytes(data[:HEADER_BYTES], "big"):
        more = control.recv(65536)
        if not more:
            return None
        data += more
    return data[HEADER_BYTES:], fds.tolist()


def best_tier() -> Tier:
    """The tier that works here, as tried out in a child; what each part is worth is `drivers.sandbox`'s affair."""
    if sys.platform == "darwin":
        return Tier.PARTIAL
    if not sandbox_linux.is_here():
        return Tier.NONE
    for tier in (Tier.FULL, Tier.PARTIAL):
        tried = os.fork()
        if tried == 0:
            sandbox_linux.try_out(tier is Tier.FULL, view.code_folders())
        if os.waitpid(tried, 0)[1] == 0:
            return tier
    return Tier.NONE


def shelter_for(told: bytes, driver: Driver | None, tier: Tier) -> Shelter | None:
    """How a launch is shut in; None: without a model there is nobody to be shut in."""
    folder, _, packed = told.partition(b"\0")
    order, limits, name, simulate, _ = wire.unpack_order(packed)
    if not order.model or tier is Tier.NONE:
        return None
    with suppress(Unfit, *registry.BREAKAGE):  # one that does not load is told by the worker
        driver = driver or registry.load(name, simulate)
    if driver is not None and looks_outside(driver):
        return None
    network = driver is not None and opens_connections(driver)
    plan = view.plan(
        os.fsdecode(folder),
        order.model,
        limits.output_bytes,
        code=view.code_folders(),
        in_dev=os.listdir("/dev"),  # noqa: PTH208
        network=network,
        gpu=order.unit.startswith(child.UNLIMITED_UNITS),
    )
    return Shelter(Tier.PARTIAL if network else tier, plan)


def keep(
    control: socket.socket,
    events: int,
    log: int,
    told: bytes,
    driver: Driver | None,
    tier: Tier = Tier.NONE,
) -> NoReturn:
    """Fork the worker; when it ends or the parent lets go, end all that is left and say how it ended."""
    try:
        keeper = os.getpid()
        os.setsid()
        confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        shelter = shelter_for(told, driver, tier)
        full = shelter is not None and shelter.tier is Tier.FULL
        heard, verdict = os.pipe()
        trouble = sandbox_linux.trouble_with(sandbox_linux.own_processes) if full else ""
        worker = os.fork()
        if worker == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (heard, woken, wake):
                os.close(end)
            control.close()
            if full:
                sandbox_linux.die_with_keeper(verdict)
            else:
                confine.die_with(keeper)
            os.setsid()
            if shelter is not None and full and not trouble:
                plan = shelter.plan
                trouble = sandbox_linux.trouble_with(lambda: sandbox_linux.shut_view(plan))
                sandbox_linux.stand_at_the_door(verdict)
            else:
                os.close(verdict)
            child.work(events, log, told, driver, shelter, trouble)
        for end in (events, log, verdict):
            os.close(end)
        with suppress(OSError):  # the parent may be gone already
            control.sendall(b"%d\n" % worker)
        status = sweep(worker, woken, await_end(control.fileno(), woken, worker))
        said = os.read(heard, sandbox_linux.VERDICT.size)  # all who could write are dead
        if len(said) == sandbox_linux.VERDICT.size:
            (status,) = sandbox_linux.VERDICT.unpack(said)
        shutil.rmtree(
            os.fsdecode(told.partition(b"\0")[0]), ignore_errors=True
        )  # here, because the parent may be gone
        with suppress(OSError):
            control.sendall(b"%d\n" % status)
    finally:
        os._exit(0)


def await_end(control: int, woken: int, worker: int) -> int | None:
    """Return when the worker has ended or the parent has let go.

    Where the system can look without reaping, the ended worker is left unreaped, so that its number stays its own. macOS can
    only from Python 3.13 on: there it is reaped, and its exit code returned.
    """
    while True:
        ready = {fd for fd, _ in poll(control, woken)}
        if control in ready:
            return None
        os.read(woken, 512)
        if hasattr(os, "waitid"):
            if os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return None
        else:
            pid, status = os.waitpid(worker, os.WNOHANG)
            if pid == worker:
                return os.waitstatus_to_exitcode(status)


def poll(*fds: int, timeout_ms: int | None = None) -> list[tuple[int, int]]:
    """Those of `fds` that can be read or have hung up."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return poller.poll(timeout_ms)


def sweep(worker: int, woken: int, reaped: int | None = None) -> int:
    """Kill the worker, its group and all descendants; return the worker's exit code, negative for a signal.

    `reaped`: that code, if the worker was reaped already; its number is then used for what is left of its group only.
    """
    for end in (os.killpg, os.kill) if reaped is None else (os.killpg,):  # the group may not exist yet
        with suppress(ProcessLookupError, PermissionError):
            end(worker, signal.SIGKILL)
    code = reaped or 0
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
        elif pid == 0:
            for orphan in children():
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            poll(woken, timeout_ms=RETRY_MS)


def children() -> list[int]:
    """Direct children of this single-threaded process, adopted ones too; empty where the kernel does not list them."""
    try:
        listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in listed.split()]

"""The keeper: forked from the zygote for one launch, it forks what runs the model and sees to it that nothing is left of it.

    zygote ── orders ──▶ keeper ── fork ──▶ worker                      on the lesser tiers
                                └─ fork ──▶ porter ── fork ──▶ worker   in the full sandbox (drivers/sandbox/linux.py)

An order is told after the fork, so that a keeper with its porter can be made while nothing runs and wait for one: what then is
left to do for a launch is to put its model and its folder into the view. A keeper serves once, and so does its porter.
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from drivers.contract import frames, registry
from drivers.contract.base import Driver, Unfit, looks_outside, opens_connections
from drivers.launch import child
from drivers.sandbox import cleanup, linux, mounts, rlimits
from drivers.sandbox.mounts import MountPlan
from drivers.sandbox.rlimits import Shelter, Tier

FDS: Final = 3
"""Passed with each request: the launch's control socket, the pipe for events, the file for what it prints."""
HEADER_BYTES: Final = 4
RETRY_MS: Final = 5


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


def pass_on(to: socket.socket, told: bytes, fds: list[int]) -> None:
    """The other end of `receive_request`. Raises OSError when nobody is there."""
    message = len(told).to_bytes(HEADER_BYTES, "big") + told
    sent = socket.send_fds(to, [message], fds)
    to.sendall(message[sent:])


def shelter_for(told: bytes, driver: Driver | None, tier: Tier) -> Shelter | None:
    """How a launch is shut in; None: without a model there is nobody to be shut in."""
    folder, _, packed = told.partition(b"\0")
    order, limits, name, simulate, _ = frames.unpack_order(packed)
    if not order.model or tier is Tier.NONE:
        return None
    with suppress(Unfit, *registry.BREAKAGE):  # one that does not load is told by the worker
        driver = driver or registry.load(name, simulate)
    if driver is not None and looks_outside(driver):
        return None
    network = driver is not None and opens_connections(driver)
    plan = mounts.plan(
        os.fsdecode(folder),
        order.model,
        limits.output_bytes,
        code=mounts.code_folders(),
        in_dev=os.listdir("/dev"),  # noqa: PTH208
        network=network,
        gpu=order.unit.startswith(child.UNLIMITED_UNITS),
    )
    return Shelter(Tier.PARTIAL if network else tier, plan)


def keep(
    orders: socket.socket, driver: Driver | None, tier: Tier, begun: MountPlan | None = None
) -> NoReturn:
    """Hear what is to be launched, launch it; when it ends or the parent lets go, end all that is left and say how it ended.

    `begun`: what the view will have beside the model and the folder, for the full sandbox, which is begun before the order comes.
    """
    try:
        keeper = os.getpid()
        rlimits.be_called("sark-keeper")
        os.setsid()
        rlimits.prctl(rlimits.PR_SET_CHILD_SUBREAPER, 1)
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        heard, verdict = os.pipe()
        porter, hall = 0, None
        if begun is not None:
            trouble = linux.trouble_with(linux.own_processes)
            hall, inner = socket.socketpair()
            porter = os.fork()
            if porter == 0:
                _alone(orders, hall, heard, woken, wake)
                linux.die_with_keeper(verdict)
                _attend(inner, verdict, driver, begun, trouble)
            inner.close()
        request = receive_request(orders)
        if request is None:
            os._exit(0)  # and the porter with it
        told, fds = request
        control, events, log = socket.socket(fileno=fds[0]), fds[1], fds[2]
        if hall is not None:
            with suppress(OSError):  # the porter is dead, which is told like the end of any run
                pass_on(hall, told, [events, log])
            worker = porter
        else:
            shelter = shelter_for(told, driver, tier)
            worker = os.fork()
            if worker == 0:
                _alone(orders, control, heard, woken, wake, verdict)
                rlimits.die_with(keeper)
                os.setsid()
                child.work(events, log, told, driver, shelter)
        for end in (events, log, verdict):
            os.close(end)
        with suppress(OSError):  # the parent may be gone already
            control.sendall(b"%d\n" % worker)
        status = sweep(worker, woken, await_end(control.fileno(), woken, worker))
        said = os.read(heard, linux.VERDICT.size)  # all who could write are dead
        if len(said) == linux.VERDICT.size:
            (status,) = linux.VERDICT.unpack(said)
        cleanup.remove(os.fsdecode(told.partition(b"\0")[0]))  # here, because the parent may be gone
        with suppress(OSError):
            control.sendall(b"%d\n" % status)
    finally:
        os._exit(0)


def _alone(*ends: socket.socket | int) -> None:
    """In what was just forked: the keeper's signals and its ends of everything are not for it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for end in ends:
        if isinstance(end, int):
            os.close(end)
        else:
            end.close()


def _attend(
    inner: socket.socket, verdict: int, driver: Driver | None, begun: MountPlan, trouble: str
) -> NoReturn:
    """The porter: begin the view, wait for the order, finish it, and let the worker in."""
    try:
        os.setsid()
        trouble = trouble or linux.trouble_with(lambda: linux.begin_view(begun))
        request = receive_request(inner)
        inner.close()
        if request is None:
            os._exit(0)
        told, (events, log) = request
        shelter = shelter_for(told, driver, Tier.FULL)
        assert shelter is not None
        plan = shelter.plan
        trouble = trouble or linux.trouble_with(lambda: linux.finish_view(plan))
        linux.stand_at_the_door(verdict)
        child.work(events, log, told, driver, shelter, trouble)
    finally:
        os._exit(1)


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

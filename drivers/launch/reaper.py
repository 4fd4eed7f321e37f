"""The processes between the zygote and one worker: the reaper, and in the full sandbox an init of the worker's own namespace.

    zygote ── order ──▶ reaper ── fork ──▶ worker                    on the lesser tiers
                               └─ fork ──▶ init ── fork ──▶ worker   in the full sandbox (drivers/sandbox/linux.py)

In the full sandbox the order comes after the forks, so that all three processes can be forked in advance, while nothing runs, and wait for
it: a launch then only has to mount its model and its folder. They serve one launch, and nothing of a launch exists before its order.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from drivers.contract import frames, registry
from drivers.contract.base import Driver, Unfit, WorkOrder, looks_outside, opens_connections
from drivers.launch import child
from drivers.sandbox import cleanup, enter, linux, mounts
from drivers.sandbox.enter import Sandbox, Tier
from drivers.sandbox.mounts import MountPlan

RETRY_MS: Final = 5


def sandbox_for(order_bytes: bytes, driver: Driver | None, tier: Tier) -> Sandbox | None:
    """The sandbox of a launch; None for a launch without one, such as a launch without a model."""
    folder, _, packed = order_bytes.partition(b"\0")
    order, limits, name, simulate, _ = frames.unpack_order(packed)
    if not order.model or tier is Tier.NONE:
        return None
    with suppress(Unfit, *registry.BROKEN_DRIVER_ERRORS):  # the worker reports a driver that does not load
        driver = driver or registry.load(name, simulate)
    if driver is not None and looks_outside(driver):
        return None
    network = driver is not None and opens_connections(driver)
    plan = mounts.plan(
        os.fsdecode(folder),
        models_of(order),
        limits.output_bytes,
        code=mounts.code_folders(),
        in_dev=os.listdir("/dev"),  # noqa: PTH208
        network=network,
        gpu=order.unit.startswith(child.UNLIMITED_UNITS),
    )
    return Sandbox(Tier.PARTIAL if network else tier, plan)


def models_of(order: WorkOrder) -> tuple[str, ...]:
    """The files and folders that a launch may read."""
    return (order.model, *order.beside, *([order.examples] if order.examples else []))


def fitted(base: MountPlan, order_bytes: bytes) -> MountPlan:
    """The view of a launch in the full sandbox. `base`: the view without the launch's own folder, models and size."""
    folder, _, packed = order_bytes.partition(b"\0")
    order, limits, *_ = frames.unpack_order(packed)
    return replace(base, folder=os.fsdecode(folder), models=models_of(order), size_bytes=limits.output_bytes)


def serve_launch(
    orders: socket.socket,
    driver: Driver | None,
    tier: Tier,
    base: MountPlan | None = None,
    made: socket.socket | None = None,
) -> NoReturn:
    """The reaper: receive an order and launch it. When the worker ends or the parent hangs up, kill whatever is left and report the exit
    code.

    `base`: the view without model and folder, for the full sandbox, which is prepared before the order comes. `made`: one end of a socket.
    This process and all below it close it once they wait for their order, when nothing of the view is left to make.
    """
    try:
        reaper = os.getpid()
        enter.set_process_name("sark-reaper")
        os.setsid()
        enter.prctl(enter.PR_SET_CHILD_SUBREAPER, 1)
        woken, wake = watch_children()
        status_read, status_write = os.pipe()
        init, to_init = 0, None
        if base is not None:
            trouble = linux.error_of(lambda: linux.own_processes(base))
            to_init, inner = socket.socketpair()
            init = os.fork()
            if init == 0:
                _close_inherited(orders, to_init, status_read, woken, wake)
                linux.die_with_reaper(status_write)
                _run_init(inner, status_write, driver, base, trouble, made)
            inner.close()
        if made is not None:
            made.close()
        if to_init is not None and to_init.fileno() in readable(orders, to_init):
            os._exit(0)  # without its init it cannot launch: it must get no order
        request = frames.receive_request(orders)
        if request is None:
            os._exit(0)  # and the init with it
        order_bytes, fds = request
        control, passed = socket.socket(fileno=fds[0]), fds[1:]
        if to_init is not None:
            with suppress(OSError):  # a dead init is reported like the end of any run
                frames.send_request(to_init, order_bytes, passed)
            worker = init
        else:
            sandbox = sandbox_for(order_bytes, driver, tier)
            worker = os.fork()
            if worker == 0:
                _close_inherited(orders, control, status_read, woken, wake, status_write)
                enter.die_with(reaper)
                os.setsid()
                events, log, *token = passed
                child.work(events, log, order_bytes, driver, sandbox, token=next(iter(token), None))
        for fd in (*passed, status_write):
            os.close(fd)
        with suppress(OSError):  # the parent may be gone
            control.sendall(b"%d\n" % worker)
        status = sweep(worker, woken, await_end(control.fileno(), woken, worker))
        exit_status = os.read(status_read, linux.EXIT_STATUS.size)  # all processes that could write are dead
        if len(exit_status) == linux.EXIT_STATUS.size:
            (status,) = linux.EXIT_STATUS.unpack(exit_status)
        cleanup.remove(os.fsdecode(order_bytes.partition(b"\0")[0]))  # the parent may be gone
        with suppress(OSError):
            control.sendall(b"%d\n" % status)
    finally:
        os._exit(0)


def watch_children() -> tuple[int, int]:
    """Both ends of a pipe that becomes readable when a child ends."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken, wake


def _close_inherited(*ends: socket.socket | int) -> None:
    """Drop the reaper's signal handling and close its file descriptors, in a forked process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for end in ends:
        if isinstance(end, int):
            os.close(end)
        else:
            end.close()


def _run_init(
    inner: socket.socket,
    status_write: int,
    driver: Driver | None,
    base: MountPlan,
    trouble: str,
    made: socket.socket | None,
) -> NoReturn:
    """Begin the view, fork the worker, finish the view when the order comes, and pass the order on."""
    try:
        os.setsid()
        trouble = trouble or linux.error_of(lambda: linux.begin_view(base))
        orders, to_worker = socket.socketpair()
        worker = os.fork()
        if worker == 0:
            inner.close()
            to_worker.close()
            os.close(status_write)
            _run_worker(orders, driver, base, made)
        orders.close()
        if made is not None:
            made.close()
        if to_worker.fileno() in readable(inner, to_worker):
            os._exit(0)  # and the reaper with it
        request = frames.receive_request(inner)
        if request is None:
            os._exit(0)  # and the worker with it
        order_bytes, fds = request
        plan = fitted(base, order_bytes)
        trouble = trouble or linux.error_of(lambda: linux.finish_view(plan))
        linux.die_with_reaper(status_write)  # again: another user's process loses it
        with suppress(OSError):  # a dead worker is reported like the end of any run
            frames.send_request(to_worker, os.fsencode(trouble) + b"\0" + order_bytes, fds)
        linux.await_worker(worker, status_write)
    finally:
        os._exit(1)


def _run_worker(
    orders: socket.socket, driver: Driver | None, base: MountPlan, made: socket.socket | None
) -> NoReturn:
    """Wait for the order, which comes once the view is complete, and run it."""
    if made is not None:
        made.close()
    request = frames.receive_request(orders)
    orders.close()
    if request is None:
        os._exit(0)
    payload, (events, log, *token) = request
    trouble, _, order_bytes = payload.partition(b"\0")
    plan = fitted(base, order_bytes)
    why = os.fsdecode(trouble) or linux.error_of(lambda: linux.give_up_rights(plan))
    child.work(events, log, order_bytes, driver, Sandbox(Tier.FULL, plan), why, next(iter(token), None))


def await_end(control: int, woken: int, worker: int) -> int | None:
    """Return when the worker has ended or the parent has hung up.

    Where `waitid` exists, the ended worker is not reaped, so that its process id is not reused. macOS has `waitid` only from Python 3.13
    on: before, the worker is reaped and its exit code returned.
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


def readable(*ends: socket.socket) -> set[int]:
    """Wait until some of the sockets can be read or have hung up; return their file descriptors."""
    return {fd for fd, _ in poll(*(end.fileno() for end in ends))}


def sweep(worker: int, woken: int, reaped: int | None = None) -> int:
    """Kill the worker, its group and all descendants; return the worker's exit code, negative for a signal.

    `reaped`: that code, if the worker has already been reaped. Its process id then only denotes the rest of its group.
    """
    for kill in (os.killpg, os.kill) if reaped is None else (os.killpg,):  # the group may not exist yet
        with suppress(ProcessLookupError, PermissionError):
            kill(worker, signal.SIGKILL)
    code = reaped or 0
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
        elif pid == 0:
            for orphan in _children():
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            poll(woken, timeout_ms=RETRY_MS)


def _children() -> list[int]:
    """Direct children of this single-threaded process, including adopted ones; empty where the kernel does not list them."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in text.split()]

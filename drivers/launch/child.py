"""Runs inside the measuring process: applies limits, runs one driver, sends its events through the pipe.

Nothing here returns into the code that forked it: `work` always ends the process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn

from drivers.contract import frames, registry
from drivers.contract.base import (
    MIB,
    Crashed,
    Driver,
    DriverError,
    Event,
    LoadKind,
    LoadReport,
    MeasureReport,
    OutOfMemory,
    OutputReport,
    ProgressReport,
    SampleModel,
    Unfit,
    UnitInfo,
    WaitTurn,
    WorkOrder,
    answers_examples,
    made_samples,
    makes_loads,
    working_units,
)
from drivers.contract.hardware import threads_for
from drivers.measure.stopping import NO_MODEL, MeasureJob
from drivers.sandbox import enter

NAME: Final = "sark-run"
"""Name of every process that runs a model."""
NO_SANDBOX: Final = "this device could not sandbox the run"
UNLIMITED_UNITS: Final = ("GPU", "DirectML", "Neural Engine", "TensorRT", "OpenVINO", "CoreML (ONNX)", "NPU")
"""Units whose runtimes map far more address space than they use: a limit on it would keep them from starting."""


def work(
    events: int,
    log: int,
    order_bytes: bytes,
    driver: Driver | None,
    sandbox: enter.Sandbox | None = None,
    trouble: str = "",
    token: int | None = None,
) -> NoReturn:
    """Run one launch and end the process. `events` and `log` are file descriptors; `order_bytes` is a folder's path followed by
    `frames.pack_order`.

    `driver`: the driver that the zygote has already loaded, if any. `trouble`: why the sandbox failed; the child then reports only this.
    `token`: the reading end of the pipe on which the parent gives turns.
    """
    code = 1
    try:
        enter.set_process_name(NAME)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        folder, _, order = order_bytes.partition(b"\0")
        enter.move_in(os.fsdecode(folder))
        if trouble:
            _send(events, frames.pack_failure(Crashed(f"{NO_SANDBOX}: {trouble}")))
        else:
            _serve(events, order, driver, sandbox, partial(has_turn, token))
        code = 0
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)  # no clean-up: the runtime's threads and memory end with the process


def has_turn(token: int | None) -> bool:
    """Wait for one byte, which grants one turn. The parent closes its end when there are no more turns."""
    return token is not None and bool(os.read(token, 1))


def _serve(
    events: int, order_bytes: bytes, driver: Driver | None, sandbox: enter.Sandbox | None, turn: WaitTurn
) -> None:
    order, limits, name, simulate, job = frames.unpack_order(order_bytes)
    try:
        driver = driver or registry.load(name, simulate)
        if job not in NO_MODEL:
            for (
                module
            ) in driver.preload():  # before the limits, which are to bound the model, not the imports
                importlib.import_module(module)
            unlimited = order.unit.startswith(UNLIMITED_UNITS)
            counted = sandbox is not None and sandbox.tier is enter.Tier.FULL
            enter.limit(limits, threads_for(order.threads), address_space=not unlimited, counted=counted)
            if sandbox is not None:
                enter.enter(sandbox)
        for event in events_of(driver, order, job, turn):
            _send(events, frames.pack_event(event))
    except DriverError as why:
        _send(events, frames.pack_failure(why))
    except MemoryError:
        error = OutOfMemory(f"out of memory (limit {limits.memory_bytes // MIB} MiB)")
        _send(events, frames.pack_failure(error))
    except enter.SandboxError as why:
        _send(events, frames.pack_failure(Crashed(f"{NO_SANDBOX}: {why}")))


def _send(events: int, frame: bytes) -> None:
    rest = memoryview(frame)
    while rest:
        rest = rest[os.write(events, rest) :]


def events_of(
    driver: Driver, order: WorkOrder, job: str, turn: WaitTurn
) -> Iterator[Event] | Iterable[UnitInfo | SampleModel]:
    match MeasureJob(job):
        case MeasureJob.UNITS:
            return working_units(driver)
        case MeasureJob.SAMPLES:
            return made_samples(driver)
        case MeasureJob.LOAD:
            return driver.load_only(order)
        case MeasureJob.REPEAT:
            return _timed_only(driver.run(order))
        case MeasureJob.RUN:
            return _all_events(driver, order)
        case MeasureJob.SUSTAIN:
            if getattr(driver, "sustains", False) is not True:
                raise Unfit(f"{order.unit} cannot make sustained runs: remove sustain")
            return _all_events(driver, order)
        case MeasureJob.ANSWER:
            answer = answers_examples(driver)
            if answer is None:
                raise Unfit(f"the driver {driver.name} cannot answer examples")
            return answer(order)
        case MeasureJob.ROUNDS | MeasureJob.ROUNDS_REPEAT:
            together = getattr(driver, "run_together", None)
            if together is None:
                raise Unfit(f"models on {order.unit} cannot take turns in one process")
            events: Iterator[Event] = together(order)
            return events
        case MeasureJob.TURNS | MeasureJob.TURNS_REPEAT:
            in_turns = getattr(driver, "run_in_turns", None)
            if in_turns is None:
                raise Unfit(f"models on {order.unit} cannot take turns with others")
            blocks: Iterator[Event] = in_turns(order, turn)
            return blocks


def _timed_only(events: Iterator[Event]) -> Iterator[Event]:
    """The events without the description and the check, which come from another launch. Ends with the times."""
    for event in events:
        if isinstance(event, (ProgressReport, LoadReport, OutputReport, MeasureReport)):
            yield event
        if isinstance(event, MeasureReport):
            return


def _all_events(driver: Driver, order: WorkOrder) -> Iterator[Event]:
    """All events, followed by a warm load in the same process."""
    yield from driver.run(order)
    if not makes_loads(driver):
        return
    gc.collect()  # free the first session's memory: two need not fit at once
    # a model that cannot be loaded twice has no warm load; that is not a failure
    with contextlib.suppress(DriverError, MemoryError, OSError):
        for event in driver.load_only(order):
            if isinstance(event, LoadReport):
                yield replace(event, kind=LoadKind.WARM)


# -- without fork ------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> NoReturn:
    """Read the order, watch for the parent's end in a thread, and work with stdout as the pipe for events."""
    assert not arguments
    stdin = sys.stdin.buffer
    order_bytes = stdin.read(int.from_bytes(stdin.read(frames.HEADER_BYTES), "big"))
    watched = os.dup(stdin.fileno())
    token, tokens = os.pipe()
    threading.Thread(target=_end_with_parent, args=(watched, tokens), daemon=True).start()
    work(os.dup(1), os.dup(2), order_bytes, None, token=token)


def _end_with_parent(watched: int, tokens: int) -> None:
    """Forward the turns that the parent writes, and then the end of turns (`NO_MORE_TURNS`); end this process when the parent ends."""
    while byte := os.read(watched, 1):
        if byte != frames.NO_MORE_TURNS:
            os.write(tokens, byte)
        else:
            os.close(tokens)
    if sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)
    os._exit(1)

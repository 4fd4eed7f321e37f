"""What runs inside the measuring process: limit it, run one driver, send its events up the pipe.

Nothing here returns into the code that forked it: `work` always ends the process.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Final, NoReturn

from drivers.contract import frames, registry
from drivers.contract.base import MIB, Crashed, Driver, DriverError, OutOfMemory
from drivers.contract.hardware import threads_for
from drivers.launch.events import events_of
from drivers.measure.stopping import MeasureJob
from drivers.sandbox import rlimits
from drivers.sandbox.enter import enter

NAME: Final = "sark-run"
"""The process name of everything that runs a model."""
NO_SANDBOX: Final = "this device could not sandbox the run"
UNLIMITED_UNITS: Final = ("GPU", "DirectML", "Neural Engine", "TensorRT", "OpenVINO", "CoreML (ONNX)", "NPU")
"""Units whose runtimes map far more address space than they use: a limit on it would keep them from starting."""


def work(
    events: int,
    log: int,
    order_bytes: bytes,
    driver: Driver | None,
    sandbox: rlimits.Sandbox | None = None,
    trouble: str = "",
) -> NoReturn:
    """The whole life of a worker: `events` and `log` are file descriptors, `order_bytes` is `frames.pack_order` after a folder's path.

    `driver`: the one that the zygote has loaded already, if any. `trouble`: why the sandbox has failed already, which is then all that
    is reported.
    """
    code = 1
    try:
        rlimits.set_process_name(NAME)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        folder, _, order = order_bytes.partition(b"\0")
        rlimits.move_in(os.fsdecode(folder))
        if trouble:
            _send(events, frames.pack_failure(Crashed(f"{NO_SANDBOX}: {trouble}")))
        else:
            _serve(events, order, driver, sandbox)
        code = 0
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)  # no tear-down: the runtime's threads and memory go with the process


def _serve(events: int, order_bytes: bytes, driver: Driver | None, sandbox: rlimits.Sandbox | None) -> None:
    order, limits, name, simulate, job = frames.unpack_order(order_bytes)
    try:
        driver = driver or registry.load(name, simulate)
        if job != MeasureJob.UNITS:
            for (
                module
            ) in driver.preload():  # before the limits, so that they bound the model and not the imports
                importlib.import_module(module)
            unlimited = order.unit.startswith(UNLIMITED_UNITS)
            counted = sandbox is not None and sandbox.tier is rlimits.Tier.FULL
            rlimits.limit(limits, threads_for(order.threads), address_space=not unlimited, counted=counted)
            if sandbox is not None:
                enter(sandbox)
        for event in events_of(driver, order, job):
            _send(events, frames.pack_event(event))
    except DriverError as why:
        _send(events, frames.pack_failure(why))
    except MemoryError:
        error = OutOfMemory(f"out of memory (limit {limits.memory_bytes // MIB} MiB)")
        _send(events, frames.pack_failure(error))
    except rlimits.SandboxError as why:
        _send(events, frames.pack_failure(Crashed(f"{NO_SANDBOX}: {why}")))


def _send(events: int, frame: bytes) -> None:
    rest = memoryview(frame)
    while rest:
        rest = rest[os.write(events, rest) :]

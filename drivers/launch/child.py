"""What runs inside the measuring process: confine it, run one driver, send its events up the pipe.

Nothing here returns into the code that forked it: `work` always ends the process.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Final, NoReturn

from drivers.contract import frames, registry
from drivers.contract.base import MIB, Crashed, Driver, DriverError, OutOfMemory, TimedOut, Unfit, WrongUnit
from drivers.contract.hardware import threads_for
from drivers.launch.events import answer
from drivers.measure.stopping import MeasureJob
from drivers.sandbox import rlimits
from drivers.sandbox.shut import shut

NAME: Final = "sark-run"
"""As which a process that runs a model is seen."""

NOT_SHUT_IN: Final = "this device could not shut the run in"

UNLIMITED_UNITS: Final = ("GPU", "DirectML", "Neural Engine", "TensorRT", "OpenVINO", "CoreML (ONNX)", "NPU")
"""Units whose runtimes map far more address space than they use: a limit on it would only stop them from starting."""

TELLABLE: Final = (WrongUnit, Unfit, OutOfMemory, Crashed, TimedOut)
"""What a driver may fail with, the most special first. Its name travels; what a sentence says decides nothing."""


def work(
    events: int,
    log: int,
    told: bytes,
    driver: Driver | None,
    shelter: rlimits.Shelter | None = None,
    trouble: str = "",
) -> NoReturn:
    """The whole life of a worker: `events` and `log` are file descriptors, `told` is `wire.pack_order` after a folder's path.

    `driver` is the one that the zygote has loaded already, if any. `shelter`: how it is shut in; `trouble`: why that has failed
    already, which is all that is then told.
    """
    code = 1
    try:
        rlimits.be_called(NAME)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        folder, _, order = told.partition(b"\0")
        rlimits.move_in(os.fsdecode(folder))
        if trouble:
            send(events, frames.pack_failure(Crashed.__name__, f"{NOT_SHUT_IN}: {trouble}"))
            code = 0
        else:
            code = serve(events, order, driver, shelter)
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)  # no tear-down: the runtime's threads and memory go with the process


def serve(events: int, told: bytes, driver: Driver | None, shelter: rlimits.Shelter | None = None) -> int:
    """Do what the order says and report it; the process's exit code."""
    order, limits, name, simulate, job = frames.unpack_order(told)
    try:
        driver = driver or registry.load(name, simulate)
        if job != MeasureJob.UNITS:
            for module in driver.preload():
                importlib.import_module(
                    module
                )  # before the limits, so that they bound the model and not the imports
            unlimited = order.unit.startswith(UNLIMITED_UNITS)
            counted = shelter is not None and shelter.tier is rlimits.Tier.FULL
            rlimits.limit(limits, threads_for(order.threads), address_space=not unlimited, counted=counted)
            if shelter is not None:
                shut(shelter)
        for event in answer(driver, order, job):
            send(events, frames.pack_event(event))
    except DriverError as why:
        kinds = [known.__name__ for known in TELLABLE if isinstance(why, known)]
        send(events, frames.pack_failure(kinds[0] if kinds else Crashed.__name__, str(why)))
    except MemoryError:
        words = f"out of memory (limit {limits.memory_bytes // MIB} MiB)"
        send(events, frames.pack_failure(OutOfMemory.__name__, words))
    except rlimits.SandboxError as why:
        send(events, frames.pack_failure(Crashed.__name__, f"{NOT_SHUT_IN}: {why}"))
    return 0


def send(events: int, frame: bytes) -> None:
    """Write all of it."""
    rest = memoryview(frame)
    while rest:
        rest = rest[os.write(events, rest) :]

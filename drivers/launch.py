"""Measure one order in fresh child processes, under limits enforced from outside, and never be hurt by what runs there.

    with start_zygote("onnx") as zygote:
        for event in measure(order, limits, zygote):
            …

Everything here blocks; the node calls it from a worker thread and may call `Launch.kill` from any other.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from drivers import child, registry, wire
from drivers.base import (
    MIB,
    Cancelled,
    Checked,
    Crashed,
    Described,
    DriverError,
    Event,
    Limits,
    Loaded,
    Measured,
    OutOfMemory,
    TimedOut,
    Unfit,
    UnitInfo,
    WorkOrder,
)
from drivers.plain import PlainChild
from drivers.process import Child, ZygoteProcess

FAILURES: Final[dict[str, type[DriverError]]] = {error.__name__: error for error in child.TELLABLE}
CAN_FORK: Final = sys.platform != "win32"
MAY_PRELOAD: Final = sys.platform == "linux"
"""On macOS the system's libraries may not be used on both sides of a fork, so imports happen in the child there."""
PROBE_LIMITS: Final = Limits(load_s=30, run_s=30)


class Zygote:
    """Where launches of one driver come from. Start it early; it costs nothing until its imports are done, in a process of its own.

    Keeps a preloaded process and, for GPU units, a bare one: a GPU context must not be made on one side of a fork and used on
    the other. A process that died is replaced at the next launch. Thread-safe.
    """

    def __init__(self, driver: str = "onnx", *, simulate: bool = False, can_fork: bool = CAN_FORK) -> None:
        self.driver = driver
        self.simulate = simulate
        self._can_fork = can_fork
        self._lock = threading.Lock()
        self._processes: dict[bool, ZygoteProcess] = {}

    def start(self) -> Self:
        """Start the preloaded process now rather than at the first launch."""
        if self._can_fork:
            self._process(preload=MAY_PRELOAD)
        return self

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of what is running for it."""
        return tuple(process.pid for process in self._processes.values())

    def launch(self, order: WorkOrder, limits: Limits, job: str) -> Child:
        """Fork one launch. `job`: `run`, `load` or `units`."""
        told = wire.pack_order(order, limits, self.driver, self.simulate, job)
        if not self._can_fork:
            return PlainChild(told, limits.output_bytes)
        preload = MAY_PRELOAD and job != "units" and not order.unit.startswith(child.UNLIMITED_UNITS)
        return self._process(preload).fork(told, limits.output_bytes)

    def _process(self, preload: bool) -> ZygoteProcess:
        with self._lock:
            running = self._processes.get(preload)
            if running is not None and running.alive:
                return running
            if running is not None:
                running.close()
            self._processes[preload] = started = ZygoteProcess(self.driver, self.simulate, preload)
            return started

    def close(self) -> None:
        """End the processes. Launches still running are not waited for, but they end with this process at the latest."""
        with self._lock:
            while self._processes:
                self._processes.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_zygote(driver: str = "onnx", *, simulate: bool = False) -> Zygote:
    """Begin importing the driver's runtime in a process of its own; close it (or leave the `with`) to end it."""
    return Zygote(driver, simulate=simulate).start()


class Launch:
    """All launches of one order: `loads - 1` that only load, then one that loads and runs. Use once."""

    def __init__(self, order: WorkOrder, limits: Limits, zygote: Zygote) -> None:
        self._order = replace(order, model=str(Path(order.model).absolute()))
        self._limits = limits
        self._zygote = zygote
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._cancelled = False

    def events(self) -> Iterator[Event]:
        """Everything that happens, in order: `Loaded` × loads, then `Described`, `Measured` and `Checked` once each.

        Raises `Unfit`, `Crashed`, `TimedOut`, or `Cancelled` after `kill`. No process is left behind, however it ends.
        """
        if self._order.loads < 1 or self._order.runs < 1:
            raise Unfit(f"runs ({self._order.runs}) and loads ({self._order.loads}) must be at least 1")
        for _ in range(self._order.loads - 1):
            yield from self._one("load", {Loaded: 1})
        yield from self._one("run", {Loaded: 1, Described: 1, Measured: 1, Checked: 1})

    def kill(self) -> None:
        """End the launch with every process below it; returns when they are gone. From any thread, any number of times."""
        with self._lock:
            self._cancelled = True
            running = self._child
        if running is not None:
            running.kill()

    def _one(self, job: str, expected: dict[type, int]) -> Iterator[Event]:
        with self._lock:
            if self._cancelled:
                raise Cancelled("the run was cancelled")
            self._child = running = self._zygote.launch(self._order, self._limits, job)
        clock = _Deadlines(self._limits, time.monotonic)
        told: tuple[str, str] | None = None
        why: DriverError | None = None
        counts = dict.fromkeys(expected, 0)
        words = ""
        try:
            for payload in running.frames(clock.deadline):
                said = wire.unpack(payload)
                if isinstance(said, tuple):
                    told = said
                elif isinstance(said, UnitInfo):
                    raise wire.Garbled("it offered a unit where an event was due")
                else:
                    counts[type(said)] = counts.get(type(said), 0) + 1
                    if isinstance(said, Measured) and len(said.samples_ns) != self._order.runs:
                        raise wire.Garbled(f"{len(said.samples_ns)} samples for {self._order.runs} runs")
                    if isinstance(said, Loaded):
                        clock.loaded()
                    yield said
        except TimeoutError:
            why = TimedOut(f"{clock.exceeded()}; killed with everything below it")
        except wire.Garbled as nonsense:
            why = Crashed(f"driver {self._zygote.driver!r} broke its contract: {nonsense}")
        finally:
            words = running.close()
        if self._cancelled:
            raise Cancelled("the run was cancelled")
        if why is None and told is not None:
            why = FAILURES.get(told[0], Crashed)(told[1])
        if why is None and running.code != 0:
            why = death(running.code, words, self._limits)
        if why is None and any(counts[kind] != times for kind, times in expected.items()):
            missing = ", ".join(
                f"{counts[kind]} × {kind.__name__}" for kind in expected if counts[kind] != expected[kind]
            )
            why = Crashed(f"driver {self._zygote.driver!r} broke its contract: it ended with {missing}")
        if why is not None:
            raise why


class _Deadlines:
    """`load_s` until the load is over, then `run_s` for the rest."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._loading = True
        self._until = clock() + limits.load_s

    def deadline(self) -> float:
        return self._until

    def loaded(self) -> None:
        if self._loading:
            self._loading = False
            self._until = self._clock() + self._limits.run_s

    def exceeded(self) -> str:
        if self._loading:
            return f"still loading after its limit of {self._limits.load_s:g} s"
        return f"still running after its limit of {self._limits.run_s:g} s"


def death(code: int | None, words: str, limits: Limits) -> Crashed:
    """How a process died, in one line: its exit code (negative for a signal), the last line it printed, a likely reason."""
    if code is None:
        end = "the process vanished"
    elif code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        end = f"killed by {name}"
    else:
        end = f"exit code {code}"
    starved = any(hint in words for hint in ("bad_alloc", "Cannot allocate memory", "MemoryError"))
    if starved:
        end += f", out of memory (limit {limits.memory_bytes // MIB} MiB)"
    last = words.splitlines()[-1].strip() if words else ""
    return (OutOfMemory if starved else Crashed)(f"{end}: {last}" if last else end)


def measure(order: WorkOrder, limits: Limits, zygote: Zygote) -> Iterator[Event]:
    """`Launch.events` for a caller that never cancels."""
    return Launch(order, limits, zygote).events()


@dataclass(frozen=True, slots=True)
class Probed:
    """The units that work here, and one line for each driver that does not."""

    units: tuple[UnitInfo, ...]
    troubles: tuple[str, ...]


def probe_units(simulate: bool = False, can_fork: bool = CAN_FORK) -> Probed:
    """Try every installed driver in a child of its own. Takes about a second for each runtime: callers keep the answer."""
    units: list[UnitInfo] = []
    troubles: list[str] = []
    for name in registry.names(simulate):
        try:
            with Zygote(name, simulate=simulate, can_fork=can_fork) as zygote:
                units.extend(_units_of(zygote))
        except DriverError as why:
            troubles.append(f"driver {name!r}: {why}")
    return Probed(tuple(units), tuple(troubles))


def _units_of(zygote: Zygote) -> list[UnitInfo]:
    running = zygote.launch(WorkOrder(model="", unit=""), PROBE_LIMITS, "units")
    until = time.monotonic() + PROBE_LIMITS.load_s
    found: list[UnitInfo] = []
    words = ""
    try:
        for payload in running.frames(lambda: until):
            said = wire.unpack(payload)
            if isinstance(said, tuple):
                raise FAILURES.get(said[0], Crashed)(said[1])
            if not isinstance(said, UnitInfo):
                raise wire.Garbled("an event where a unit was due")
            found.append(said)
    except TimeoutError:
        raise TimedOut(f"no answer within {PROBE_LIMITS.load_s:g} s") from None
    except wire.Garbled as nonsense:
        raise Crashed(f"it broke its contract: {nonsense}") from nonsense
    finally:
        words = running.close()
    if running.code != 0:
        raise death(running.code, words, PROBE_LIMITS)
    return found

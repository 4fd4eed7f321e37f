"""A driver that plays a script instead of a model: for tests and demonstrations, never for figures. Offered only while simulation is on.

The model file is a JSON object; every key is optional:

    {"load_ms": 2.0, "latencies_ms": [1.0, 1.5], "sleep": true, "agrees": true,
     "fail": {"phase": "load" | "warm-up" | "run" | "check", "error": "unfit" | "crash" | "signal" | "nonsense", "why": "…",
              "repeats_only": true},
     "hang": "load" | "run", "eat_mib": 512, "orphan": true, "print": "…"}

- `load_ms`, `latencies_ms`: the reported times in milliseconds; latencies are repeated for `order.runs` inferences, or `WINDOW_RUNS` for a
  window of time. `sleep`: also take that long.
- `fail`: fail in a phase; `repeats_only`: not in the first launch. `hang`: never return from a phase. `eat_mib`: MiB to allocate.
- `orphan`: leave a double-forked process behind. `print`: text for stderr.
- `kinds`: other values by kind of simulated device: `{"kinds": {"phone": {"latencies_ms": [9]}}}`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import (
    MIB,
    CheckReport,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OutputReport,
    ProgressReport,
    ReadyReport,
    SketchReport,
    TurnReport,
    Unfit,
    UnitInfo,
    WaitTurn,
    WorkOrder,
    WrongUnit,
)
from drivers.measure.interleave import block_of
from protocol.formats.chain import SUMS
from protocol.formats.phase import Phase

UNIT: Final = "Fake (Simulation)"
ANNOUNCED: Final = "simulation: these figures come from a script, no model ran"
FOREVER_S: Final = 3600
WINDOW_RUNS: Final = 20
REPORT_S: Final = 0.25
"""Time between two progress reports while a script sleeps."""
KEYS: Final = frozenset(
    {"load_ms", "latencies_ms", "sleep", "agrees", "fail", "hang", "eat_mib", "orphan", "print", "kinds"}
)
KIND: Final = "SARK_FAKE_KIND"
"""Environment variable with the kind of the simulated device."""


class FakeDriver:
    """See `drivers.contract.base.Driver`."""

    name = "fake"

    def preload(self) -> tuple[str, ...]:
        return ()

    def units(self) -> tuple[UnitInfo, ...]:
        """One unit, which says that it is simulated."""
        return (UnitInfo(UNIT, self.name, "script", ANNOUNCED),)

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """Report a load that took `load_ms`."""
        if order.unit != UNIT:
            raise WrongUnit(f"asked for {order.unit}, this driver only has {UNIT}")
        script = read_script(order.model)
        yield ProgressReport(Phase.PREPARE)
        yield ProgressReport(Phase.LOAD)
        _act(script, Phase.LOAD, order)
        load_ms = float(script.get("load_ms", 1.0))
        _pause(script, load_ms)
        yield LoadReport(round(load_ms * 1e6), None, None)

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Report a load, then exactly the scripted times."""
        yield from self.load_only(order)
        script = read_script(order.model)
        latencies = _latencies(script)
        runs = order.runs if order.window_s is None else WINDOW_RUNS
        warmup = order.warmup_floor if order.warmup is None else max(1, order.warmup)
        yield self._described(order)
        yield ProgressReport(Phase.WARM_UP, warmup, warmup)
        _act(script, Phase.WARM_UP, order)
        samples: list[int] = []
        reported = time.perf_counter()
        for done, latency in enumerate(itertools.islice(itertools.cycle(latencies), runs), start=1):
            _pause(script, latency)
            samples.append(round(latency * 1e6))
            if done in (1, runs // 2, runs) or time.perf_counter() - reported > REPORT_S:
                reported = time.perf_counter()
                yield ProgressReport(Phase.RUN, done, runs, latency)
        _act(script, Phase.RUN, order)
        wall = sum(samples) / 1e9
        if order.witnessed:
            yield scripted_outputs(order)
        yield MeasureReport(tuple(samples), (samples[0],) * warmup, wall, wall, None, 0, None)
        yield ProgressReport(Phase.CHECK)
        _act(script, Phase.CHECK, order)
        yield _checked(script, order)

    def run_in_turns(self, order: WorkOrder, has_turn: WaitTurn) -> Iterator[Event]:
        """Report blocks of exactly the scripted times. Only with `sleep` do they really take this long; otherwise the parent rejects
        them."""
        yield from self.load_only(order)
        script = read_script(order.model)
        latencies = _latencies(script)
        ready = ReadyReport(max(1, round(latencies[0] * 1e6)), ())
        count = block_of(ready.typical_ns)
        times = itertools.cycle(latencies)
        yield ProgressReport(Phase.WARM_UP)
        _act(script, Phase.WARM_UP, order)
        yield ready
        blocks: list[int] = []
        while has_turn():
            _act(script, Phase.RUN, order)
            block_ms = sum(itertools.islice(times, count))
            _pause(script, block_ms)
            blocks.append(round(block_ms * 1e6))
            yield TurnReport(blocks[-1], None)
        wall = sum(blocks) / 1e9
        per_inference = tuple(round(block / count) for block in blocks)
        yield MeasureReport(per_inference, (ready.typical_ns,), wall, wall, None, 0, None, count)
        if not order.brief:
            yield self._described(order)
            yield ProgressReport(Phase.CHECK)
            _act(script, Phase.CHECK, order)
            yield _checked(script, order)

    def _described(self, order: WorkOrder) -> ModelDescription:
        threads, notes = order.threads or 1, (ANNOUNCED,)
        return ModelDescription(
            UNIT, self.name, "script", (UNIT,), threads, {}, {}, order.seed, notes, batch=order.batch
        )


def _latencies(script: Mapping[str, Any]) -> list[float]:
    return [float(ms) for ms in script.get("latencies_ms", [1.0])]


def _checked(script: Mapping[str, Any], order: WorkOrder) -> CheckReport:
    agrees = bool(script.get("agrees", True)) if order.check else None
    why = "" if agrees else "the script says so"
    return CheckReport(agrees, hashlib.sha256(Path(order.model).read_bytes()).hexdigest(), None, None, why)


def scripted_outputs(order: WorkOrder) -> OutputReport:
    """Outputs that follow from the script and the seed: equal on every device."""
    drawn = hashlib.sha256(Path(order.model).read_bytes() + f"/{order.seed}".encode())
    signs = int.from_bytes(drawn.digest()[:4], "big")
    sums = struct.pack(f">{SUMS}f", *(0.25 if signs >> at & 1 else -0.25 for at in range(SUMS)))
    return OutputReport(drawn.hexdigest(), (SketchReport("float32", SUMS, 1.0, sums.hex()),))


def read_script(path: str, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The model file as a script, with the values of this kind of device. Raises `Unfit`."""
    try:
        script = json.loads(Path(path).read_bytes())
    except OSError as why:
        raise Unfit(f"model {path}: {why.strerror}") from why
    except ValueError as why:
        raise Unfit(f"model {path} is not a script in JSON: {why}") from why
    if not isinstance(script, dict) or not script.keys() <= KEYS:
        raise Unfit(f"model {path} is not a script: its keys may be {', '.join(sorted(KEYS))}")
    kinds = script.pop("kinds", {})
    own = kinds.get(environment.get(KIND, ""), {}) if isinstance(kinds, dict) else None
    if not isinstance(own, dict) or not own.keys() <= KEYS - {"kinds"}:
        raise Unfit(f"model {path} is not a script: kinds hold scripts by kind of device")
    return {**script, **own}


def _pause(script: dict[str, Any], ms: float) -> None:
    if script.get("sleep"):
        time.sleep(ms / 1000)


def _act(script: dict[str, Any], phase: Phase, order: WorkOrder) -> None:
    """Fail, hang or allocate memory as the script says for this phase."""
    if phase is Phase.LOAD:
        sys.stderr.write(str(script.get("print", "")))
        sys.stderr.flush()
        if script.get("orphan"):
            _leave_orphan()
    if phase is Phase.RUN and (mib := script.get("eat_mib")):
        memory = [bytearray(MIB) for _ in range(int(mib))]
        del memory
    if script.get("hang") == phase:
        time.sleep(FOREVER_S)
    failure = script.get("fail") or {}
    if failure.get("phase") == phase and (order.brief or not failure.get("repeats_only")):
        why = str(failure.get("why", "scripted failure"))
        if failure.get("error") == "unfit":
            raise Unfit(why)
        if failure.get("error") == "signal":
            os.kill(os.getpid(), signal.SIGSEGV if sys.platform != "win32" else signal.SIGTERM)
        if failure.get("error") == "nonsense":
            raise _Nonsense(why)
        os._exit(7)


class _Nonsense(Exception):
    """An error outside the contract."""


def _leave_orphan() -> None:
    """Start a process that leaves its group and its parent, as a hostile model might."""
    if sys.platform == "win32" or os.fork():
        return
    os.setsid()
    if os.fork() == 0:
        time.sleep(FOREVER_S)
    os._exit(0)

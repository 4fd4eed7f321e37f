"""The accelerator while it is measured: readings by a process apart, cut out where inferences were timed.

    sampler = Sampler(gpu)                  a process at the lowest priority asks NVML every 30 ms and writes down what it is told
    sampler.start()                         … and has seen the device idle when this returns
    (launches: Measured.began_ns, wall_s)
    sampler.stop(windows) ─▶ Telemetry      the readings inside the windows, summed up by a pure function; None: no NVML here

Both sides read `time.perf_counter_ns`, which is the same clock for all processes of a host. The measured process knows nothing of this
one: no thread runs beside its loop.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final, Protocol

from drivers.contract.base import Telemetry
from drivers.contract.boot import boot_command, clean_environment
from drivers.measure.gpu import told, words
from drivers.measure.readings import TelemetryReading, Window, summarise

EVERY_S: Final = 0.03
IDLE_READINGS: Final = 5
"""So many before `start` returns: the device before anything of the run is on it."""
READY_S: Final = 5.0
"""As long as NVML may take to open."""
END_S: Final = 2.0
MAX_BYTES: Final = 64 * 1024 * 1024
# -- the process that reads ----------------------------------------------------------------------------------------------


def read(nvml: Any, handle: Any) -> TelemetryReading:
    """Ask the device once."""
    at_ns = time.perf_counter_ns()
    used = told(nvml, "nvmlDeviceGetUtilizationRates", handle)
    memory = told(nvml, "nvmlDeviceGetMemoryInfo", handle)
    power = told(nvml, "nvmlDeviceGetPowerUsage", handle)
    energy = told(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle)
    clock = told(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM)
    temperature = told(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
    slowed = told(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if slowed is None:  # its name before driver 535
        slowed = told(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    processes = told(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
    return TelemetryReading(
        at_ns=at_ns,
        utilisation=used.gpu / 100 if used is not None else None,
        memory=int(memory.used) if memory is not None else None,
        by_process={
            int(one.pid): int(one.usedGpuMemory) for one in processes if one.usedGpuMemory is not None
        },
        power_w=power / 1000 if power is not None else None,
        energy_j=energy / 1000 if energy is not None else None,
        clock_mhz=float(clock) if clock is not None else None,
        temperature_c=float(temperature) if temperature is not None else None,
        slowed=int(slowed or 0),
    )


def main(arguments: Sequence[str]) -> None:
    """Read until standard input ends: the device's name as the first line, then a line of JSON for each reading.

    `arguments`: which GPU, seconds between readings, path of a module in place of pynvml. Says `ready` on stderr once it knows
    the idle device, and nothing at all where there is no such GPU.
    """
    which, every, module = arguments
    _be_last()
    nvml = _library(module)
    try:
        nvml.nvmlInit()
        handle = _handle(nvml, which)
        name = words(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError:
        return
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    out = sys.stdout
    out.write(json.dumps(name) + "\n")
    count = written = 0
    while not ended.is_set() and written < MAX_BYTES:
        written += out.write(json.dumps(asdict(read(nvml, handle))) + "\n")
        count += 1
        if count == IDLE_READINGS:
            out.flush()
            sys.stderr.write("ready\n")
            sys.stderr.flush()
        ended.wait(float(every))
    out.write(
        json.dumps(asdict(read(nvml, handle))) + "\n"
    )  # so that the counter is known after the last window
    out.flush()


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.buffer.read()
    ended.set()


def _be_last() -> None:
    """Whatever else wants the processor goes first."""
    if sys.platform == "win32":
        import psutil

        psutil.Process().nice(psutil.IDLE_PRIORITY_CLASS)
    else:
        os.nice(19)


def _library(path: str) -> Any:
    if not path:
        return importlib.import_module("pynvml")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _handle(nvml: Any, which: str) -> Any:
    """The GPU by UUID or index; empty: the first."""
    if which and not which.isdigit():
        return nvml.nvmlDeviceGetHandleByUUID(which)
    return nvml.nvmlDeviceGetHandleByIndex(int(which or 0))


# -- its parent ----------------------------------------------------------------------------------------------------------


class Sampling(Protocol):
    """What is needed of a `Sampler`."""

    def start(self) -> bool:
        """Begin to read. False: there is nothing to read."""
        ...

    def stop(self, windows: Sequence[Window]) -> Telemetry | None:
        """End it and sum up the windows; None: nothing was read in them. However the run ended, and again without harm."""
        ...


class Sampler:
    """Readings of one GPU while something runs. Use once; `stop` always, however the run ends. Never raises for a GPU that is not there.

    `gpu`: UUID or index as in `WorkOrder.gpu`; `module`: path of a module in place of pynvml.
    """

    def __init__(self, gpu: str = "", *, every_s: float = EVERY_S, module: str = "") -> None:
        self._command = boot_command("measure.telemetry", gpu, str(every_s), module)
        self._process: subprocess.Popen[bytes] | None = None
        self._file: IO[bytes] | None = None
        self._began_ns = 0

    def start(self) -> bool:
        """Begin to read; returns when the idle device has been seen (a fifth of a second), or False where there is nothing to read."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives until stop()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=self._file,
                stderr=subprocess.PIPE,
                env=clean_environment(os.environ),
            )
        except OSError:
            return False
        said: list[bytes] = []
        errors = self._process.stderr
        assert errors is not None
        hearer = threading.Thread(target=lambda: said.append(errors.readline()), daemon=True)
        hearer.start()
        hearer.join(READY_S)
        ready = said == [b"ready\n"]
        if not ready:
            self._end()
        self._began_ns = time.perf_counter_ns()
        return ready

    def stop(self, windows: Sequence[Window], pids: Collection[int] = ()) -> Telemetry | None:
        """End it and sum up the windows (`windows_of`). None: no GPU that tells, or no window. Again: None."""
        self._end()
        if self._file is None:
            return None
        with self._file as file:
            self._file = None
            file.seek(0)
            device, readings = parse(file.read(MAX_BYTES))
        return summarise(readings, windows, device=device, began_ns=self._began_ns, pids=pids)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stderr is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stderr.close()


def parse(written: bytes) -> tuple[str, list[TelemetryReading]]:
    """The device's name and the readings; a last line that was cut short is left out."""
    name, *rows = written.split(b"\n")
    readings = []
    for row in rows:
        try:
            values = json.loads(row)
        except ValueError:
            continue
        values["by_process"] = {int(pid): held for pid, held in values["by_process"].items()}
        readings.append(TelemetryReading(**values))
    return (json.loads(name) if name else ""), readings

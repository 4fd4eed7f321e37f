"""The sensors of this device, read every few seconds while tasks run. See `protocol.values.reading`.

    sensors = DeviceMonitor().open()
    sensors.read()                  a DeviceReading; blocks for about a millisecond

The worker's process reads the sensors, never the process that is timed; `benchmarks/measuring/live_readings.py` measures the cost.
Processor and memory are read with psutil, temperature and power from Linux's files (`drivers.measure.host`, `drivers.measure.meters`), GPUs
with NVML or from amdgpu's files. On macOS only root's powermetrics shows power, which is left to the measured runs.

https://www.kernel.org/doc/html/latest/gpu/amdgpu/thermal.html, https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil

from drivers.measure.host import HostReader, whole
from drivers.measure.meters import MeterReading, find_meters
from drivers.measure.nvml import NvmlDevice, devices, initialised, query, visible
from node.device import probe_parsers
from protocol.values.reading import MAX_GPUS, DeviceReading, GpuReading, Sensor

T = TypeVar("T")
_NOT_BUSY: Final = ("idle", "iowait", "steal")
_COUNTED_TWICE: Final = ("guest", "guest_nice", "interrupt", "dpc")
"""Fields that are also counted in `user`, `nice` and (on Windows) `system`."""


def load_nvml() -> Any:
    """pynvml; None: it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


@dataclass(frozen=True)
class DeviceMonitor:
    """The sensors that this device can show."""

    root: Path = Path("/")
    """The root of the system's files."""
    nvml: Callable[[], Any] = load_nvml
    """Returns pynvml, a double, or None."""
    cpu_times: Callable[[], Any] = psutil.cpu_times
    memory: Callable[[], Any] = psutil.virtual_memory
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Callable[[], int] = time.perf_counter_ns
    """Nanoseconds."""
    gpus: tuple[int, ...] | None = None
    """Numbers of the GPUs shown, as `drivers.measure.gpu.find_gpus` counts them; None: all."""

    def open(self) -> OpenSensors:
        """The opened sensors, with counters that begin now. The caller must close them. Blocking. Raises OSError."""
        with contextlib.ExitStack() as stack:
            opened = OpenSensors(self, self._open_gpus(stack))
            opened.files = stack.pop_all()
            return opened

    def sensors(self) -> tuple[Sensor, ...]:
        """The working sensors, in a fixed order. Blocking."""
        with contextlib.closing(self.open()) as opened:
            return opened.working()

    def _open_gpus(self, stack: contextlib.ExitStack) -> Callable[[], tuple[GpuReading, ...]]:
        library = self.nvml()
        if library is not None:
            with contextlib.suppress(library.NVMLError):
                stack.enter_context(initialised(library))
                present = self._chosen(visible(devices(library), self.environ))
                if present:
                    return lambda: tuple(_nvidia(library, one) for one in present)
        chips = sorted((self.root / "sys/class/hwmon").glob("*"))
        cards = self._chosen([one for one in chips if _word(one / "name") == "amdgpu"])
        return lambda: tuple(map(_amd, cards))

    def _chosen(self, present: Sequence[T]) -> tuple[T, ...]:
        numbers = range(len(present)) if self.gpus is None else self.gpus
        return tuple(present[number] for number in numbers if number < len(present))[:MAX_GPUS]


class OpenSensors:
    """Made by `DeviceMonitor.open`. All methods block."""

    files: contextlib.ExitStack
    """Closed with the sensors."""

    def __init__(self, monitor: DeviceMonitor, gpus: Callable[[], tuple[GpuReading, ...]]) -> None:
        self._monitor, self._gpus = monitor, gpus
        self._host = HostReader(monitor.root)
        meters = find_meters(monitor.root, gpu=False, clock=monitor.clock)
        self._packages = [meter for meter in meters if meter.part == "package"]
        self._times, self._energy = _cpu(monitor.cpu_times()), self._joules()

    def read(self) -> DeviceReading:
        """Read all sensors; shares and power are means since the previous reading, or since the sensors were opened. Raises OSError."""
        times, energy = _cpu(self._monitor.cpu_times()), self._joules()
        cpu, power_w = _share(self._times, times), _watts(self._energy, energy)
        self._times, self._energy = times, energy
        return DeviceReading(
            cpu=cpu,
            memory=used_memory(self._monitor.root, self._monitor.memory()),
            temperature_c=self._host.temperature_c(),
            power_w=_between(power_w, 0, 100_000),
            gpus=self._gpus(),
        )

    def working(self) -> tuple[Sensor, ...]:
        """The sensors that give values."""
        now = self.read()
        shown = {
            Sensor.CPU: self._times[1] > 0,
            Sensor.MEMORY: now.memory is not None,
            Sensor.TEMPERATURE: now.temperature_c is not None,
            Sensor.POWER: self._energy is not None,
            Sensor.GPU: any(one.utilisation is not None for one in now.gpus),
            Sensor.VRAM: any(one.memory is not None for one in now.gpus),
            Sensor.GPU_TEMPERATURE: any(one.temperature_c is not None for one in now.gpus),
            Sensor.GPU_POWER: any(one.power_w is not None for one in now.gpus),
        }
        return tuple(sensor for sensor, works in shown.items() if works)

    def close(self) -> None:
        """Close the sensors. Call this once."""
        self.files.close()

    def _joules(self) -> tuple[MeterReading, ...] | None:
        """The energy reading of each package; None: not all packages give one."""
        readings = tuple(reading for meter in self._packages if (reading := meter.read()) is not None)
        return readings if readings and len(readings) == len(self._packages) else None


def used_memory(root: Path, machine: Any) -> int | None:
    """Bytes in use on the machine, or in this process's container if its limit is lower. `machine`: the memory as psutil gives it."""
    group = probe_parsers.cgroup_of(_text(root / "proc/self/cgroup"))
    for folder in (root / "sys/fs/cgroup", *(root / "sys/fs/cgroup" / part for part in group)):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None and limit < machine.total:
            stat = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").splitlines())
            return max(0, used - int(stat.get("inactive_file", 0)))
    return max(0, int(machine.total - machine.available)) or None


def _cpu(times: Any) -> tuple[float, float]:
    """(busy seconds, all seconds) of all processors. `times`: as psutil gives them. Time taken by the hypervisor does not count as busy."""
    fields = times._asdict()
    total = sum(value for name, value in fields.items() if name not in _COUNTED_TWICE)
    return total - sum(fields.get(name, 0.0) for name in _NOT_BUSY), total


def _share(before: tuple[float, float], after: tuple[float, float]) -> float | None:
    total = after[1] - before[1]
    return min(1.0, max(0.0, (after[0] - before[0]) / total)) if total > 0 else None


def _watts(before: tuple[MeterReading, ...] | None, after: tuple[MeterReading, ...] | None) -> float | None:
    """The mean power of all packages between two readings."""
    if before is None or after is None:
        return None
    total = 0.0
    for first, last in zip(before, after, strict=True):
        seconds = (last.at_ns - first.at_ns) / 1e9
        if first.joules is None or last.joules is None or seconds <= 0:
            return None
        total += (last.joules - first.joules) / seconds
    return total


def _nvidia(nvml: Any, device: NvmlDevice) -> GpuReading:
    """The reading of an NVIDIA GPU. For an instance of a divided GPU only its memory, because heat and power are the whole GPU's."""
    handle = device.handle
    memory = query(nvml, "nvmlDeviceGetMemoryInfo", handle)
    used = None if memory is None else int(memory.used)
    if device.whole is not None:
        return GpuReading(memory=used)
    rates = query(nvml, "nvmlDeviceGetUtilizationRates", handle)
    power_mw = query(nvml, "nvmlDeviceGetPowerUsage", handle)
    celsius = query(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
    return _gpu(
        None if rates is None else rates.gpu / 100,
        used,
        celsius,
        None if power_mw is None else power_mw / 1e3,
    )


def _amd(chip: Path) -> GpuReading:
    percent, milli_c = _number(chip / "device/gpu_busy_percent"), _number(chip / "temp1_input")
    files = (chip / "power1_average", chip / "power1_input")
    microwatts = next((value for file in files if (value := _number(file)) is not None), None)
    return _gpu(
        None if percent is None else percent / 100,
        _number(chip / "device/mem_info_vram_used"),
        None if milli_c is None else milli_c / 1e3,
        None if microwatts is None else microwatts / 1e6,
    )


def _gpu(
    utilisation: float | None, memory: int | None, temperature_c: float | None, power_w: float | None
) -> GpuReading:
    """A GPU reading, with impossible values left out: a broken sensor gives no value."""
    return GpuReading(
        utilisation=_between(utilisation, 0, 1),
        memory=None if memory is None else max(0, memory),
        temperature_c=_between(temperature_c, -100, 200),
        power_w=_between(power_w, 0, 100_000),
    )


def _between(value: float | None, low: float, high: float) -> float | None:
    return float(value) if value is not None and low <= value <= high else None


def _number(path: Path) -> int | None:
    return whole(_text(path).encode())


def _word(path: Path) -> str:
    return _text(path).strip()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""

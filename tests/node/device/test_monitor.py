"""The device's sensors: each available sensor is read in its unit, and missing ones stay unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from node.device.monitor import DeviceMonitor, used_memory
from protocol.values.reading import DeviceReading, GpuReading, Sensor
from tests.drivers.measure.test_gpu import Nvml

GIB = 2**30


def write(root: Path, **files: object) -> None:
    """`sys__a__b=1` writes `sys/a/b`."""
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


class Times(SimpleNamespace):
    def _asdict(self) -> dict[str, float]:
        return vars(self)


class Machine:
    """Doubles for psutil and the clock."""

    def __init__(self) -> None:
        self.ns = 0
        self.times = Times(user=10.0, system=0.0, idle=100.0, iowait=0.0, steal=0.0, guest=5.0)
        self.memory = SimpleNamespace(total=8 * GIB, available=5 * GIB)

    def monitor(self, root: Path, nvml: Any = None, environ: dict[str, str] | None = None) -> DeviceMonitor:
        return DeviceMonitor(
            root=root,
            nvml=lambda: nvml,
            cpu_times=lambda: Times(**vars(self.times)),
            memory=lambda: self.memory,
            environ=environ or {},
            clock=lambda: self.ns,
        )


def test_a_device_without_sensors_tells_of_processor_and_memory_and_nothing_is_zero(tmp_path: Path) -> None:
    machine = Machine()
    monitor = machine.monitor(tmp_path)
    assert monitor.sensors() == (Sensor.CPU, Sensor.MEMORY)
    sensors = monitor.open()
    machine.times.user += 3.0  # of which 1 in a guest
    machine.times.guest += 1.0
    machine.times.idle += 5.0
    machine.times.iowait += 1.0
    machine.times.steal += 1.0
    reading = sensors.read()
    assert reading == DeviceReading(cpu=0.3, memory=3 * GIB)
    assert (reading.temperature_c, reading.power_w, reading.gpus) == (None, None, ())
    assert sensors.read().cpu is None, "no time has passed: nothing is known of it"


def test_power_is_the_mean_of_all_packages_since_the_reading_before(tmp_path: Path) -> None:
    zone = "sys__class__powercap__intel-rapl:"
    for number in (0, 1):
        write(
            tmp_path,
            **{f"{zone}{number}__name": f"package-{number}", f"{zone}{number}__energy_uj": 5_000_000},
        )
    write(tmp_path, **{f"{zone}0:0__name": "dram", f"{zone}0:0__energy_uj": 1})
    machine = Machine()
    monitor = machine.monitor(tmp_path)
    assert Sensor.POWER in monitor.sensors()
    sensors = monitor.open()
    machine.ns = 2_000_000_000
    write(tmp_path, **{f"{zone}0__energy_uj": 25_000_000, f"{zone}1__energy_uj": 35_000_000})
    assert sensors.read().power_w == 25.0
    (tmp_path / zone.replace("__", "/").rstrip(":")).parent.joinpath("intel-rapl:1/energy_uj").unlink()
    machine.ns = 4_000_000_000
    assert sensors.read().power_w is None, "half of the device is not the device"


def test_the_processors_own_zone_is_its_temperature(tmp_path: Path) -> None:
    zone = "sys__class__thermal__thermal_zone"
    write(tmp_path, **{f"{zone}0__type": "acpitz", f"{zone}0__temp": 90_000})
    write(tmp_path, **{f"{zone}1__type": "x86_pkg_temp", f"{zone}1__temp": 71_500})
    monitor = Machine().monitor(tmp_path)
    assert monitor.open().read().temperature_c == 71.5
    assert Sensor.TEMPERATURE in monitor.sensors()


def test_an_amd_gpu_is_read_from_the_kernels_files_and_a_broken_sensor_tells_nothing(tmp_path: Path) -> None:
    chip = "sys__class__hwmon__hwmon3__"
    write(
        tmp_path,
        **{
            f"{chip}name": "amdgpu",
            f"{chip}device__gpu_busy_percent": 97,
            f"{chip}device__mem_info_vram_used": 3 * GIB,
            f"{chip}temp1_input": 61_000,
            f"{chip}power1_input": 150_000_000,
        },
    )
    monitor = Machine().monitor(tmp_path)
    good = GpuReading(utilisation=0.97, memory=3 * GIB, temperature_c=61.0, power_w=150.0)
    assert monitor.open().read().gpus == (good,)
    write(tmp_path, **{f"{chip}temp1_input": -273_000_000, f"{chip}device__gpu_busy_percent": 255})
    (broken,) = monitor.open().read().gpus
    assert broken == GpuReading(memory=3 * GIB, power_w=150.0)
    assert set(monitor.sensors()) >= {Sensor.VRAM, Sensor.GPU_POWER}
    assert Sensor.GPU not in monitor.sensors()


def two_gpus(*silent: str, broken: bool = False) -> Nvml:
    """Two GPUs that do not support the functions in `silent`."""
    nvml = Nvml(broken=broken, silent=silent)
    nvml.answers |= {
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=(handle + 1) * GIB),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=50 + handle),
        "nvmlDeviceGetPowerUsage": 300_000,
        "nvmlDeviceGetTemperature": 61,
    }
    return nvml


def test_nvidia_gpus_are_those_that_cuda_shows_and_the_library_is_closed_again(tmp_path: Path) -> None:
    nvml = two_gpus("nvmlDeviceGetPowerUsage")
    sensors = Machine().monitor(tmp_path, nvml, {"CUDA_VISIBLE_DEVICES": "1"}).open()
    assert sensors.read().gpus == (GpuReading(utilisation=0.51, memory=2 * GIB, temperature_c=61.0),)
    assert nvml.open == 1
    sensors.close()
    assert nvml.open == 0
    second = replace(Machine().monitor(tmp_path, nvml), gpus=(1, 7))
    assert [gpu.memory for gpu in second.open().read().gpus] == [2 * GIB], "the one that units run on"
    both = Machine().monitor(tmp_path, nvml)
    assert len(both.open().read().gpus) == 2
    assert set(both.sensors()) == {
        Sensor.CPU,
        Sensor.MEMORY,
        Sensor.GPU,
        Sensor.VRAM,
        Sensor.GPU_TEMPERATURE,
    }


def test_the_library_is_closed_too_where_the_rest_cannot_be_opened(tmp_path: Path) -> None:
    def full() -> Any:
        raise OSError("too many open files")

    nvml = two_gpus()
    with pytest.raises(OSError, match="too many"):
        DeviceMonitor(root=tmp_path, nvml=lambda: nvml, cpu_times=full, environ={}).open()
    assert nvml.open == 0


def test_a_driver_that_does_not_answer_costs_the_gpus_alone(tmp_path: Path) -> None:
    reading = Machine().monitor(tmp_path, two_gpus(broken=True)).open().read()
    assert (reading.gpus, reading.memory) == ((), 3 * GIB)


def test_in_a_container_with_less_memory_it_is_the_containers(tmp_path: Path) -> None:
    machine = SimpleNamespace(total=8 * GIB, available=1 * GIB)
    group = "sys__fs__cgroup__pod__"
    write(tmp_path, proc__self__cgroup="0::/pod")
    write(tmp_path, **{f"{group}memory.max": 2 * GIB, f"{group}memory.current": GIB})
    write(tmp_path, **{f"{group}memory.stat": f"anon 1\ninactive_file {GIB // 4}"})
    assert used_memory(tmp_path, machine) == GIB - GIB // 4
    write(tmp_path, **{f"{group}memory.max": "max"})
    assert used_memory(tmp_path, machine) == 7 * GIB


@pytest.mark.smoke
def test_this_machine_can_be_read() -> None:
    sensors = DeviceMonitor().open()
    reading = sensors.read()
    sensors.close()
    assert reading.memory is not None
    assert 0 < reading.memory < psutil.virtual_memory().total

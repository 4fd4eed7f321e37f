"""The GPUs that this device's units use, as its owner chose: the setting `gpus` of a worker.

    one        the first GPU that the runtimes find: `GPU (ONNX)`
    each       every GPU: `GPU (ONNX)` is the first, `GPU 1 (ONNX)` the next …
    1,3        these GPUs: `GPU (ONNX)` is GPU 1, `GPU 3 (ONNX)` the other

A process on a chosen GPU sees no other GPU. GPUs are counted from 0, as `sark-node info` lists them. A device measures one task at a time,
on whichever GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol

from drivers.launch.launch import SAMPLED_UNITS, ProbedUnits
from drivers.measure.gpu import Gpu, GpuReport, find_gpus
from node.settings.gpus import ONE, read_gpus_setting
from protocol.errors import ResourceError
from protocol.formats.gpu_units import gpu_number, numbered

VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that restrict a process to some GPUs: NVIDIA's by index or UUID, AMD's by index."""
NVML: Final = "nvml"
VULKAN: Final = "Vulkan"
"""Beginning of the detail of a llama.cpp unit that ignores all of these variables."""


@dataclass(frozen=True, slots=True)
class ChosenGpu:
    number: int
    gpu: Gpu
    environment: Mapping[str, str]
    """The variables that show only this GPU to a process."""

    @property
    def shown(self) -> str:
        """The value by which these variables name this GPU."""
        return next(iter(self.environment.values()))

    @property
    def nvml(self) -> str:
        """The id by which a `Sampler` finds this GPU."""
        return self.gpu.uuid or str(self.number)


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """The chosen GPUs of a device; none: the runtimes choose, which means the first GPU."""

    chosen: tuple[ChosenGpu, ...] = ()

    def of(self, unit: str) -> ChosenGpu | None:
        """The GPU of a unit; None: it has none, or the runtimes choose."""
        number = gpu_number(unit)
        if number is not None:
            return next((one for one in self.chosen if one.number == number), None)
        return self.chosen[0] if self.chosen and unit in SAMPLED_UNITS else None

    def named(self, unit: str, gpu: ChosenGpu) -> str:
        """The name of a driver's `unit` when it runs on `gpu`."""
        return unit if gpu == self.chosen[0] else numbered(unit, gpu.number)


ANY_GPU: Final = GpuChoice()


@dataclass(frozen=True)
class DeviceGpus:
    """All GPUs of a device, and the chosen ones."""

    report: GpuReport
    choice: GpuChoice = ANY_GPU

    @property
    def used(self) -> tuple[Gpu, ...]:
        """The GPUs that units use."""
        return tuple(one.gpu for one in self.choice.chosen) or self.report.gpus[:1]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the GPUs in `used`."""
        return tuple(one.number for one in self.choice.chosen) or (0,)


NO_GPUS: Final = DeviceGpus(GpuReport())


def choose(setting: str, report: GpuReport, environ: Mapping[str, str] = os.environ) -> GpuChoice:
    """The GPUs that `setting` selects. Raises `ResourceError` for a GPU that is not here."""
    listed = read_gpus_setting(setting)
    numbers = listed if listed is not None else tuple(range(len(report.gpus)))
    if missing := [number for number in numbers if number >= len(report.gpus)]:
        here = ", ".join(f"{number}: {gpu.name}" for number, gpu in enumerate(report.gpus)) or "no GPU"
        raise ResourceError(f"gpus: there is no GPU {missing[0]} here", hint=f"this device has {here}")
    if setting == ONE or len(report.gpus) < 2:
        return GpuChoice()
    return GpuChoice(
        tuple(ChosenGpu(number, report.gpus[number], _shown(report, number, environ)) for number in numbers)
    )


def _shown(report: GpuReport, number: int, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that show only this GPU: an NVIDIA GPU by UUID, an AMD GPU by its index among the GPUs already shown."""
    uuid = report.gpus[number].uuid
    if report.source == NVML and uuid:
        return MappingProxyType({VARIABLES[0]: uuid})
    shown = next((environ[name].split(",") for name in reversed(VARIABLES) if environ.get(name)), [])
    index = shown[number].strip() if number < len(shown) else str(number)
    return MappingProxyType(dict.fromkeys(VARIABLES, index))


class ProbeDrivers(Protocol):
    """`drivers.launch.launch.probe_units` with its other arguments bound."""

    def __call__(
        self, *, private: Mapping[str, Mapping[str, str]], only: Sequence[str] | None = None
    ) -> ProbedUnits: ...


@dataclass(frozen=True)
class UnitsOnGpus:
    """Tries the units of all drivers. GPU units are tried on each chosen GPU, which is then the only GPU that they see."""

    probe: ProbeDrivers
    gpus: DeviceGpus
    private: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __call__(self) -> ProbedUnits:
        """Blocks: about a second for each runtime and GPU."""
        every = self.probe(private=self.private)
        choice = self.gpus.choice
        if not choice.chosen:
            return every
        drivers = sorted({one.driver for one in every.units if one.unit in SAMPLED_UNITS})
        units = [one for one in every.units if one.unit not in SAMPLED_UNITS]
        troubles, sure = list(every.troubles), every.sure
        for gpu in choice.chosen:
            private = {name: {**self.private.get(name, {}), **gpu.environment} for name in drivers}
            found = self.probe(private=private, only=drivers)
            for one in found.units:
                if one.unit not in SAMPLED_UNITS:
                    continue
                if one.detail.startswith(VULKAN):
                    troubles.append(f"GPU {gpu.number}: {one.unit} by Vulkan cannot be restricted to one GPU")
                    continue
                units.append(replace(one, unit=choice.named(one.unit, gpu)))
            troubles += [f"GPU {gpu.number}: {trouble}" for trouble in found.troubles]
            sure = sure and found.sure
        return ProbedUnits(tuple(units), tuple(troubles), sure)


def units_on_gpus(
    setting: str,
    probe: ProbeDrivers,
    private: Mapping[str, Mapping[str, str]] | None = None,
    find: Callable[[], GpuReport] = find_gpus,
) -> UnitsOnGpus:
    """Looks for GPUs now (blocking); the returned object looks for units when called. Raises `ResourceError` for a GPU that is not here."""
    report = find()
    return UnitsOnGpus(probe, DeviceGpus(report, choose(setting, report)), private or {})

"""Which GPU each unit of a device runs on, with doubles for NVML, the drivers' probe and their zygotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivers.contract.base import (
    BesideReport,
    CheckReport,
    Event,
    Limits,
    ModelDescription,
    UnitInfo,
    WorkOrder,
)
from drivers.launch.launch import SAMPLED_UNITS, Launch, ProbedUnits
from drivers.measure.gpu import Gpu, GpuReport, from_nvml
from node.device.gpu_units import ChosenGpu, DeviceGpus, GpuChoice, UnitsOnGpus, choose, units_on_gpus
from node.device.probe import MAX_UNITS, Profile, build_advert, probe_device
from node.run.launchers import Launchers, NamedLaunch, plain_order
from node.run.record_builder import providers_of
from node.settings.settings import DriverSecrets, WorkerSettings
from protocol.errors import LocalProtocolError, ResourceError, SettingsError
from protocol.formats.frameworks import framework_of
from protocol.formats.gpu_units import gpu_number, numbered, without_number
from protocol.values.advert import MAX_ADVERT, UnitOffer, advert_body
from protocol.values.match import narrow_to_unit_gpu
from protocol.values.requirement import Requirement, parse_clause

PEER = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAn"


class TwoGpus:
    """A double of pynvml: a small GPU, then a large one."""

    class NVMLError(Exception): ...

    class NVMLError_LibraryNotFound(NVMLError): ...  # noqa: N801

    def __getattr__(self, name: str) -> Any:
        def missing(*_: Any) -> Any:
            raise self.NVMLError("Not Supported")

        return {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "580",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda index: f"GPU-{'ab'[index]}",
            "nvmlDeviceGetName": lambda index: ("Small", "Large")[index],
            "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(total=(8, 80)[index] << 30),
        }.get(name, missing)


NVIDIA = GpuReport(from_nvml(TwoGpus(), {}), "nvml")
AMD = GpuReport((Gpu("MI300X", uuid="x"), Gpu("MI300X", uuid="y"), Gpu("MI300X")), "torch")
SEES = "CUDA_VISIBLE_DEVICES"


@dataclass
class Probe:
    """Probes the drivers `onnx` and `torch`: the processor, and a GPU that works for both. Records each probe."""

    broken: str = ""
    """The `driver on GPU` that fails."""
    detail: str = ""
    asked: list[tuple[str, str, tuple[str, ...] | None]] = field(default_factory=list)

    def __call__(
        self, *, private: Mapping[str, Mapping[str, str]], only: Sequence[str] | None = None
    ) -> ProbedUnits:
        units, troubles = [], []
        for driver, framework in (("onnx", "ONNX"), ("torch", "Torch")):
            if only is not None and driver not in only:
                continue
            sees = private.get(driver, {}).get(SEES, "all")
            self.asked.append((driver, sees, None if only is None else tuple(only)))
            units.append(UnitInfo(f"CPU ({framework})", driver, "1"))
            if f"{driver} on {sees}" == self.broken:
                troubles.append(f"driver {driver!r}: it fell over")
            else:
                units.append(UnitInfo(f"GPU ({framework})", driver, "1", self.detail))
        return ProbedUnits(tuple(units), tuple(troubles), not troubles)


def chosen(setting: str, report: GpuReport = NVIDIA, **environ: str) -> dict[int, str]:
    """GPU number → the identifier by which a process is shown it."""
    return {one.number: one.shown for one in choose(setting, report, environ).chosen}


def test_a_unit_on_one_of_several_gpus_is_called_by_its_number() -> None:
    for unit in SAMPLED_UNITS:
        assert without_number(unit) == unit
        assert gpu_number(unit) is None
        named = numbered(unit, 12)
        assert (without_number(named), gpu_number(named)) == (unit, 12)
        assert framework_of(named) == framework_of(unit)
    assert numbered("GPU (ONNX)", 1) == "GPU 1 (ONNX)"
    for unit in ("CPU 1 (ONNX)", "GPU 01 (ONNX)", "GPU 100 (ONNX)", "GPU 1", "NPU 1 (ONNX)"):
        assert without_number(unit) == unit


def test_the_owner_says_which_gpus_units_run_on() -> None:
    assert chosen("one") == {}
    assert chosen("each") == {0: "GPU-a", 1: "GPU-b"}
    assert chosen("1") == {1: "GPU-b"}
    assert chosen("1, 0") == {1: "GPU-b", 0: "GPU-a"}
    for setting in ("one", "each"):  # nothing to choose
        assert chosen(setting, GpuReport()) == chosen(setting, replace(NVIDIA, gpus=NVIDIA.gpus[:1])) == {}


def test_amds_gpus_are_shown_by_their_place_among_those_that_the_owner_shows() -> None:
    assert chosen("each", AMD) == {0: "0", 1: "1", 2: "2"}
    assert chosen("0,2", AMD, HIP_VISIBLE_DEVICES="4,5,7") == {0: "4", 2: "7"}
    assert choose("1", AMD, {}).chosen[0].environment == {SEES: "1", "HIP_VISIBLE_DEVICES": "1"}


def test_a_gpu_that_is_not_here_is_told_with_those_that_are() -> None:
    with pytest.raises(ResourceError, match="there is no GPU 2 here") as caught:
        choose("0,2", NVIDIA, {})
    assert caught.value.hint == "this device has 0: Small, 1: Large"
    with pytest.raises(ResourceError, match="there is no GPU 0 here"):
        choose("0", GpuReport(), {})


def test_the_setting_is_a_word_or_a_list_in_the_file_and_outside(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    for written, expected in (('"each"', "each"), ("[0, 2]", "0,2"), ('"0,2"', "0,2")):
        config.write_text(f"[worker]\ngpus = {written}\n")
        assert WorkerSettings.load(config, {}, {}).gpus == expected
    assert WorkerSettings.load(config, {"SARK_GPUS": "1"}, {}).gpus == "1"
    for wrong in ("all", "0;1", "-1", "0,0"):
        with pytest.raises(SettingsError) as caught:
            WorkerSettings.load(config, {}, {"gpus": wrong})
        assert "one, each, or the numbers" in caught.value.hint or "listed twice" in caught.value.hint


def test_as_long_as_nothing_is_chosen_drivers_are_tried_once_and_see_all() -> None:
    probe = Probe()
    found = units_on_gpus("one", probe, find=lambda: NVIDIA)
    assert [one.unit for one in found().units] == ["CPU (ONNX)", "GPU (ONNX)", "CPU (Torch)", "GPU (Torch)"]
    assert probe.asked == [("onnx", "all", None), ("torch", "all", None)]
    assert [gpu.name for gpu in found.gpus.used] == ["Small"]


def test_each_gpu_is_tried_alone_and_is_offered_by_what_has_run_on_it() -> None:
    probe = Probe(broken="torch on GPU-b")
    secrets = {"torch": {"SECRET": "1"}, "api": {"SARK_API_KEY": "k"}}
    found = UnitsOnGpus(probe, DeviceGpus(NVIDIA, choose("each", NVIDIA, {})), secrets)()
    assert [one.unit for one in found.units] == [
        "CPU (ONNX)",
        "CPU (Torch)",
        "GPU (ONNX)",
        "GPU (Torch)",
        "GPU 1 (ONNX)",
    ]
    assert found.troubles == ("GPU 1: driver 'torch': it fell over",)
    assert not found.sure
    drivers = ("onnx", "torch")
    assert probe.asked[2:] == [(name, gpu, drivers) for gpu in ("GPU-a", "GPU-b") for name in drivers]


def test_a_library_that_cannot_be_held_to_one_gpu_is_not_offered_on_several() -> None:
    found = UnitsOnGpus(Probe(detail="Vulkan0: Small"), DeviceGpus(NVIDIA, choose("each", NVIDIA, {})))()
    assert [one.unit for one in found.units] == ["CPU (ONNX)", "CPU (Torch)"]
    assert "GPU 1: GPU (ONNX) by Vulkan cannot be restricted to one GPU" in found.troubles


@pytest.mark.parametrize(
    ("setting", "gpus", "units"),
    [
        ("one", ["Small"], {"GPU (ONNX)": None}),
        ("1", ["Large"], {"GPU (ONNX)": 1}),
        ("1,0", ["Large", "Small"], {"GPU (ONNX)": 1, "GPU 0 (ONNX)": 0}),
        ("each", ["Small", "Large"], {"GPU (ONNX)": 0, "GPU 1 (ONNX)": 1}),
    ],
)
def test_a_device_advertises_the_gpus_that_its_units_run_on_and_no_others(
    tmp_path: Path, setting: str, gpus: list[str], units: dict[str, int | None]
) -> None:
    look = units_on_gpus(setting, Probe(), find=lambda: NVIDIA)
    profile = probe_device(tmp_path, look, on=look.gpus)
    advert = build_advert(profile, PEER)
    assert [gpu.name for gpu in advert.gpus] == gpus
    for unit, number in units.items():
        seen = narrow_to_unit_gpu(
            Requirement(clauses=(parse_clause(f"units has {unit}"), parse_clause("vram > 0 B"))), advert
        )
        assert [gpu.name for gpu in seen.gpus] == [NVIDIA.gpus[number or 0].name]
    assert [NVIDIA.gpus[number].name for number in look.gpus.numbers] == gpus
    assert [gpu.name for gpu in profile.gpu_report.gpus] == ["Small", "Large"]
    offered = {offer.unit: profile.gpu_choice.of(offer.unit) for offer in advert.units}
    on_gpus = {unit: gpu and gpu.number for unit, gpu in offered.items() if "ONNX" in unit and "GPU" in unit}
    assert on_gpus == units
    assert offered["CPU (ONNX)"] is None


def test_more_units_than_an_advert_holds_are_told_and_those_that_it_has_fit(tmp_path: Path) -> None:
    found = tuple(UnitInfo(numbered(unit, gpu), "x", "r" * 60) for gpu in range(8) for unit in SAMPLED_UNITS)
    profile = probe_device(tmp_path, lambda: ProbedUnits(found, ()))
    assert len(profile.units) == MAX_UNITS
    assert "an advert holds at most 12 units: 36 are left out, the first is GPU 2 (ONNX)" in profile.notes
    wide = replace(profile, units=tuple(UnitOffer(unit=f"{i:x<90}", runtime="r") for i in range(12)))
    advert = build_advert(wide, PEER, labels={"site": "lab"})
    assert len(advert_body(advert)) <= MAX_ADVERT
    assert 1 <= len(advert.units) < 12


# -- runs ----------------------------------------------------------------------------------------------------------------------


@dataclass
class ZygoteDouble:
    driver: str
    private: Mapping[str, str] | None
    started: bool = False

    def start(self) -> ZygoteDouble:
        self.started = True
        return self

    def close(self) -> None: ...


DOUBLE: Any = ZygoteDouble


def two_gpus() -> Profile:
    """Two GPUs are chosen, the large one first."""
    drivers = {"CPU (ONNX)": "onnx", "GPU (ONNX)": "onnx", "GPU 0 (ONNX)": "onnx"}
    return Profile(device="d", name="n", drivers=drivers, gpu_choice=choose("1,0", NVIDIA, {}))


def test_a_run_on_a_chosen_gpu_sees_no_other() -> None:
    secrets = DriverSecrets({"onnx": {"SECRET": "1"}})
    launchers = Launchers(two_gpus(), secrets, make=DOUBLE)
    made: dict[str, Any] = {unit: launchers.zygote_of(unit) for unit in two_gpus().drivers}
    assert {unit: zygote.private for unit, zygote in made.items()} == {
        "CPU (ONNX)": {"SECRET": "1"},
        "GPU (ONNX)": {"SECRET": "1", SEES: "GPU-b"},
        "GPU 0 (ONNX)": {"SECRET": "1", SEES: "GPU-a"},
    }
    assert [zygote.started for zygote in made.values()] == [True, False, False]
    assert launchers.zygote_of("GPU 0 (ONNX)") is made["GPU 0 (ONNX)"]
    with pytest.raises(LocalProtocolError, match=r"a run on GPU 2 \(ONNX\) was admitted"):
        launchers.zygote_of("GPU 2 (ONNX)")


def test_a_run_on_a_chosen_gpu_is_read_by_nvml_from_that_gpu() -> None:
    launchers = Launchers(two_gpus(), DriverSecrets(), make=DOUBLE)
    for unit, sampled in (("GPU (ONNX)", "GPU-b"), ("GPU 0 (ONNX)", "GPU-a")):
        launch: Any = launchers.launch_at_once(WorkOrder("m", unit), Limits())._launch
        assert sampled in launch._sampler._reader._command
        assert launch._order.unit == "GPU (ONNX)"
    cpu: Any = launchers.launch_at_once(WorkOrder("m", "CPU (ONNX)"), Limits())._launch
    assert cpu._sampler is None


@pytest.mark.parametrize("framework", ["ONNX", "Torch", "Transformers", "llama.cpp", "TensorRT"])
def test_nvml_is_read_while_any_unit_on_nvidias_gpus_runs(framework: str) -> None:
    """Utilisation, memory, power and clock: see `tests/drivers/measure/test_telemetry.py`."""
    launch: Any = Launch(WorkOrder("m", f"GPU ({framework})"), Limits(), DOUBLE("x", None))
    assert launch._sampler is not None


def described(unit: str) -> ModelDescription:
    return ModelDescription(unit, "onnx", "onnxruntime 1", ("CUDAExecutionProvider",), 1, {}, {}, 0)


class LaunchDouble:
    """Events of a driver that knows of one GPU only."""

    def __init__(self, *ran: str, launches: int = 1) -> None:
        self.launches = launches
        self._own, *self._beside = ran

    def kill(self) -> None: ...

    def events(self) -> Iterator[Event]:
        for _ in range(self.launches):
            yield described(self._own)
            for unit in self._beside:
                yield BesideReport(described(unit), CheckReport(True, "0" * 64, None, None))


def names_of(order: WorkOrder, *ran: str, launches: int = 1) -> list[str]:
    events: Any = NamedLaunch(LaunchDouble(*ran, launches=launches), order).events()  # type: ignore[arg-type]
    return [getattr(event, "described", event).unit for event in events]


def test_a_record_names_the_gpu_that_its_task_asked_for() -> None:
    order = WorkOrder("m", "GPU 1 (ONNX)", beside=("a", "b"), beside_units=("GPU (ONNX)", "GPU 2 (Torch)"))
    plain = plain_order(order)
    assert (plain.unit, plain.beside_units) == ("GPU (ONNX)", ("GPU (ONNX)", "GPU (Torch)"))
    expected = ["GPU 1 (ONNX)", "GPU (ONNX)", "GPU 2 (Torch)"]
    assert names_of(order, "GPU (ONNX)", "GPU (ONNX)", "GPU (Torch)", launches=2) == expected * 2
    together = replace(order, beside_units=())
    assert names_of(together, "GPU (ONNX)", "GPU (ONNX)", "GPU (ONNX)") == ["GPU 1 (ONNX)"] * 3


def test_a_run_that_ended_on_the_processor_is_no_run_on_a_gpu_with_a_number() -> None:
    assert names_of(WorkOrder("m", "GPU 1 (ONNX)"), "CPU (ONNX)") == ["CPU (ONNX)"]


def test_providers_of_a_unit_with_a_number_are_those_of_the_one_without() -> None:
    """So a session that fell back to the processor does not count as one on the GPU, whatever its driver calls it."""
    expected = {"CUDAExecutionProvider", "MIGraphXExecutionProvider", "ROCMExecutionProvider"}
    assert providers_of("GPU (ONNX)") == providers_of("GPU 1 (ONNX)") == expected
    assert providers_of("GPU 1 (Torch)") is None


def test_a_unit_without_a_gpu_of_its_own_has_none_chosen() -> None:
    choice = GpuChoice((ChosenGpu(1, NVIDIA.gpus[1], {SEES: "GPU-b"}),))
    for unit in ("CPU (ONNX)", "GPU (OpenVINO)", "GPU 0 (ONNX)", "API (OpenAI)"):
        assert choice.of(unit) is None
    assert choice.of("GPU (ONNX)") is choice.of("GPU 1 (ONNX)") is choice.chosen[0]

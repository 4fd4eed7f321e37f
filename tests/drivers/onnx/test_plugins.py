"""Providers in separate packages, with doubles for onnxruntime's interface and the packages'."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from drivers.contract.base import WrongUnit
from drivers.onnx import session as edge
from drivers.onnx.driver import working
from drivers.onnx.plugins import PACKAGES, options_of, plugged, usable
from drivers.onnx.units import (
    CPU,
    CUDA,
    DML,
    OPENVINO,
    QNN,
    ROCM,
    TENSORRT,
    UNITS,
    ProviderPlacement,
    placement_for,
)

PLACES = {one.unit: placement_for(one, one.names[0], "") for one in UNITS}


class OrtError(Exception):
    """Like onnxruntime's error, derived from Exception alone."""


def ep_device(provider: str, kind: str, **metadata: str) -> Any:
    return SimpleNamespace(
        ep_name=provider, ep_metadata=metadata, device=SimpleNamespace(type=SimpleNamespace(name=kind))
    )


@dataclass
class PluginRuntime:
    """onnxruntime with plug-ins. `found`: the devices that each library finds, or None if it does not load."""

    found: dict[str, list[Any] | None] = field(default_factory=dict)
    built_in: tuple[str, ...] = (CPU,)
    devices: list[Any] = field(default_factory=lambda: [ep_device(CPU, "CPU")])
    registered: list[str] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)

    def get_available_providers(self) -> list[str]:
        return list(self.built_in)

    def register_execution_provider_library(self, name: str, path: str) -> None:
        if name in self.registered or (found := self.found[path]) is None:
            raise OrtError(f"EP library {path}")
        self.registered.append(name)
        self.devices += found

    def get_ep_devices(self) -> list[Any]:
        return self.devices

    def InferenceSession(self, model: Any, chosen: Any, **asked: Any) -> Any:  # noqa: N802
        self.opened.append(asked)
        return SimpleNamespace(get_providers=lambda: [chosen.added[0].ep_name if chosen.added else CPU, CPU])

    def find(self, package: str) -> Any:
        """The module of an installed package. Its library path is the package's name."""
        if package not in self.found:
            raise ModuleNotFoundError(package)
        return SimpleNamespace(get_library_path=lambda: package, get_qnn_htp_path=lambda: f"{package}/htp")


class SessionChoice:
    """Session options, as far as they concern plug-ins."""

    def __init__(self) -> None:
        self.added: list[Any] = []
        self.options: dict[str, str] = {}

    def has_providers(self) -> bool:
        return bool(self.added)

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        assert not self.added, "onnxruntime refuses a second one"
        self.added += devices
        self.options = options


INTEL = [ep_device(OPENVINO, kind, ov_device=kind) for kind in ("CPU", "GPU", "NPU")]
QUALCOMM = [ep_device(QNN, kind) for kind in ("CPU", "NPU")]


def both() -> PluginRuntime:
    return PluginRuntime({PACKAGES[OPENVINO]: INTEL, PACKAGES[QNN]: QUALCOMM})


def test_a_plug_in_is_registered_once_and_only_if_a_unit_wants_it() -> None:
    ort = both()
    assert usable(ort, {CUDA}, (OrtError,), ort.find, "aarch64") == [CPU]
    assert usable(ort, {OPENVINO}, (OrtError,), ort.find, "aarch64") == [CPU, OPENVINO]
    assert usable(ort, PACKAGES, (OrtError,), ort.find, "aarch64") == [CPU, OPENVINO, QNN]
    assert usable(ort, PACKAGES, (OrtError,), ort.find, "aarch64") == [CPU, OPENVINO, QNN]
    assert ort.registered == [OPENVINO, QNN]


@pytest.mark.parametrize("found", [{}, {PACKAGES[OPENVINO]: None}, {PACKAGES[OPENVINO]: []}])
def test_a_plug_in_that_is_not_installed_or_broken_or_finds_nothing_leaves_the_others(found: Any) -> None:
    ort = PluginRuntime(found)
    assert usable(ort, PACKAGES, (OrtError,), ort.find, "x86_64") == [CPU]


def test_a_build_with_its_provider_inside_needs_no_plug_in() -> None:
    ort = PluginRuntime({PACKAGES[OPENVINO]: INTEL}, built_in=(OPENVINO, CPU))
    assert usable(ort, PACKAGES, (OrtError,), ort.find, "x86_64") == [OPENVINO, CPU]
    assert ort.registered == []


@pytest.mark.parametrize("built_in", [(CPU,), (QNN, CPU)])
def test_an_npu_that_qualcomms_library_emulates_on_another_processor_is_never_offered(
    built_in: tuple[str, ...],
) -> None:
    for machine, there in (("x86_64", False), ("AMD64", False), ("ARM64", True), ("aarch64", True)):
        ort = PluginRuntime({PACKAGES[QNN]: QUALCOMM}, built_in)
        assert (QNN in usable(ort, PACKAGES, (OrtError,), ort.find, machine)) is there


def test_a_session_takes_the_device_of_its_units_kind() -> None:
    ort = both()
    usable(ort, PACKAGES, (OrtError,), ort.find, "aarch64")
    kinds = {unit: plugged(ort, place) for unit, place in PLACES.items()}
    assert {unit: one.device.type.name for unit, one in kinds.items() if one is not None} == {
        "OpenVINO CPU (ONNX)": "CPU",
        "OpenVINO GPU (ONNX)": "GPU",
        "OpenVINO NPU (ONNX)": "NPU",
        "NPU (ONNX)": "NPU",
    }
    assert plugged(SimpleNamespace(), PLACES["NPU (ONNX)"]) is None  # an onnxruntime older than 1.22


def test_a_plug_ins_session_names_no_provider_and_its_options_are_used_again() -> None:
    ort, chosen = both(), SessionChoice()
    usable(ort, {OPENVINO}, (OrtError,), ort.find, "x86_64")
    place = placement_for(next(one for one in UNITS if one.unit == "OpenVINO CPU (ONNX)"), OPENVINO, "", 2)
    for _ in range(2):
        session = edge.open_session(b"", place, chosen, ort)
        edge.verify_provider("OpenVINO CPU (ONNX)", OPENVINO, session.get_providers())
    assert ort.opened == [{"enable_fallback": 0}] * 2
    assert (chosen.added, chosen.options) == ([INTEL[0]], {"num_of_threads": "2"})


def test_a_kind_of_device_that_a_plug_in_does_not_find_ends_on_the_cpu_and_is_refused() -> None:
    ort, chosen = PluginRuntime({PACKAGES[OPENVINO]: INTEL[:1]}), SessionChoice()
    assert OPENVINO in usable(ort, PACKAGES, (OrtError,), ort.find, "x86_64")
    session = edge.open_session(b"", PLACES["OpenVINO GPU (ONNX)"], chosen, ort)
    with pytest.raises(WrongUnit, match=r"asked for OpenVINO GPU \(ONNX\), session runs on CPU"):
        edge.verify_provider("OpenVINO GPU (ONNX)", OPENVINO, session.get_providers())


def test_the_library_of_qualcomms_npu_is_its_packages() -> None:
    assert options_of(PLACES["NPU (ONNX)"], both().find) == {"backend_path": "onnxruntime_qnn/htp"}
    assert options_of(ProviderPlacement(OPENVINO, {"device_type": "NPU"}), both().find) == {}


def test_only_a_provider_that_has_just_run_something_itself_is_offered() -> None:
    """CUDA works, DirectML falls back silently, ROCm fails, TensorRT computes a wrong result."""

    def session(model: Any, chosen: Any, providers: Any = (CPU,), **asked: Any) -> Any:
        provider = providers[0] if isinstance(providers[0], str) else providers[0][0]
        if provider == ROCM:
            raise RuntimeError("hipErrorNoDevice")
        result = 41 if provider == TENSORRT else 42
        live = [CPU] if provider == DML else [provider, CPU]
        return SimpleNamespace(get_providers=lambda: live, run=lambda *_: [[result]])

    listed = [CUDA, TENSORRT, DML, ROCM, CPU]
    ort = SimpleNamespace(
        __version__="1", get_available_providers=lambda: listed, InferenceSession=session, preload_dlls=None
    )
    assert [(one.unit, one.detail) for one in working(ort)] == [("CPU (ONNX)", CPU), ("GPU (ONNX)", CUDA)]
    listed.remove(CUDA)
    assert [one.unit for one in working(ort)] == ["CPU (ONNX)"]

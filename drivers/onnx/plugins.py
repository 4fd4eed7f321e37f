"""Execution providers in separate packages, installed next to onnxruntime instead of built into it.

They have to be registered, and a session takes them by device: a session that only names such a provider silently runs on the CPU.

https://onnxruntime.ai/docs/execution-providers/plugin-ep-libraries/usage.html
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable, Collection
from typing import Any, Final

from drivers.onnx.units import OPENVINO, QNN, ProviderPlacement

PACKAGES: Final = {OPENVINO: "onnxruntime_ep_openvino", QNN: "onnxruntime_qnn"}
ARM64: Final = frozenset({"arm64", "aarch64"})

Find = Callable[[str], Any]
"""Returns a package by its name. Raises `ImportError`."""


def usable(
    ort: Any,
    wanted: Collection[str],
    errors: tuple[type[Exception], ...],
    find: Find = importlib.import_module,
    machine: str = "",
) -> list[str]:
    """The providers that this onnxruntime has now, including those plug-ins among `wanted` that are installed and found a device. `errors`:
    exceptions of onnxruntime. `machine`: the processor; empty: this one.

    QNN counts only on ARM processors: elsewhere Qualcomm's library emulates its NPU.
    """
    present = list(ort.get_available_providers())
    failing: tuple[type[Exception], ...] = (ImportError, OSError, AttributeError, *errors)
    for provider, package in PACKAGES.items():
        if provider in wanted and provider not in present:
            try:
                ort.register_execution_provider_library(provider, find(package).get_library_path())
            except failing:
                continue  # the plug-in is not installed, or does not fit this onnxruntime
    present += [one.ep_name for one in _devices(ort)]
    on_arm = (machine or platform.machine()).lower() in ARM64
    return [name for name in dict.fromkeys(present) if name != QNN or on_arm]


def plugged(ort: Any, place: ProviderPlacement) -> Any:
    """The plug-in's device for a session at `place`; None: the provider is part of onnxruntime. A unit that names a kind of device gets a
    device of that kind; any other unit gets the NPU, if there is one."""
    own = [one for one in _devices(ort) if one.ep_name == place.provider and place.provider in PACKAGES]
    kind = place.options.get("device_type")
    if kind is not None:
        own = [one for one in own if one.ep_metadata.get("ov_device", one.device.type.name) == kind]
    own.sort(key=lambda one: one.device.type.name != "NPU")
    return own[0] if own else None


def options_of(place: ProviderPlacement, find: Find = importlib.import_module) -> dict[str, str]:
    """Options of a plug-in. The device already determines its kind; the package knows the path of the library of Qualcomm's NPU."""
    options = {name: value for name, value in place.options.items() if name != "device_type"}
    if place.provider == QNN:
        options["backend_path"] = find(PACKAGES[QNN]).get_qnn_htp_path()
    return options


def _devices(ort: Any) -> list[Any]:
    """Devices of all providers; empty for an onnxruntime without plug-ins."""
    return list(ort.get_ep_devices()) if hasattr(ort, "get_ep_devices") else []

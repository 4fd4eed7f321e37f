"""Execution providers in packages of their own, beside onnxruntime instead of in a build of it.

They have to be registered, and a session takes them by device: one that only names such a provider runs on the CPU without a word.
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
"""A package by its name. Raises `ImportError`."""


def usable(
    ort: Any,
    wanted: Collection[str],
    errors: tuple[type[Exception], ...],
    find: Find = importlib.import_module,
    machine: str = "",
) -> list[str]:
    """The providers that this onnxruntime has now, with the plug-ins among `wanted` that are installed and found a device. `errors`: what
    onnxruntime raises; `machine`: the processor, empty: this one.

    QNN is none where the processor is not ARM's: Qualcomm's library emulates its NPU there.
    """
    present = list(ort.get_available_providers())
    failing: tuple[type[Exception], ...] = (ImportError, OSError, AttributeError, *errors)
    for provider, package in PACKAGES.items():
        if provider in wanted and provider not in present:
            try:
                ort.register_execution_provider_library(provider, find(package).get_library_path())
            except failing:
                continue  # it is not installed, or does not fit this onnxruntime
    present += [one.ep_name for one in _devices(ort)]
    on_arm = (machine or platform.machine()).lower() in ARM64
    return [name for name in dict.fromkeys(present) if name != QNN or on_arm]


def plugged(ort: Any, place: ProviderPlacement) -> Any:
    """The device of a plug-in for a session there; None: its provider is part of onnxruntime. A unit that names a kind of device gets one
    of that kind, any other the NPU if there is one."""
    own = [one for one in _devices(ort) if one.ep_name == place.provider and place.provider in PACKAGES]
    kind = place.options.get("device_type")
    if kind is not None:
        own = [one for one in own if one.ep_metadata.get("ov_device", one.device.type.name) == kind]
    own.sort(key=lambda one: one.device.type.name != "NPU")
    return own[0] if own else None


def options_of(place: ProviderPlacement, find: Find = importlib.import_module) -> dict[str, str]:
    """Options of a plug-in: its device says the kind, and its package where the library of Qualcomm's NPU is."""
    options = {name: value for name, value in place.options.items() if name != "device_type"}
    if place.provider == QNN:
        options["backend_path"] = find(PACKAGES[QNN]).get_qnn_htp_path()
    return options


def _devices(ort: Any) -> list[Any]:
    """Of all providers; none of an onnxruntime that knows no plug-ins."""
    return list(ort.get_ep_devices()) if hasattr(ort, "get_ep_devices") else []

"""The interface to onnxruntime's Python package: open a session on one unit, verify its provider, translate errors.

Imported late, in the child or its zygote.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from drivers.contract.base import Crashed, DriverError, OutOfMemory, Unfit, WrongUnit
from drivers.inputs.synthetic import Input, element_type
from drivers.native import library
from drivers.onnx.plugins import options_of, plugged, usable
from drivers.onnx.units import CPU, CUDA, TENSORRT, UNITS, ProviderPlacement, placement_for, visible_devices

PRIVATE_NAME: Final = "model.onnx"
MAX_PORTS: Final = 2048
"""Most inputs and outputs of a model together."""
MAX_NAME: Final = 500
"""Most characters in the name of an input or output."""


TINY_MODEL: Final = library.TINY_MODEL
"""The model that a provider must run before its unit is offered."""


def runtime() -> ModuleType:
    """onnxruntime without telemetry. Raises `Unfit` if it is not installed."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read at import: the call below comes too late
    try:
        import onnxruntime
    except ImportError as why:
        raise Unfit(f"onnxruntime cannot be imported: {why}") from why
    module: ModuleType = onnxruntime
    module.disable_telemetry_events()
    return module


def provider_for(unit: str, available: Sequence[str]) -> str:
    """The execution provider of a unit. Raises `WrongUnit` if this onnxruntime has none."""
    names = next((one.names for one in UNITS if one.unit == unit), None)
    if names is None:
        raise WrongUnit(f"unknown unit {unit!r}: this driver has {', '.join(one.unit for one in UNITS)}")
    provider = next((name for name in names if name in available), None)
    if provider is None:
        raise WrongUnit(f"asked for {unit}, but this onnxruntime has only {', '.join(available)}")
    return provider


def placement_of(unit: str, gpu: str = "", threads: int = 0) -> ProviderPlacement:
    """Where this onnxruntime runs a unit. Hides all other GPUs from this process. `threads`: see `placement_for`. Raises `WrongUnit`."""
    ort = runtime()
    names = {name for one in UNITS if one.unit == unit for name in one.names}
    provider = provider_for(unit, usable(ort, names, runtime_errors()))
    os.environ.update(visible_devices(provider, gpu))
    load_libraries(provider)
    return placement_for(next(one for one in UNITS if one.unit == unit), provider, gpu, threads)


def load_libraries(provider: str, ort: Any = None) -> None:
    """Load CUDA's libraries from NVIDIA's Python packages, where the system's linker does not look, or else from the system. Call it before
    a session is opened, because that is timed. `ort`: the runtime's package, or a test double."""
    preload = getattr(ort or runtime(), "preload_dlls", None)
    if provider in (CUDA, TENSORRT) and preload is not None:
        preload()


def verify_provider(unit: str, provider: str, live: Sequence[str]) -> None:
    """Refuse a session that fell back to another provider. Raises `WrongUnit`."""
    if not live or live[0] != provider:
        raise WrongUnit(f"asked for {unit}, session runs on {live[0] if live else 'nothing'}")


def private_copy(model: str, folder: Path) -> Path:
    """Put the model alone into a folder of its own, so that it cannot name weights in other files.

    The model becomes a link (onnxruntime's path check refuses paths that lead out of the folder), or a copy where there are no links. A
    model that is a folder stays in its place, with its own weights.
    """
    source = Path(model).resolve()
    if source.is_dir():
        return _in_folder(source)
    if not source.is_file():
        raise Unfit(f"model {model}: there is no such file")
    folder.mkdir(exist_ok=True)
    private = folder / PRIVATE_NAME
    private.unlink(missing_ok=True)
    try:
        private.symlink_to(source)
    except OSError:
        shutil.copyfile(source, private)
    return private


def _in_folder(folder: Path) -> Path:
    """The only ONNX file in a folder of plain files and folders. Raises `Unfit`."""
    models: list[Path] = []
    for path in sorted(folder.rglob("*")):
        kind = path.lstat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise Unfit(f"the model's folder holds {path.name[:100]!r}, which is not a regular file")
        if stat.S_ISREG(kind) and path.suffix == ".onnx":
            models.append(path)
    if len(models) != 1:
        raise Unfit(
            f"the model is a folder with {len(models)} .onnx files; it must hold exactly one, with its weights next to it"
        )
    return models[0]


def options(threads: int, optimise: bool) -> Any:
    """Session options: one operator at a time on `threads` threads that sleep when idle.

    Spinning threads slow down everything on a shared device (measured: up to 1.6 times), so they do not spin.
    """
    ort = runtime()
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = threads
    chosen.inter_op_num_threads = 1
    chosen.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    chosen.log_severity_level = 3
    if not optimise:
        chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return chosen


def open_session(model: str | bytes, place: ProviderPlacement, chosen: Any, ort: Any = None) -> Any:
    """Create a session; load times measure this call. If its provider fails, the call fails too: by default the runtime would answer with a
    session on the CPU. `ort`: the runtime's package, or a test double. Raises `Unfit`, `OutOfMemory` or `Crashed`."""
    ort = ort or runtime()
    if (device := plugged(ort, place)) is not None:
        if not chosen.has_providers():  # set by an earlier session
            translated(lambda: chosen.add_provider_for_devices([device], options_of(place)))
        return translated(lambda: ort.InferenceSession(model, chosen, enable_fallback=0))
    requested = [CPU] if place.provider == CPU else [(place.provider, dict(place.options)), CPU]
    return translated(lambda: ort.InferenceSession(model, chosen, providers=requested, enable_fallback=0))


def translated(call: Callable[[], Any]) -> Any:
    """`call()`, with onnxruntime's errors as `DriverError`."""
    try:
        return call()
    except runtime_errors() as why:
        raise to_driver_error(why) from why


def runtime_errors() -> tuple[type[Exception], ...]:
    """The exceptions of onnxruntime, which derive directly from Exception."""
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")

    names = (
        "Fail",
        "InvalidArgument",
        "InvalidGraph",
        "InvalidProtobuf",
        "NoSuchFile",
        "NotImplemented",
        "RuntimeException",
        "EPFail",
    )
    own = tuple(getattr(state, name) for name in names if hasattr(state, name))
    return (*own, RuntimeError, ValueError)


_NO_MEMORY: Final = re.compile(
    r"bad_alloc|ALLOC_FAILED|fail(ed|ure) to allocate|out of memory|cannot allocate|available memory",
    re.IGNORECASE,
)
_GPU_FAILURE: Final = re.compile(
    r"\b(CUDA|HIP|CUDNN|CUBLAS\w*|CUFFT|CURAND|ROCBLAS|MIOPEN) failure \d+: [^;]+"
)
"""The cause in an error of a GPU, which is surrounded by functions, files and this host's name."""
_NO_OPERATOR: Final = re.compile(r"(\S+):(\w+)\(\S*\) is not a registered function/op")
_NO_LOCALE: Final = re.compile(r"Failed to construct locale with name: ?([^:]{1,100})")
_EXTERNAL: Final = re.compile(r"external data", re.IGNORECASE)


def to_driver_error(why: Exception) -> DriverError:
    """An error of onnxruntime in one sentence: what it means for the model, and whether another device may succeed."""
    text = " ".join(re.sub(r"\[ONNXRuntimeError\] : \d+ : (\w+) : ", "", str(why)).split())
    failure = _GPU_FAILURE.search(text)
    shown = failure[0].strip() if failure else text
    if _NO_MEMORY.search(text):
        return OutOfMemory(f"out of memory: {shown[:300]}")
    if failure and failure[1] in ("CUDA", "HIP"):  # the GPU is busy, broken or gone: another may work
        return Crashed(f"onnxruntime: {shown[:600]}")
    if (locale := _NO_LOCALE.search(text)) is not None:
        name = locale[1].strip()
        return WrongUnit(
            f"this device lacks the locale {name!r}, which the model's StringNormalizer needs; its owner can install it: "
            "sudo locale-gen, or the system's language pack"
        )
    if (operator := _NO_OPERATOR.search(text)) is not None:
        return Unfit(
            f"the model needs the operator {operator[1]}:{operator[2]}, which this onnxruntime does not have; "
            "custom operator libraries are never loaded"
        )
    if _EXTERNAL.search(text):
        return Unfit("the model keeps weights in another file; send its folder instead of the one file")
    if type(why).__name__ == "InvalidProtobuf":
        return Unfit("the model file is corrupt or cut short: it is not a readable ONNX graph")
    return Unfit(f"onnxruntime: {shown[:600]}")


def inputs_of(session: Any) -> tuple[Input, ...]:
    """The model's inputs. Raises `Unfit` if an input is not a tensor, or for names that are too long or not UTF-8."""
    try:
        described = [(port.name, port.type, tuple(port.shape)) for port in session.get_inputs()]
        names = [*(name for name, _, _ in described), *(port.name for port in session.get_outputs())]
    except UnicodeDecodeError as why:
        raise Unfit("the model has a name that is not in UTF-8") from why
    if len(names) > MAX_PORTS:
        raise Unfit(f"the model has {len(names)} inputs and outputs; at most {MAX_PORTS} are allowed")
    if (longest := max(map(len, names), default=0)) > MAX_NAME:
        raise Unfit(f"the model has a name of {longest} characters; at most {MAX_NAME} are allowed")
    return tuple(Input(name, element_type(name, kind), shape) for name, kind, shape in described)

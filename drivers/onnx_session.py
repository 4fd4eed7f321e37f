"""The edge to onnxruntime: open a session on one unit, prove that it is there, run it with bound inputs and outputs.

onnxruntime has no types; everything untyped stays in this module. It is imported late, in the child or its zygote.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from drivers.base import DriverError, OutOfMemory, Unfit, WrongUnit
from drivers.onnx_inputs import DTYPES, Input, element_type
from drivers.onnx_units import CPU, UNITS

PRIVATE_NAME: Final = "model.onnx"
MAX_PORTS: Final = 2048
"""Inputs and outputs of a model together."""
MAX_NAME: Final = 500
"""Characters in the name of one of them."""


TINY_MODEL: Final = bytes.fromhex(
    "08083a350a0e0a01780a017812017922034164641201745a0f0a0178120a0a08"
    "080112040a020801620f0a0179120a0a08080112040a02080142040a00100d"
)
"""y = x + x on one float, as bytes: what a provider has to run before we say that it is here."""


def runtime() -> ModuleType:
    """onnxruntime, quiet and without telemetry. Raises `Unfit` where it is not installed."""
    os.environ.setdefault(
        "ORT_DISABLE_TELEMETRY", "1"
    )  # read once, when it is imported: the call below comes too late
    try:
        import onnxruntime
    except ImportError as why:
        raise Unfit(f"onnxruntime is not usable here: {why}") from why
    module: ModuleType = onnxruntime
    module.disable_telemetry_events()
    return module


def provider_for(unit: str, available: Sequence[str]) -> str:
    """The execution provider behind a unit's name. Raises `WrongUnit` when this onnxruntime has none."""
    known = next((provider for provider in UNITS if provider.unit == unit), None)
    if known is None:
        raise WrongUnit(
            f"unknown unit {unit!r}: this driver has {', '.join(provider.unit for provider in UNITS)}"
        )
    found = next((name for name in known.names if name in available), None)
    if found is None:
        raise WrongUnit(f"asked for {unit}, but this onnxruntime has only {', '.join(available)}")
    return found


def verify_provider(unit: str, wanted: str, live: Sequence[str]) -> None:
    """Refuse a session that fell back to something else. Raises `WrongUnit`."""
    if not live or live[0] != wanted:
        raise WrongUnit(f"asked for {unit}, session runs on {live[0] if live else 'nothing'}")


def private_copy(model: str, folder: Path) -> Path:
    """The model alone in a folder of its own, so that weights 'outside the file' have nowhere to be but in this empty folder.

    A link where the platform has them (the path check of onnxruntime refuses whatever leads out of the folder), else a copy.
    """
    source = Path(model).resolve()
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


def options(threads: int, optimise: bool) -> Any:
    """Session options: one operator at a time on `threads` threads that sleep when idle.

    Threads that spin make a device that others use slower for all (measured up to 1.6 times), so they do not spin.
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


def open_session(model: str | bytes, provider: str, chosen: Any) -> Any:
    """Create a session: the thing that load times are about. Raises `Unfit` or `OutOfMemory` in plain words."""
    ort = runtime()
    wanted = [provider] if provider == CPU else [provider, CPU]
    session = translated(lambda: ort.InferenceSession(model, chosen, providers=wanted))
    session.disable_fallback()
    return session


def translated(call: Callable[[], Any]) -> Any:
    """Do something in onnxruntime; its errors become ours."""
    try:
        return call()
    except runtime_errors() as why:
        raise plain_words(why) from why


def runtime_errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: its own exceptions derive from Exception alone."""
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
    r"bad_alloc|fail(ed|ure) to allocate|out of memory|cannot allocate|available memory", re.IGNORECASE
)
_NO_OPERATOR: Final = re.compile(r"(\S+):(\w+)\(\S*\) is not a registered function/op")
_EXTERNAL: Final = re.compile(r"external data", re.IGNORECASE)


def plain_words(why: Exception) -> DriverError:
    """One sentence for an error of onnxruntime: what it means for the model, and whether another device may do better."""
    text = " ".join(re.sub(r"\[ONNXRuntimeError\] : \d+ : (\w+) : ", "", str(why)).split())
    if _NO_MEMORY.search(text):
        return OutOfMemory(f"out of memory: {text[:300]}")
    if (operator := _NO_OPERATOR.search(text)) is not None:
        return Unfit(
            f"the model needs the operator {operator[1]}:{operator[2]}, which this onnxruntime does not have; "
            "custom operator libraries are never loaded"
        )
    if _EXTERNAL.search(text):
        return Unfit("the model keeps weights in another file; only a model in one file is taken")
    if type(why).__name__ == "InvalidProtobuf":
        return Unfit("the model file is corrupt or cut short: it is not a readable ONNX graph")
    return Unfit(f"onnxruntime: {text[:600]}")


def inputs_of(session: Any) -> tuple[Input, ...]:
    """The model's inputs. Raises `Unfit` for those that are not tensors, and for names that nobody can read or show."""
    try:
        described = [(told.name, told.type, tuple(told.shape)) for told in session.get_inputs()]
        names = [*(name for name, _, _ in described), *(told.name for told in session.get_outputs())]
    except UnicodeDecodeError as why:
        raise Unfit("the model has a name that is not in UTF-8") from why
    if len(names) > MAX_PORTS:
        raise Unfit(f"the model has {len(names)} inputs and outputs; at most {MAX_PORTS} are taken")
    if (longest := max(map(len, names), default=0)) > MAX_NAME:
        raise Unfit(f"the model has a name of {longest} characters; at most {MAX_NAME} are taken")
    return tuple(Input(name, element_type(name, kind), shape) for name, kind, shape in described)


def metadata_of(session: Any) -> dict[str, str]:
    """What the model's makers wrote down beside it; nothing where that is not in UTF-8."""
    try:
        return dict(session.get_modelmeta().custom_metadata_map)
    except UnicodeDecodeError:
        return {}


class Runner:
    """A session with inputs and outputs in place: `call(argument)` is one inference and nothing else.

    Inputs are bound once. Outputs are bound to preallocated memory when a second inference shows that their shapes stay;
    otherwise they are allocated each time; texts, sequences and maps cannot be bound at all. `notes` say which.
    """

    def __init__(
        self, session: Any, feeds: Mapping[str, np.ndarray[Any, Any]], inputs: Sequence[Input]
    ) -> None:
        self.notes: tuple[str, ...] = ()
        self._session = session
        self._names = [told.name for told in session.get_outputs()]
        self._feeds = dict(feeds)
        bindable = all(
            told.type.startswith("tensor(") and "string" not in told.type for told in session.get_outputs()
        )
        if bindable and not any(made.dtype == "string" for made in inputs):
            self._bind(inputs)
        else:
            self.call: Callable[[Any], object] = lambda fed: session.run(None, fed)
            self.argument: Any = self._feeds
            self.notes = (
                "texts, sequences or maps cannot be bound: each inference includes their conversion",
            )

    def _bind(self, inputs: Sequence[Input]) -> None:
        ort = runtime()
        binding = self._session.io_binding()
        self._held = [to_ortvalue(ort, self._feeds[made.name], made) for made in inputs]
        for made, value in zip(inputs, self._held, strict=True):
            binding.bind_ortvalue_input(made.name, value)
        for name in self._names:
            binding.bind_output(name, "cpu")
        self.call = self._session.run_with_iobinding
        self.argument = binding

    def first(self) -> None:
        """The cold inference. Raises `Unfit` or `OutOfMemory` when these inputs do not run."""
        translated(lambda: self.call(self.argument))

    def settle_outputs(self) -> None:
        """After the first inference: give each output memory of its own, if the model keeps to the shapes it made."""
        if self.argument is self._feeds:
            return
        binding = self.argument
        values = binding.get_outputs()
        binding.clear_binding_outputs()
        for name, value in zip(self._names, values, strict=True):
            binding.bind_ortvalue_output(name, value)
        try:
            self.call(binding)
        except runtime_errors():
            self.call = self._call_with_new_outputs
            self.notes = ("output shapes change from run to run: each inference includes their allocation",)

    def _call_with_new_outputs(self, binding: Any) -> None:
        """A binding keeps what the last run allocated, and refuses another shape: let go of it first."""
        binding.clear_binding_outputs()
        for name in self._names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)

    def outputs(self) -> dict[str, Any]:
        """What the last inference gave, by output name: arrays, or lists and dicts for sequences and maps (then run once more)."""
        if self.argument is self._feeds:
            made = translated(lambda: self._session.run(None, self._feeds))
            return dict(zip(self._names, made, strict=True))
        return {
            name: as_array(value)
            for name, value in zip(self._names, self.argument.get_outputs(), strict=True)
        }


def to_ortvalue(ort: ModuleType, array: np.ndarray[Any, Any], made: Input) -> Any:
    """An array as the runtime's own tensor, with the element types that numpy does not know."""
    number = DTYPES[made.dtype][1]
    if number is None:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A tensor of the runtime as an array of its own. bfloat16 is widened to float32; 8-bit floats come as their bits."""
    element = element_type("output", value.data_type())
    carrier, number = DTYPES[element]
    if number is None:
        return np.array(value.numpy(), copy=True)
    shape, dtype = tuple(value.shape()), np.dtype(carrier)
    bits = np.zeros(shape, dtype)
    if bits.nbytes:
        ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return (bits.astype(np.uint32) << 16).view(np.float32) if element == "bfloat16" else bits

"""onnxruntime by its C interface: one session on the CPU with no Python between two calls of `Run`.

The Python package adds about a microsecond to a call, which is half of a small model's time. The package contains the same runtime as a C
library, which this module opens with ctypes. It uses only functions that have kept their index in the table since the interface's fifth
version, and `library.prepare` verifies them before anything is measured.

    runtime = Runtime(library, loop)          once in a process
    session = runtime.open(path, threads)     has the methods of onnxruntime's own session that `drivers.onnx.session` uses
    BoundSession(session, feeds)              a `timing.TimedLoop`: drivers/native/loop.py
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p, cast
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

API_VERSION: Final = 16
"""Version of the table; every newer runtime has it."""
INDEX: Final[Mapping[str, int]] = {
    "GetErrorCode": 1,
    "GetErrorMessage": 2,
    "CreateEnv": 3,
    "DisableTelemetryEvents": 6,
    "CreateSession": 7,
    "Run": 9,
    "CreateSessionOptions": 10,
    "SetSessionExecutionMode": 13,
    "SetSessionLogSeverityLevel": 22,
    "SetIntraOpNumThreads": 24,
    "SetInterOpNumThreads": 25,
    "SessionGetInputCount": 30,
    "SessionGetOutputCount": 31,
    "SessionGetInputTypeInfo": 33,
    "SessionGetOutputTypeInfo": 34,
    "SessionGetInputName": 36,
    "SessionGetOutputName": 37,
    "CreateTensorAsOrtValue": 48,
    "GetTensorMutableData": 51,
    "CastTypeInfoToTensorInfo": 55,
    "GetOnnxTypeFromTypeInfo": 56,
    "GetTensorElementType": 60,
    "GetDimensionsCount": 61,
    "GetDimensions": 62,
    "GetSymbolicDimensions": 63,
    "GetTensorTypeAndShape": 65,
    "AllocatorFree": 76,
    "GetAllocatorWithDefaultOptions": 78,
    "ReleaseStatus": 93,
    "ReleaseSession": 95,
    "ReleaseValue": 96,
    "ReleaseTypeInfo": 98,
    "ReleaseTensorTypeAndShapeInfo": 99,
    "ReleaseSessionOptions": 100,
    "SessionGetModelMetadata": 111,
    "ModelMetadataLookupCustomMetadataMap": 116,
    "ReleaseModelMetadata": 118,
    "ModelMetadataGetCustomMetadataMapKeys": 123,
    "AddSessionConfigEntry": 130,
}
"""Each function's index in the runtime's table."""
WITHOUT_STATUS: Final = frozenset({"GetErrorCode", "GetErrorMessage"})

_IN_ORDER: Final = (
    "float uint8 int8 uint16 int16 int32 int64 string bool float16 double uint32 uint64 complex64 complex128 bfloat16 "
    "float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz uint4 int4"
)
ELEMENTS: Final = {**dict(enumerate(_IN_ORDER.split(), 1)), 24: "uint2", 25: "int2"}
"""Element types by number."""
NUMBERS: Final = {name: number for number, name in ELEMENTS.items()}
TENSOR: Final = 1
OTHER_KINDS: Final = ("unknown", "tensor", "seq", "map", "opaque", "sparse_tensor", "optional")
ERRORS_ONLY: Final = 3


class NativeError(RuntimeError):
    """An error status of the runtime, with its message."""


class InvalidProtobuf(NativeError):
    """The file is not a model."""


INVALID_PROTOBUF: Final = 7


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output, described as onnxruntime's own session does."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]

    @property
    def plain(self) -> bool:
        """Whether this is a tensor of numbers, which can be bound to memory."""
        return self.type.startswith("tensor(") and "string" not in self.type


class Runtime:
    """The runtime's C library and the loop, if one was compiled. Loading it starts no thread; the first session does.

    Raises OSError or `NativeError`.
    """

    def __init__(self, library: Path, loop: Path | None) -> None:
        base = ctypes.CDLL(str(library)).OrtGetApiBase
        base.restype = POINTER(c_void_p)
        functions = base()
        table = ctypes.CFUNCTYPE(c_void_p, ctypes.c_uint32)(functions[0])(API_VERSION)
        self.version = (ctypes.CFUNCTYPE(c_char_p)(functions[1])() or b"").decode()
        """Version of the runtime, such as `1.31.1`."""
        if not table:
            raise NativeError(f"onnxruntime {self.version} has no interface of version {API_VERSION}")
        self._table = cast(table, POINTER(c_void_p))
        self._calls: dict[str, Callable[..., Any]] = {}
        self._env = c_void_p()
        self.loop = ctypes.CDLL(str(loop)) if loop is not None else None
        """None: the loop is Python and calls through ctypes."""
        if self.loop is not None:
            self.loop.sark_time.restype = c_void_p
            self.loop.sark_time.argtypes = [c_void_p, c_void_p, c_int64, c_int64, c_int64]
            self.loop.sark_clock.restype = None
            self.loop.sark_clock.argtypes = [c_void_p, c_int64]

    def address(self, name: str) -> int:
        return int(self._table[INDEX[name]] or 0)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function. Raises `NativeError` for an error status."""
        function = self._calls.get(name)
        if function is None:
            restype: Any = {"GetErrorMessage": c_char_p, "GetErrorCode": c_int}.get(name, c_void_p)
            restype = None if name.startswith("Release") else restype
            function = self._calls[name] = ctypes.CFUNCTYPE(restype)(self.address(name))
        result = function(*arguments)
        if name.startswith("Release") or name in WITHOUT_STATUS:
            return result
        if result:
            raise self.error(result)
        return None

    def error(self, status: int) -> NativeError:
        """The error of a status; releases the status."""
        pointer = c_void_p(status)
        kind = InvalidProtobuf if self.call("GetErrorCode", pointer) == INVALID_PROTOBUF else NativeError
        message = (self.call("GetErrorMessage", pointer) or b"").decode("utf-8", "replace")
        self.call("ReleaseStatus", pointer)
        return kind(message)

    def start(self) -> None:
        """Create the runtime's environment, once, before any session; its time is part of no figure."""
        if self._env.value is None:
            os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
            self.call("CreateEnv", ERRORS_ONLY, b"sark", byref(self._env))
            self.call("DisableTelemetryEvents", self._env)

    def options(self, threads: int) -> c_void_p:
        """Session options, equal to `drivers.onnx.session.options`. `open` releases them."""
        chosen = c_void_p()
        self.call("CreateSessionOptions", byref(chosen))
        self.call("SetIntraOpNumThreads", chosen, threads)
        self.call("SetInterOpNumThreads", chosen, 1)
        self.call("SetSessionExecutionMode", chosen, 0)
        self.call("SetSessionLogSeverityLevel", chosen, ERRORS_ONLY)
        self.call("AddSessionConfigEntry", chosen, b"session.intra_op.allow_spinning", b"0")
        return chosen

    def open(self, model: str, threads: int) -> NativeSession:
        """Load a model; `NativeSession.load_ns` says how long it took. Raises `NativeError`."""
        self.start()
        chosen, handle = self.options(threads), c_void_p()
        path: Any = model if sys.platform == "win32" else os.fsencode(model)
        began = time.perf_counter_ns()
        try:
            self.call("CreateSession", self._env, path, chosen, byref(handle))
            took = time.perf_counter_ns() - began
        finally:
            self.call("ReleaseSessionOptions", chosen)
        return NativeSession(self, handle, took)


class NativeSession:
    """A loaded model, with the methods of onnxruntime's own session that `drivers.onnx.session` uses."""

    def __init__(self, runtime: Runtime, handle: c_void_p, load_ns: int) -> None:
        self.runtime = runtime
        self.handle = handle
        self.load_ns = load_ns
        allocator = c_void_p()
        runtime.call("GetAllocatorWithDefaultOptions", byref(allocator))
        self.allocator = allocator
        self._inputs = self._ports("Input")
        self._outputs = self._ports("Output")

    def __del__(self) -> None:
        if self.handle.value is not None:
            self.runtime.call("ReleaseSession", self.handle)
            self.handle = c_void_p()

    def get_inputs(self) -> tuple[Port, ...]:
        """The model's inputs. Raises UnicodeDecodeError for a name that is not in UTF-8, as onnxruntime does."""
        return self._inputs

    def get_outputs(self) -> tuple[Port, ...]:
        return self._outputs

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]

    @property
    def plain(self) -> bool:
        """Whether all inputs and outputs are tensors of numbers."""
        return all(port.plain for port in (*self._inputs, *self._outputs))

    def _ports(self, side: str) -> tuple[Port, ...]:
        count = c_size_t()
        self.runtime.call(f"SessionGet{side}Count", self.handle, byref(count))
        return tuple(self._port(side, index) for index in range(count.value))

    def _port(self, side: str, index: int) -> Port:
        call, at = self.runtime.call, c_size_t(index)
        name, info, kind, tensor = c_void_p(), c_void_p(), c_int(), c_void_p()
        call(f"SessionGet{side}Name", self.handle, at, self.allocator, byref(name))
        call(f"SessionGet{side}TypeInfo", self.handle, at, byref(info))
        try:
            call("GetOnnxTypeFromTypeInfo", info, byref(kind))
            text = self._text(name)
            if kind.value != TENSOR:
                return Port(text, _other_kind(kind.value), ())
            call("CastTypeInfoToTensorInfo", info, byref(tensor))
            number, shape = self.tensor_info(tensor)
            return Port(text, f"tensor({ELEMENTS.get(number, f'element {number}')})", shape)
        finally:
            call("ReleaseTypeInfo", info)

    def _text(self, pointer: c_void_p) -> str:
        """A text that the runtime allocated; releases it."""
        try:
            return ctypes.string_at(pointer.value or 0).decode()
        finally:
            self.runtime.call("AllocatorFree", self.allocator, pointer)

    def tensor_info(self, info: c_void_p) -> tuple[int, tuple[int | str | None, ...]]:
        """Element type and shape: a size, a symbol, or None for each axis."""
        call, number, rank = self.runtime.call, c_int(), c_size_t()
        call("GetTensorElementType", info, byref(number))
        call("GetDimensionsCount", info, byref(rank))
        sizes, symbols = (c_int64 * rank.value)(), (c_char_p * rank.value)()
        call("GetDimensions", info, sizes, rank)
        call("GetSymbolicDimensions", info, symbols, rank)
        shape = tuple(
            size if size >= 0 else (symbol.decode() if symbol else None)
            for size, symbol in zip(sizes, symbols, strict=True)
        )
        return number.value, shape

    def get_modelmeta(self) -> SimpleNamespace:
        """The model's own metadata. Raises UnicodeDecodeError if it is not UTF-8."""
        call, meta, keys, count = self.runtime.call, c_void_p(), c_void_p(), c_int64()
        call("SessionGetModelMetadata", self.handle, byref(meta))
        try:
            call("ModelMetadataGetCustomMetadataMapKeys", meta, self.allocator, byref(keys), byref(count))
            listed = cast(keys, POINTER(c_void_p))
            names = [self._text(c_void_p(listed[index])) for index in range(count.value)]
            if keys.value is not None:
                call("AllocatorFree", self.allocator, keys)
            metadata: dict[str, str] = {}
            for name in names:
                value = c_void_p()
                call(
                    "ModelMetadataLookupCustomMetadataMap",
                    *(meta, self.allocator, name.encode(), byref(value)),
                )
                if value.value is not None:
                    metadata[name] = self._text(value)
            return SimpleNamespace(custom_metadata_map=metadata)
        finally:
            call("ReleaseModelMetadata", meta)


def _other_kind(kind: int) -> str:
    return OTHER_KINDS[kind] if 0 <= kind < len(OTHER_KINDS) else "unknown"

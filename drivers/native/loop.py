"""One inference by the runtime's C interface, ready to be timed, and the proof that it works on this device."""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from array import array
from collections.abc import Mapping, Sequence
from ctypes import byref, c_char_p, c_int64, c_size_t, c_void_p, cast
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from drivers.native.ort_api import ELEMENTS, NUMBERS, NativeSession, Runtime


class Inference(ctypes.Structure):
    """`struct inference` of native_loop.c."""

    _fields_ = (
        ("run", c_void_p),
        ("release", c_void_p),
        ("session", c_void_p),
        ("input_names", c_void_p),
        ("inputs", c_void_p),
        ("input_count", c_size_t),
        ("output_names", c_void_p),
        ("output_count", c_size_t),
        ("outputs", c_void_p),
    )


class BoundSession:
    """One inference with bound inputs and outputs: a `timing.TimedLoop`. `run` makes one inference outside the loop."""

    def __init__(
        self, session: NativeSession, feeds: Mapping[str, tuple[str, tuple[int, ...], np.ndarray[Any, Any]]]
    ) -> None:
        self._session = session
        self._runtime = runtime = session.runtime
        names = [name.encode() for name in feeds]
        outputs = [port.name.encode() for port in session.get_outputs()]
        self._input_names = (c_char_p * len(names))(*names)
        self._inputs = (c_void_p * len(names))()
        self._output_names = (c_char_p * len(outputs))(*outputs)
        self._outputs = (c_void_p * len(outputs))()
        for index, (element, shape, values) in enumerate(feeds.values()):
            self._inputs[index] = self._tensor(element, shape, values)
        self.inference = Inference(
            runtime.address("Run"),
            None,
            session.handle,
            *(cast(self._input_names, c_void_p), cast(self._inputs, c_void_p), len(names)),
            *(cast(self._output_names, c_void_p), len(outputs), cast(self._outputs, c_void_p)),
        )
        self._call = ctypes.CFUNCTYPE(c_void_p)(runtime.address("Run"))
        self._arguments = (
            *(session.handle, c_void_p(), self._input_names, self._inputs, c_size_t(len(names))),
            *(self._output_names, c_size_t(len(outputs)), self._outputs),
        )

    def __del__(self) -> None:
        for value in (*self._inputs, *self._outputs):
            if value:
                self._runtime.call("ReleaseValue", c_void_p(value))

    def _tensor(self, element: str, shape: Sequence[int], values: np.ndarray[Any, Any]) -> int:
        """A tensor in the runtime's own memory, filled with the bytes of `values`."""
        value, data = c_void_p(), c_void_p()
        sizes = (c_int64 * len(shape))(*shape)
        call, number = self._runtime.call, NUMBERS[element]
        call(
            "CreateTensorAsOrtValue",
            *(self._session.allocator, sizes, c_size_t(len(shape)), number, byref(value)),
        )
        call("GetTensorMutableData", value, byref(data))
        if values.nbytes:
            ctypes.memmove(data, values.ctypes.data, values.nbytes)
        return value.value or 0

    def allocate_each_time(self) -> None:
        """Have each further inference allocate its outputs."""
        self.inference.release = self._runtime.address("ReleaseValue")
        self._release_outputs()

    def _release_outputs(self) -> None:
        for index, value in enumerate(self._outputs):
            if value:
                self._runtime.call("ReleaseValue", c_void_p(value))
            self._outputs[index] = None

    def run(self) -> None:
        """Make one inference. The first allocates the outputs, later ones write to them. Raises `NativeError`."""
        if self.inference.release:
            self._release_outputs()
        failed = self._call(*self._arguments)
        if failed:
            raise self._runtime.error(failed)

    def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        if self._runtime.loop is not None:
            address = samples.buffer_info()[0]
            failed = self._runtime.loop.sark_time(byref(self.inference), address, start, stop, per_sample)
            if failed:
                raise self._runtime.error(failed)
            return
        if self.inference.release:
            self._time_runs(samples, start, stop, per_sample)
            return
        clock, call, arguments = time.perf_counter_ns, self._call, self._arguments
        for index in range(start, stop):
            began = clock()
            for _ in range(per_sample):
                if failed := call(*arguments):
                    raise self._runtime.error(failed)
            samples[index] = round((clock() - began) / per_sample)

    def _time_runs(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        for index in range(start, stop):
            began = time.perf_counter_ns()
            for _ in range(per_sample):
                self.run()
            samples[index] = round((time.perf_counter_ns() - began) / per_sample)

    def overhead_ns(self) -> int:
        readings = array("q", bytes(8 * 200))
        if self._runtime.loop is not None:
            self._runtime.loop.sark_clock(readings.buffer_info()[0], len(readings))
            return round(median(readings))
        clock = time.perf_counter_ns
        ticks = [clock() for _ in range(201)]
        return round(median(later - sooner for sooner, later in itertools.pairwise(ticks)))

    def outputs(self) -> list[tuple[str, tuple[int, ...], bytes]]:
        """Element type, shape and bytes of each output of the last inference. 4-bit elements are packed two to a byte."""
        return [self._value(c_void_p(value)) for value in self._outputs]

    def _value(self, value: c_void_p) -> tuple[str, tuple[int, ...], bytes]:
        call, info, data = self._runtime.call, c_void_p(), c_void_p()
        call("GetTensorTypeAndShape", value, byref(info))
        try:
            number, axes = self._session.tensor_info(info)
        finally:
            call("ReleaseTensorTypeAndShapeInfo", info)
        element, shape = ELEMENTS[number], tuple(int(size or 0) for size in axes)
        call("GetTensorMutableData", value, byref(data))
        return (
            element,
            shape,
            ctypes.string_at(data, bytes_of(element, shape)) if data.value is not None else b"",
        )


BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("uint2", "int2"), 2),
    **dict.fromkeys(("uint4", "int4"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("float", "int32", "uint32"), 32),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 64),
    "complex128": 128,
}
"""Bits of one element; 8 for other types."""


def bytes_of(element: str, shape: Sequence[int]) -> int:
    return (math.prod(shape) * BITS.get(element, 8) + 7) // 8


def main(arguments: list[str]) -> None:
    """Verify the loop with a tiny model, in a process of its own. `arguments`: library, loop or an empty text, model, expected version.

    Exits with 0 and prints nothing if the calls that are measured turn 21 into 42.
    """
    library, loop, model, version = arguments
    runtime = Runtime(Path(library), Path(loop) if loop else None)
    assert runtime.version == version, f"the library is of onnxruntime {runtime.version}, not {version}"
    session = runtime.open(model, 1)
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", (1,)), x
    assert (y.name, y.type) == ("y", "tensor(float)"), y
    assert dict(session.get_modelmeta().custom_metadata_map) == {}
    bound = BoundSession(session, {"x": ("float", (1,), np.array([21], np.float32))})
    bound.run()
    samples = array("q", bytes(8 * 20))
    bound.time(samples, 0, 10, 1)
    bound.time(samples, 10, 20, 7)
    assert 0 < min(samples) <= max(samples) < 10**9, list(samples)
    assert bound.outputs() == [("float", (1,), np.array([42], np.float32).tobytes())], bound.outputs()
    bound.allocate_each_time()
    bound.time(samples, 0, 10, 1)
    assert bound.outputs() == [("float", (1,), np.array([42], np.float32).tobytes())], bound.outputs()
    assert 0 <= bound.overhead_ns() < 10**6

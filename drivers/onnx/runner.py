"""An inference in place: a session with its inputs and outputs bound, by the C interface on the CPU, by IO binding elsewhere.

Both kinds have the same face: `first()` is the cold inference, `settle_outputs()` gives the outputs memory of their own, `loop`
is what gets timed, `outputs()` is what the last inference gave, `notes` say how it was done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, Protocol

import numpy as np

from drivers.inputs.made import DTYPES, NARROW, Input, element_type
from drivers.measure.timing import TimedCalls, TimedLoop
from drivers.native import loop as native_run
from drivers.native import ort_api
from drivers.onnx import session as edge
from drivers.onnx.units import CPU, ProviderPlacement

Array = np.ndarray[Any, Any]
NEW_SHAPES: Final = "output shapes change from run to run: each inference includes their allocation"
UNBINDABLE: Final = "texts, sequences or maps cannot be bound: each inference includes their conversion"
HOST: Final = ProviderPlacement(CPU)


class InPlace(Protocol):
    """See the module."""

    notes: tuple[str, ...]

    @property
    def loop(self) -> TimedLoop:
        """One inference, to be timed."""
        ...

    def first(self) -> None:
        """The cold inference. Raises `Unfit` or `OutOfMemory` when these inputs do not run."""
        ...

    def settle_outputs(self) -> None:
        """After the first inference: give each output memory of its own, if the model keeps to the shapes it made."""
        ...

    def renew_outputs(self) -> bool:
        """From now on each inference allocates its outputs, because their shapes change; False if that is so already."""
        ...

    def outputs(self) -> dict[str, Any]:
        """What the last inference gave, by output name."""
        ...


def in_place(
    session: Any, feeds: Mapping[str, Array], inputs: Sequence[Input], place: ProviderPlacement
) -> InPlace:
    """The kind that fits the session."""
    if isinstance(session, ort_api.NativeSession):
        return NativeRunner(session, feeds, inputs)
    return Runner(session, feeds, inputs, place)


class NativeRunner:
    """By the C interface. All inputs and outputs are tensors of numbers here."""

    def __init__(
        self, session: ort_api.NativeSession, feeds: Mapping[str, Array], inputs: Sequence[Input]
    ) -> None:
        by = "compiled" if session.runtime.loop is not None else "ctypes, for want of a C compiler"
        self.notes: tuple[str, ...] = (f"timed by the C interface, loop: {by}",)
        self._names = [port.name for port in session.get_outputs()]
        shaped = {
            made.name: (made.dtype, feeds[made.name].shape, packed(made.dtype, feeds[made.name]))
            for made in inputs
        }
        self._bound = edge.translated(lambda: native_run.Bound(session, shaped))

    @property
    def loop(self) -> TimedLoop:
        """See `InPlace`."""
        bound: native_run.Bound = self._bound
        return bound

    def first(self) -> None:
        """See `InPlace`."""
        edge.translated(self._bound.run)

    def settle_outputs(self) -> None:
        """See `InPlace`. What the first inference allocated is kept and written to from now on."""
        try:
            self._bound.run()
        except ort_api.NativeError:
            self.renew_outputs()
            self.first()

    def renew_outputs(self) -> bool:
        """See `InPlace`."""
        if NEW_SHAPES in self.notes:
            return False
        self._bound.renew_outputs()
        self.notes = (*self.notes, NEW_SHAPES)
        return True

    def outputs(self) -> dict[str, Any]:
        """See `InPlace`."""
        return {
            name: from_bytes(element, shape, held)
            for name, (element, shape, held) in zip(self._names, self._bound.outputs(), strict=True)
        }


class Runner:
    """By onnxruntime's own package.

    Inputs are bound once, in the memory of the unit's device where it has some of its own; then the outputs stay there too, and
    an inference is over when the device has finished. Outputs are bound to preallocated memory when a second inference shows
    that their shapes stay; otherwise they are allocated each time. Texts, sequences and maps cannot be bound at all.
    """

    def __init__(
        self,
        session: Any,
        feeds: Mapping[str, Array],
        inputs: Sequence[Input],
        place: ProviderPlacement = HOST,
        ort: ModuleType | None = None,
    ) -> None:
        self.notes: tuple[str, ...] = ("timed through Python",)
        self._session = session
        self._ort = ort or edge.runtime()
        self._given = session.get_outputs()
        self._names = [told.name for told in self._given]
        self._feeds = dict(feeds)
        self._binding: Any = None
        self._held: list[Any] = []
        self.call: Callable[[Any], object] = lambda fed: session.run(None, fed)
        self.argument: Any = self._feeds
        bindable = all(told.type.startswith("tensor(") and "string" not in told.type for told in self._given)
        if not bindable or any(made.dtype == "string" for made in inputs):
            self.notes = (*self.notes, UNBINDABLE)
            return
        self._place = place
        if place.memory != "cpu":
            try:
                self._bind(inputs, feeds)
            except edge.runtime_errors() as why:
                self._place = HOST
                said = " ".join(str(why).split())[:200]
                self.notes = (*self.notes, f"no binding to the device's memory ({said}): transfers are timed")
            else:
                words = f"inputs and outputs in the memory of {place.memory}:{place.index}, each inference waited for"
                self.notes = (*self.notes, words)
                return
        elif place.provider != CPU:
            self.notes = (*self.notes, "inputs and outputs in host memory: transfers, if any, are timed")
        edge.translated(lambda: self._bind(inputs, feeds))

    def _bind(self, inputs: Sequence[Input], feeds: Mapping[str, Array]) -> None:
        binding = self._session.io_binding()
        self._held = [to_ortvalue(self._ort, feeds[made.name], made, self._place) for made in inputs]
        for made, value in zip(inputs, self._held, strict=True):
            binding.bind_ortvalue_input(made.name, value)
        self._binding = self.argument = binding
        self._bind_outputs()
        if self._place.memory == "cpu":
            self.call = self._session.run_with_iobinding
        else:
            binding.synchronize_inputs()
            self.call = self._call_and_wait

    def _bind_outputs(self) -> None:
        for told in self._given:
            if DTYPES[element_type(told.name, told.type)][1] is None:
                self._binding.bind_output(told.name, self._place.memory, self._place.index)
            else:  # its bytes can only be read where they lie
                self._binding.bind_output(told.name, "cpu")

    def _call_and_wait(self, binding: Any) -> None:
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    @property
    def loop(self) -> TimedLoop:
        """See `InPlace`."""
        return TimedCalls(self.call, self.argument)

    def first(self) -> None:
        """See `InPlace`."""
        edge.translated(lambda: self.call(self.argument))

    def settle_outputs(self) -> None:
        """See `InPlace`."""
        if self._binding is None:
            return
        values = self._binding.get_outputs()
        self._binding.clear_binding_outputs()
        for name, value in zip(self._names, values, strict=True):
            self._binding.bind_ortvalue_output(name, value)
        try:
            self.call(self._binding)
        except edge.runtime_errors():
            self.renew_outputs()

    def renew_outputs(self) -> bool:
        """See `InPlace`."""
        if self._binding is None or NEW_SHAPES in self.notes:
            return False
        self._same_call, self.call = self.call, self._call_with_new_outputs
        self.notes = (*self.notes, NEW_SHAPES)
        return True

    def _call_with_new_outputs(self, binding: Any) -> None:
        """A binding keeps what the last run allocated, and refuses another shape: let go of it first."""
        binding.clear_binding_outputs()
        self._bind_outputs()
        self._same_call(binding)

    def outputs(self) -> dict[str, Any]:
        """See `InPlace`: arrays, or lists and dicts for sequences and maps (then run once more)."""
        if self._binding is None:
            made = edge.translated(lambda: self._session.run(None, self._feeds))
            return dict(zip(self._names, made, strict=True))
        return {
            name: as_array(value)
            for name, value in zip(self._names, self._binding.get_outputs(), strict=True)
        }


def to_ortvalue(ort: ModuleType, fed: Array, made: Input, place: ProviderPlacement = HOST) -> Any:
    """An array as the runtime's own tensor, on the place's device; element types that numpy does not know stay in host memory."""
    number = DTYPES[made.dtype][1]
    if number is None:
        values = np.ascontiguousarray(fed).reshape(fed.shape)
        return ort.OrtValue.ortvalue_from_numpy(values, place.memory, place.index)
    value, held = ort.OrtValue.ortvalue_from_shape_and_type(list(fed.shape), number), packed(made.dtype, fed)
    if held.nbytes:
        ctypes.memmove(value.data_ptr(), held.ctypes.data, held.nbytes)
    return value


def packed(element: str, values: Array) -> Array:
    """The values as they lie in the runtime's memory: narrow integers several to a byte, the first in its lowest bits."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if element not in NARROW:
        return flat
    bits = NARROW[element]
    many = 8 // bits
    parts = np.zeros(-(-flat.size // many) * many, np.uint8)
    parts[: flat.size] = flat.astype(np.uint8) & ((1 << bits) - 1)
    shifted = parts.reshape(-1, many) << (np.arange(many, dtype=np.uint8) * bits)
    return np.asarray(shifted.sum(axis=1, dtype=np.uint8))


def as_array(value: Any) -> Array:
    """A tensor of the runtime as an array of its own: see `from_bytes`."""
    element = element_type("output", value.data_type())
    if DTYPES[element][1] is None:
        return np.array(value.numpy(), copy=True)
    shape = tuple(value.shape())
    size = native_run.bytes_of(element, shape)
    return from_bytes(element, shape, ctypes.string_at(value.data_ptr(), size) if size else b"")


def from_bytes(element: str, shape: tuple[int, ...], held: bytes) -> Array:
    """An array of its own. bfloat16 is widened to float32; 8-bit floats come as their bits; narrow integers as whole ones."""
    if element in NARROW:
        bits = NARROW[element]
        shifts = np.arange(8 // bits, dtype=np.uint8) * bits
        parts = (np.frombuffer(held, np.uint8)[:, None] >> shifts) & ((1 << bits) - 1)
        whole = parts.reshape(-1)[: int(np.prod(shape))].reshape(shape)
        sign = 1 << (bits - 1)
        return (whole.astype(np.int8) ^ sign) - sign if element.startswith("int") else whole
    flat = np.frombuffer(held, np.dtype(DTYPES[element][0]))
    if element == "bfloat16":
        return (flat.astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return flat.reshape(shape).copy()

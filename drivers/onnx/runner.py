"""From an order to an inference that runs: the model in its private folder, a session, bound inputs and outputs.

The CPU uses onnxruntime's C interface. It is opened when this module is imported, before the process is sandboxed (20 ms and 10 MB that no
launch then pays for; no thread and no session, so a zygote may import it). Other units use the IO binding of the Python package.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import numpy as np

from drivers.contract import memory, steps
from drivers.contract.base import MIB, MeasureReport, ProgressReport, Unfit, WorkOrder
from drivers.contract.boot import folder
from drivers.contract.hardware import threads_notes
from drivers.inputs.feeds import Shapes, find_runnable
from drivers.inputs.synthetic import DTYPES, NARROW, Input, element_type
from drivers.local.model import ExecutionPlace, LocalModel, Prepared
from drivers.measure.timing import TimedCalls, TimedLoop
from drivers.native import library, loop, ort_api
from drivers.onnx import session as edge
from drivers.onnx.operators import use_of_operators
from drivers.onnx.profile import profile, unit_that_ran
from drivers.onnx.units import CPU, ProviderPlacement, precision_notes
from protocol.formats.onnx import read_depth, read_table_rows
from protocol.formats.steps import POST

Array = np.ndarray[Any, Any]
NEW_SHAPES: Final = "output shapes change from run to run: each inference includes their allocation"
UNBINDABLE: Final = "texts, sequences or maps cannot be bound: each inference includes their conversion"
HOST: Final = ProviderPlacement(CPU)
FOLDER: Final = "model"
"""Folder in the child's private working directory."""
MAX_PROFILED: Final = 1024 * MIB
MAX_PROFILED_NS: Final = 5_000_000_000
"""Bytes of a model on the CPU, and nanoseconds of its load and first inference, up to which its operators are profiled."""
AGAIN_NS: Final = 1_000_000_000
"""A first inference shorter than this is followed by another one, which is warm."""


def open_runtime() -> ort_api.Runtime | None:
    """The runtime by its C interface; None if `library.prepare` has not verified it."""
    native = library.find(folder())
    if native is None:
        return None
    try:
        runtime = ort_api.Runtime(native.library, native.loop)
        runtime.start()
    except (OSError, ort_api.NativeError):
        return None
    return runtime


RUNTIME: Final = open_runtime()


class OnnxModel(LocalModel):
    """One order's model on its unit, as a private file."""

    _session: Any
    _runner: BoundModel

    def __init__(self, order: WorkOrder) -> None:
        super().__init__(order, f"onnxruntime {edge.runtime().__version__}")
        self._place = edge.placement_of(order.unit, order.gpu, self.threads)
        self._path = str(edge.private_copy(order.model, Path(f"{FOLDER}{order.slot or ''}")))
        self._native = RUNTIME if self._place.provider == CPU else None
        if self._native is not None:
            self._native.start()
        self._options = edge.options(self.threads, optimise=True)

    def load(self) -> int:
        """Load the model; on the CPU by the C interface."""
        self._load_ns = self._load()
        return self._load_ns

    def _load(self) -> int:
        if self._native is None:
            began = time.perf_counter_ns()
            self._session = edge.open_session(self._path, self._place, self._options)
            return time.perf_counter_ns() - began
        try:
            self._session = self._native.open(self._path, self.threads)
        except UnicodeDecodeError as why:
            raise Unfit("the model has a name that is not in UTF-8") from why
        except ort_api.NativeError as why:
            raise edge.to_driver_error(why) from why
        load_ns: int = self._session.load_ns
        return load_ns

    def verify(self) -> None:
        edge.verify_provider(self.order.unit, self._place.provider, self._session.get_providers())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Turn the runtime's errors inside this block into errors of the contract."""
        try:
            yield
        except edge.runtime_errors() as why:
            raise edge.to_driver_error(why) from why

    def prepare(self) -> Prepared:
        """The first inputs that run. A session that failed with other inputs is opened again, because it keeps the memory that they
        took."""
        if isinstance(self._session, ort_api.NativeSession) and not self._session.plain:
            self._native = None  # it cannot bind these inputs or outputs
            self._reopen()
        inputs = edge.inputs_of(self._session)
        names = tuple(one.name for one in inputs if one.dtype in ("int32", "int64"))
        rows = read_table_rows(Path(self._path), names) if names else {}
        self.inputs = tuple(replace(one, rows=rows.get(one.name)) for one in inputs)
        if self.order.check and not self.order.brief:
            self.depth = read_depth(Path(self._path)) or self.depth
        steps.check(self.order.post, POST, [one.name for one in self._session.get_outputs()])
        tries: list[tuple[Shapes, int]] = []

        def attempt(shapes: Shapes, bound: int) -> Prepared:
            tries.append((shapes, bound))
            return self.attempt(shapes, bound)

        prepared = find_runnable(self.order, self.inputs, attempt)
        if len(tries) > 1:
            del prepared, self._runner  # they hold the old session
            self._reopen()
            prepared = self.attempt(*tries[-1])
        self._runner.preallocate_outputs()
        return prepared

    def _reopen(self) -> None:
        del self._session
        gc.collect()
        self.load()

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        feeds, pre_ns = self.feeds(shapes, bound)
        was_reset = memory.reset_peak()
        self._runner = runner = bind(self._session, feeds, self.inputs, self._place)
        began = time.perf_counter_ns()
        runner.first()
        first_ns = time.perf_counter_ns() - began

        def repeat() -> dict[str, Any]:
            runner.first()
            return runner.outputs()

        return Prepared(
            lambda: runner.loop, runner.outputs, repeat, feeds, shapes, bound, pre_ns, first_ns, was_reset
        )

    def time(self, prepared: Prepared, notes: list[str]) -> Generator[ProgressReport, None, MeasureReport]:
        """Time the model; if its outputs do not keep their shapes, time it again with outputs that each inference allocates."""
        try:
            try:
                return (yield from super().time(prepared, notes))
            except edge.runtime_errors():
                if not self._runner.allocate_each_time():
                    raise
                notes.clear()
                return (yield from super().time(prepared, notes))
        except edge.runtime_errors() as why:
            raise edge.to_driver_error(why) from why

    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        """Where the model ran, from a profile. On the CPU, where a profile shows only times, only if a second session is cheap."""
        unit, provider = self.order.unit, self._place.provider
        providers = tuple(self._session.get_providers())
        on_cpu = provider == CPU
        if on_cpu and (self._size() > MAX_PROFILED or self._load_ns + prepared.first_ns > MAX_PROFILED_NS):
            return ExecutionPlace(unit, providers)

        def infer(options: Any) -> Any:
            session = edge.open_session(self._path, self._place, options)
            runner = Runner(session, prepared.feeds, self.inputs, self._place)
            runner.first()
            if prepared.first_ns < AGAIN_NS:
                runner.first()
            return session

        facts = profile(infer, edge.options(self.threads, optimise=True), with_log=not on_cpu)
        operators = use_of_operators(facts, provider, issued=self._place.memory != HOST.memory)
        if on_cpu:
            return ExecutionPlace(unit, providers, operators=operators)
        return replace(unit_that_ran(unit, provider, providers, facts.nodes), operators=operators)

    def _size(self) -> int:
        """Bytes of the model with its weights."""
        model = Path(self.order.model)
        files = model.rglob("*") if model.is_dir() else [model]
        return sum(file.stat().st_size for file in files if file.is_file())

    def notes(self, prepared: Prepared) -> list[str]:
        notes = [*threads_notes(self.order.threads), *self._runner.notes, "intra-op threads do not spin"]
        if self._place.provider != CPU:
            notes += precision_notes(self._place, self._session.get_provider_options())
        if any("int" in one.dtype and not one.rows for one in self.inputs):
            notes.append(f"generated integers are below {prepared.bound}")
        tables = [one for one in self.inputs if one.rows]
        return [
            *notes,
            *(
                f"ids of {one.name!r} are below {one.rows}, the number of rows of their table"
                for one in tables
            ),
        ]

    def reference(self, prepared: Prepared) -> dict[str, Any]:
        """Outputs of a session on the CPU without graph optimisation."""
        session = edge.open_session(self._path, HOST, edge.options(self.threads, optimise=False))
        plain = Runner(session, prepared.feeds, self.inputs)
        plain.first()
        return plain.outputs()


# -- bound inputs and outputs ------------------------------------------------------------------------------------------------


class BoundModel(Protocol):
    notes: tuple[str, ...]
    """Notes for the row on how the model was run."""

    @property
    def loop(self) -> TimedLoop:
        """One inference, to be timed."""
        ...

    def first(self) -> None:
        """Make the cold inference. Raises `Unfit` or `OutOfMemory` if these inputs do not run."""
        ...

    def preallocate_outputs(self) -> None:
        """After the first inference: preallocate the outputs, if the model keeps their shapes."""
        ...

    def allocate_each_time(self) -> bool:
        """Have each further inference allocate its outputs, because their shapes change; False if it already does."""
        ...

    def outputs(self) -> dict[str, Any]:
        """The outputs of the last inference by name."""
        ...


def bind(
    session: Any, feeds: Mapping[str, Array], inputs: Sequence[Input], place: ProviderPlacement
) -> BoundModel:
    """Bind the inputs with the runner that fits the session."""
    if isinstance(session, ort_api.NativeSession):
        return NativeRunner(session, feeds, inputs)
    return Runner(session, feeds, inputs, place)


class NativeRunner:
    """Runs a model by the C interface; all inputs and outputs are tensors of numbers."""

    def __init__(
        self, session: ort_api.NativeSession, feeds: Mapping[str, Array], inputs: Sequence[Input]
    ) -> None:
        by = "compiled" if session.runtime.loop is not None else "ctypes, without a C compiler"
        self.notes: tuple[str, ...] = (f"timed by the C interface, loop: {by}",)
        self._names = [port.name for port in session.get_outputs()]
        shaped = {
            made.name: (made.dtype, feeds[made.name].shape, packed(made.dtype, feeds[made.name]))
            for made in inputs
        }
        self._bound = edge.translated(lambda: loop.BoundSession(session, shaped))

    @property
    def loop(self) -> TimedLoop:
        bound: loop.BoundSession = self._bound
        return bound

    def first(self) -> None:
        edge.translated(self._bound.run)

    def preallocate_outputs(self) -> None:
        """Have further inferences write to the outputs that the first one allocated."""
        try:
            self._bound.run()
        except ort_api.NativeError:
            self.allocate_each_time()
            self.first()

    def allocate_each_time(self) -> bool:
        if NEW_SHAPES in self.notes:
            return False
        self._bound.allocate_each_time()
        self.notes = (*self.notes, NEW_SHAPES)
        return True

    def outputs(self) -> dict[str, Any]:
        return {
            name: from_bytes(element, shape, data)
            for name, (element, shape, data) in zip(self._names, self._bound.outputs(), strict=True)
        }


class Runner:
    """Runs a model by onnxruntime's own package.

    Inputs are bound once, in the device's own memory if it has any. Then the outputs stay there too, and an inference ends when the device
    has finished. Outputs are preallocated if a second inference shows that their shapes stay. Texts, sequences and maps cannot be bound.
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
        self._ports = session.get_outputs()
        self._names = [port.name for port in self._ports]
        self._feeds = dict(feeds)
        self._binding: Any = None
        self._values: dict[str, Any] = {}
        self._allocated_by: Any = None
        """The binding that allocated the outputs, and keeps them alive."""
        self.call: Callable[[Any], object] = lambda fed: session.run(None, fed)
        self.argument: Any = self._feeds
        bindable = all(port.type.startswith("tensor(") and "string" not in port.type for port in self._ports)
        if not bindable or any(made.dtype == "string" for made in inputs):
            self.notes = (*self.notes, UNBINDABLE)
            return
        self._place = place
        if place.memory != "cpu":
            try:
                self._bind(inputs, feeds)
            except edge.runtime_errors() as why:
                self._place = HOST
                reason = " ".join(str(why).split())[:200]
                self.notes = (
                    *self.notes,
                    f"no binding to the device's memory ({reason}): transfers are timed",
                )
            else:
                note = f"inputs and outputs in the memory of {place.memory}:{place.index}, each inference waited for"
                self.notes = (*self.notes, note)
                return
        elif place.provider != CPU:
            self.notes = (*self.notes, "inputs and outputs in host memory: transfers, if any, are timed")
        edge.translated(lambda: self._bind(inputs, feeds))

    def _bind(self, inputs: Sequence[Input], feeds: Mapping[str, Array]) -> None:
        self._values = {
            made.name: to_ortvalue(self._ort, feeds[made.name], made, self._place) for made in inputs
        }
        self._bind_inputs()
        self._bind_outputs()
        self.call = self._session.run_with_iobinding if self._place.memory == "cpu" else self._call_and_wait

    def _bind_inputs(self) -> None:
        """Bind the inputs to a new binding."""
        self._binding = self.argument = binding = self._session.io_binding()
        for name, value in self._values.items():
            binding.bind_ortvalue_input(name, value)
        if self._place.memory != "cpu":
            binding.synchronize_inputs()

    def _bind_outputs(self) -> None:
        for port in self._ports:
            if DTYPES[element_type(port.name, port.type)][1] is None:
                self._binding.bind_output(port.name, self._place.memory, self._place.index)
            else:  # its bytes can only be read in host memory
                self._binding.bind_output(port.name, "cpu")

    def _call_and_wait(self, binding: Any) -> None:
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    @property
    def loop(self) -> TimedLoop:
        return TimedCalls(self.call, self.argument)

    def first(self) -> None:
        edge.translated(lambda: self.call(self.argument))

    def preallocate_outputs(self) -> None:
        if self._binding is None:
            return
        self._allocated_by, values = self._binding, self._binding.get_outputs()
        self._bind_inputs()
        for name, value in zip(self._names, values, strict=True):
            self._binding.bind_ortvalue_output(name, value)
        try:
            self.call(self._binding)
        except edge.runtime_errors():
            self.allocate_each_time()

    def allocate_each_time(self) -> bool:
        if self._binding is None or NEW_SHAPES in self.notes:
            return False
        self._plain_call, self.call = self.call, self._call_with_new_outputs
        self._allocated_by = None
        self.notes = (*self.notes, NEW_SHAPES)
        return True

    def _call_with_new_outputs(self, binding: Any) -> None:
        """Release the outputs before the call: a binding keeps those of the last run, and refuses other shapes."""
        binding.clear_binding_outputs()
        self._bind_outputs()
        self._plain_call(binding)

    def outputs(self) -> dict[str, Any]:
        """Arrays, or lists and dicts for sequences and maps (from one more inference)."""
        if self._binding is None:
            values = edge.translated(lambda: self._session.run(None, self._feeds))
            return dict(zip(self._names, values, strict=True))
        return {
            name: as_array(value)
            for name, value in zip(self._names, self._binding.get_outputs(), strict=True)
        }


# -- values ------------------------------------------------------------------------------------------------------------------


def to_ortvalue(ort: ModuleType, fed: Array, made: Input, place: ProviderPlacement = HOST) -> Any:
    """An array as the runtime's own tensor, on the device. Element types that numpy lacks stay in host memory."""
    number = DTYPES[made.dtype][1]
    if number is None:
        values = np.ascontiguousarray(fed).reshape(fed.shape)
        return ort.OrtValue.ortvalue_from_numpy(values, place.memory, place.index)
    value, data = ort.OrtValue.ortvalue_from_shape_and_type(list(fed.shape), number), packed(made.dtype, fed)
    if data.nbytes:
        ctypes.memmove(value.data_ptr(), data.ctypes.data, data.nbytes)
    return value


def packed(element: str, values: Array) -> Array:
    """The values in the runtime's layout: several narrow integers per byte, the first in the lowest bits."""
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
    """A copy of a tensor of the runtime: see `from_bytes`."""
    element = element_type("output", value.data_type())
    if DTYPES[element][1] is None:
        return np.array(value.numpy(), copy=True)
    shape = tuple(value.shape())
    size = loop.bytes_of(element, shape)
    return from_bytes(element, shape, ctypes.string_at(value.data_ptr(), size) if size else b"")


def from_bytes(element: str, shape: tuple[int, ...], data: bytes) -> Array:
    """An array from a tensor's bytes. bfloat16 is widened to float32; 8-bit floats stay bits; narrow integers are widened to 8 bits."""
    if element in NARROW:
        bits = NARROW[element]
        shifts = np.arange(8 // bits, dtype=np.uint8) * bits
        parts = (np.frombuffer(data, np.uint8)[:, None] >> shifts) & ((1 << bits) - 1)
        whole = parts.reshape(-1)[: int(np.prod(shape))].reshape(shape)
        sign = 1 << (bits - 1)
        return (whole.astype(np.int8) ^ sign) - sign if element.startswith("int") else whole
    flat = np.frombuffer(data, np.dtype(DTYPES[element][0]))
    if element == "bfloat16":
        return (flat.astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return flat.reshape(shape).copy()

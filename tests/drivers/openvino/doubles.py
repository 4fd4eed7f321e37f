"""A double of OpenVINO in numpy, as far as the driver uses it, for machines without OpenVINO. Its model multiplies one input by `gain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np

from drivers.openvino.runtime import OpenVinoRuntime


class TypeDouble:
    size = 4

    def __init__(self, name: str) -> None:
        self._name = name

    def get_type_name(self) -> str:
        return self._name


class SizeDouble:
    def __init__(self, size: int | None) -> None:
        self.is_dynamic = size is None
        self._size = size

    def get_length(self) -> int | None:
        return self._size


class ShapeDouble:
    def __init__(self, sizes: Sequence[int | None] | None) -> None:
        self.rank = SimpleNamespace(is_dynamic=sizes is None)
        self.sizes = sizes or ()
        self.is_dynamic = sizes is None or None in self.sizes

    def __iter__(self) -> Any:
        return (SizeDouble(size) for size in self.sizes)

    def to_shape(self) -> Sequence[int | None]:
        return self.sizes


class PortDouble:
    def __init__(self, names: set[str], sizes: Sequence[int | None] | None, element: str = "f32") -> None:
        self._names = names
        self.shape = ShapeDouble(sizes)
        self.element = TypeDouble(element)

    def get_names(self) -> set[str]:
        return self._names

    def get_partial_shape(self) -> ShapeDouble:
        return self.shape

    def get_element_type(self) -> TypeDouble:
        return self.element


class OperatorDouble:
    def __init__(self, name: str, kind: str, *before: OperatorDouble) -> None:
        self._name, self._kind, self._before = name, kind, before

    def get_name(self) -> str:
        return self._name

    def get_type_name(self) -> str:
        return self._kind

    def input_values(self) -> list[Any]:
        return [SimpleNamespace(get_node=lambda node=node: node) for node in self._before]

    def outputs(self) -> list[PortDouble]:
        return [PortDouble({self._name}, [1])]


class ModelDouble:
    def __init__(self, inputs: Sequence[PortDouble], *, states: int = 0, largest: int | None = None) -> None:
        self.inputs = list(inputs)
        self.outputs: list[Any] = [PortDouble({"y"}, [1])]
        self.largest = largest
        self._states = states
        x = OperatorDouble("x", "Parameter")
        product = OperatorDouble("p", "Multiply", x, OperatorDouble("w", "Constant"))
        last = OperatorDouble("r", "Relu", product)
        self.operators = [x, product, last, OperatorDouble("out", "Result", last)]

    def get_ops(self) -> list[OperatorDouble]:
        return self.operators

    get_ordered_ops = get_ops

    def get_variables(self) -> list[None]:
        return [None] * self._states

    def reshape(self, shapes: Mapping[int, list[int]]) -> None:
        for index, sizes in shapes.items():
            if self.largest is not None and max(sizes) > self.largest:
                raise RuntimeError("Check 'fits' failed at src/core/shape.cpp:7:\nthe sizes do not fit")
            self.inputs[index].shape = ShapeDouble(sizes)

    def add_outputs(self, outputs: Sequence[Any]) -> None:
        self.outputs += outputs


class RequestDouble:
    def __init__(self, core: CoreDouble, gain: float, profile: Sequence[Any]) -> None:
        self._core, self._gain, self._profile = core, gain, profile
        self._fed: Any = None
        self._made: Any = None

    def set_input_tensor(self, index: int, tensor: Any) -> None:
        self._fed = tensor.data

    def reset_state(self) -> None:
        self._core.resets += 1

    def infer(self, inputs: Any = None, share_outputs: bool = False) -> None:
        fed = self._fed if inputs is None else inputs[0]
        self._made = fed * fed.dtype.type(self._gain)

    def get_output_tensor(self, index: int) -> Any:
        return SimpleNamespace(data=self._made, get_element_type=lambda: TypeDouble("f32"))

    def get_profiling_info(self) -> Sequence[Any]:
        return self._profile


def profiled(op: str, how: str, micros: int, status: str = "EXECUTED") -> Any:
    return SimpleNamespace(
        node_type=op,
        exec_type=how,
        status=SimpleNamespace(name=status),
        real_time=timedelta(microseconds=micros),
    )


class CoreDouble:
    """`gains`: the factor of each device. `wide`: the factor in float32, or None for the same."""

    def __init__(self, *devices: str, precision: str = "f32", threads: int | None = None) -> None:
        self.available_devices = list(devices or ("CPU",))
        self.gains = dict.fromkeys(self.available_devices, 2.0)
        self.wide: float | None = None
        self.precision = precision
        self.threads = threads
        self.runs_on: list[str] | None = None
        self.obeys = True
        """Whether it computes in the requested type."""
        self.model = ModelDouble([PortDouble({"x"}, [1])])
        self.read: list[str] = []
        self.asked: list[dict[str, object]] = []
        self.resets = 0
        self.profile = [profiled("Multiply", "jit_avx512_f32", 30), profiled("Relu", "undef", 0, "NOT_RUN")]

    def read_model(self, path: str) -> ModelDouble:
        self.read.append(path)
        if isinstance(self.model, Exception):
            raise self.model
        return self.model

    def get_property(self, device: str, name: str) -> object:
        return {"FULL_DEVICE_NAME": f"a  {device}", "DEVICE_UUID": f"aaaa{device[-1]}"}[name]

    def compile_model(self, model: object, device: str, config: Mapping[str, object]) -> Any:
        self.asked.append(dict(config))
        told: dict[str, object] = {
            "EXECUTION_DEVICES": self.runs_on or [device],
            "INFERENCE_PRECISION_HINT": TypeDouble(
                str(config.get("INFERENCE_PRECISION_HINT", self.precision)) if self.obeys else self.precision
            ),
            "INFERENCE_NUM_THREADS": self.threads or config.get("INFERENCE_NUM_THREADS"),
            "ENABLE_CPU_PINNING": True,
        }
        gain = self.gains[device]
        if config.get("INFERENCE_PRECISION_HINT") == "f32" and self.wide is not None:
            gain = self.wide

        def property_of(name: str) -> object:
            if told.get(name) is None:
                raise RuntimeError(f"no property {name}")
            return told[name]

        return SimpleNamespace(
            get_property=property_of, create_infer_request=lambda: RequestDouble(self, gain, self.profile)
        )


def runtime_double(core: CoreDouble) -> OpenVinoRuntime:
    ops = SimpleNamespace(parameter=lambda shape, kind: "x", add=lambda a, b: "x + x")
    ov = SimpleNamespace(
        __version__="2026.4.1-22982-e213a147257-releases/2026/4",
        Tensor=lambda values, shared_memory=False: SimpleNamespace(data=values),
        Type=SimpleNamespace(f32="f32"),
        Model=lambda outputs, inputs, name: (outputs, inputs, name),
        opset13=ops,
    )
    return OpenVinoRuntime(ov, core)


def fed(values: Sequence[float]) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)

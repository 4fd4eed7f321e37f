"""The inputs, outputs and operators of a model that OpenVINO has read, and arrays as OpenVINO's tensors. OpenVINO's objects are
arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from drivers.contract.base import Unfit
from drivers.inputs.synthetic import Input
from drivers.openvino.operators import DATA
from protocol.formats.shapes import InputPort

TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "f32": "float",
        "f64": "double",
        "f16": "float16",
        "bf16": "bfloat16",
        "boolean": "bool",
        "string": "string",
        **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
        **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    }
)
"""OpenVINO's element types → ours."""


def name_of(port: Any, otherwise: str) -> str:
    """The alphabetically first name of an input or output; some have none."""
    return min(port.get_names(), default=otherwise)


def inputs_of(
    model: Any,
    ports: Sequence[InputPort] = (),
    rows: Mapping[str, int] = MappingProxyType({}),
    given: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> tuple[Input, ...]:
    """The model's inputs. `ports`: inputs with the symbols of the model's file. `rows`: of tables that inputs index. `given`: complete
    shapes in the order.

    Raises `Unfit`.
    """
    known = {port.name: port for port in ports}
    made = []
    for index, one in enumerate(model.inputs):
        names = one.get_names()
        name = next((port for port in known if port in names), None) or name_of(one, f"input{index}")
        element = one.get_element_type().get_type_name()
        if element not in TYPES:
            raise Unfit(f"input {name!r} is of type {element}, which cannot be generated")
        shape = one.get_partial_shape()
        if shape.rank.is_dynamic:
            if name not in given:
                raise Unfit(
                    f"input {name!r} has an unknown number of dimensions: give its whole shape, "
                    f"inputs: {{{name}: [1, 3, 224, 224]}}, or --shape '{name}=1,3,224,224'"
                )
            sizes: tuple[int | str | None, ...] = tuple(None for _ in given[name])
        else:
            sizes = tuple(None if size.is_dynamic else int(size.get_length()) for size in shape)
        symbols = known[name].shape if name in known else ()
        if len(symbols) == len(sizes):
            sizes = tuple(
                symbol if size is None and isinstance(symbol, str) else size
                for size, symbol in zip(sizes, symbols, strict=True)
            )
        made.append(Input(name, TYPES[element], sizes, rows.get(name)))
    return tuple(made)


def output_names(model: Any) -> tuple[str, ...]:
    return tuple(name_of(one, f"output{index}") for index, one in enumerate(model.outputs))


def keep_shapes(model: Any, inputs: Sequence[Input], shapes: Mapping[str, Sequence[int]]) -> None:
    """Set the order's shape on each dynamic input, before the model is compiled."""
    if any(not isinstance(size, int) for one in inputs for size in one.shape):
        model.reshape({index: list(shapes[one.name]) for index, one in enumerate(inputs)})


def operator_types(model: Any) -> list[str]:
    return [operator.get_type_name() for operator in model.get_ops()]


def depth_of(model: Any) -> int | None:
    """Operators on the longest path through the model; None: it has none."""
    depths: dict[str, int] = {}
    for operator in model.get_ordered_ops():
        if operator.get_type_name() in DATA:
            depths[operator.get_name()] = 0
            continue
        before = (depths.get(value.get_node().get_name(), 0) for value in operator.input_values())
        depths[operator.get_name()] = 1 + max(before, default=0)
    return max(depths.values(), default=0) or None


def to_tensor(ov: Any, values: np.ndarray[Any, Any], dtype: str) -> Any:
    """A tensor in the array's own memory. `dtype`: type of the input, by our name."""
    if dtype == "bfloat16":
        return ov.Tensor(values, ov.Shape(list(values.shape)), ov.Type.bf16)
    if dtype == "string":
        return ov.Tensor(values.astype(str))
    return ov.Tensor(np.ascontiguousarray(values), shared_memory=True)


def to_array(tensor: Any) -> np.ndarray[Any, Any]:
    """A copy of a tensor's values; bfloat16 becomes float32, which can hold its values. Raises `Unfit` for types that no array has."""
    element = tensor.get_element_type().get_type_name()
    if element == "string":
        return np.array(tensor.str_data, dtype=object)
    if element == "bf16":
        bits = np.array(tensor.data).view(np.uint16)
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if element not in TYPES:
        raise Unfit(f"an output is of type {element}, which cannot be compared")
    return np.array(tensor.data)

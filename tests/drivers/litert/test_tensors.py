"""Inputs and outputs, from the interpreter's description of its tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drivers.contract.base import Unfit
from drivers.litert.tensors import read_ports


def details(name: str = "x", index: int = 0, dtype: Any = np.float32, **changes: Any) -> dict[str, Any]:
    shape = np.array([1, 8], np.int32)
    tensor = {"name": name, "index": index, "shape": shape, "shape_signature": shape, "dtype": dtype}
    return tensor | {"quantization": (0.0, 0)} | changes


def test_sizes_that_the_model_leaves_open_are_dynamic() -> None:
    (port,) = read_ports([details(shape_signature=np.array([-1, 8], np.int32))], {})
    assert (port.name, port.dtype, port.shape) == ("x", "float", (None, 8))
    (port,) = read_ports([details(shape_signature=np.array([], np.int32))], {})
    assert port.shape == (1, 8)


def test_the_signatures_names_come_first_and_no_two_are_the_same() -> None:
    tensors = [details("serving_default_a:0", 3), details("", 5), details("b", 6), details("b", 7)]
    assert [port.name for port in read_ports(tensors, {3: "a"})] == ["a", "tensor_5", "b#6", "b#7"]


def test_a_quantised_tensor_has_a_scale_and_its_values_are_what_they_stand_for() -> None:
    (port,) = read_ports([details(dtype=np.int8, quantization=(0.5, -128))], {})
    assert port.as_input().full_range
    assert port.real(np.array([-128, -127, 127], np.int8)).tolist() == [0.0, 0.5, 127.5]
    (ids,) = read_ports([details(dtype=np.int32, quantization=(0.0, 0))], {})
    assert not ids.as_input().full_range
    assert ids.real(np.array([3])).tolist() == [3]


@pytest.mark.parametrize("dtype", [np.bytes_, np.str_, np.object_])
def test_texts_are_texts(dtype: Any) -> None:
    assert read_ports([details(dtype=dtype)], {})[0].dtype == "string"


def test_types_that_cannot_be_made_are_refused_by_name() -> None:
    with pytest.raises(Unfit, match=r"tensor 'x' is of type complex64, which cannot be generated"):
        read_ports([details(dtype=np.complex64)], {})

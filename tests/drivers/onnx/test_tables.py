"""Tables that inputs index, found from the file alone."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from drivers.contract.base import Limits, ModelDescription, WorkOrder
from drivers.inputs.synthetic import Input, make
from drivers.launch.launch import Zygote, measure
from protocol.formats.model_files import FormatError
from protocol.formats.onnx import read_depth, read_graph, read_table_rows
from tests.drivers.onnx_models import FLOAT, INT32, INT64, OnnxModels, node, value

TABLE = helper.make_tensor("table", FLOAT, [50, 2], [0.5] * 100)


def lookup(models: OnnxModels, name: str, *nodes: object) -> Path:
    """A model with one input `ids`, some nodes, and a lookup in `table` by their output `at`."""
    gather = node("Gather", ["table", "at"], ["y"])
    inputs, outputs = [value("ids", INT32, ["n"])], [value("y", FLOAT, None)]
    return Path(models.put(name, [*nodes, gather], inputs, outputs, TABLE))


def test_the_rows_of_a_table_are_found(models: OnnxModels) -> None:
    assert read_table_rows(Path(models.embedding()), ("input_ids", "attention_mask")) == {"input_ids": 10}


def test_ids_are_followed_through_what_leaves_them_as_they_are(models: OnnxModels) -> None:
    result = lookup(
        models, "cast", node("Cast", ["ids"], ["wide"], to=INT64), node("Identity", ["wide"], ["at"])
    )
    assert read_table_rows(result, ("ids",)) == {"ids": 50}


def test_ids_that_are_computed_with_tell_nothing(models: OnnxModels) -> None:
    assert read_table_rows(lookup(models, "sum", node("Add", ["ids", "ids"], ["at"])), ("ids",)) == {}


def test_the_axis_of_the_lookup_counts(models: OnnxModels) -> None:
    nodes = [node("Gather", ["table", "ids"], ["y"], axis=-1)]
    model = models.put("axis", nodes, [value("ids", INT32, ["n"])], [value("y", FLOAT, None)], TABLE)
    assert read_table_rows(Path(model), ("ids",)) == {"ids": 2}


@given(st.binary(max_size=200))
def test_any_other_file_tells_nothing(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "rubbish.onnx"
    path.write_bytes(content)
    assert read_table_rows(path, ("ids",)) == {}
    with pytest.raises(FormatError):
        read_graph(path)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_model_with_a_wrong_byte_never_fails(models: OnnxModels, at: int, byte: int) -> None:
    path = models.folder / "wrong.onnx"
    content = bytearray(Path(models.embedding()).read_bytes())
    content[at % len(content)] = byte
    path.write_bytes(content)
    assert all(rows > 0 for rows in read_table_rows(path, ("input_ids",)).values())
    with contextlib.suppress(FormatError):
        assert read_graph(path).operators > 0
    assert (read_depth(path) or 1) > 0


def test_the_depth_is_that_of_the_longest_way(models: OnnxModels) -> None:
    nodes = [node("Neg", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Add", ["x", "b"], ["y"])]
    model = models.put("depth", nodes, [value("x", FLOAT, [2])], [value("y", FLOAT, [2])])
    assert read_depth(Path(model)) == 3


def test_a_file_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert read_table_rows(tmp_path / "nowhere.onnx", ("ids",)) == {}


def test_made_ids_fill_their_table() -> None:
    ids = make(Input("ids", "int64", (1, 5000), rows=30_000), (1, 5000), 0, 100)
    assert 29_000 < int(np.max(ids)) < 30_000


def test_a_row_says_what_its_ids_index(zygote: Zygote, models: OnnxModels) -> None:
    order = WorkOrder(
        models.embedding(), "CPU (ONNX)", runs=1, loads=1, warmup=1, threads=1, dims={"sequence": 8}
    )
    (result,) = [event for event in measure(order, Limits(), zygote) if isinstance(event, ModelDescription)]
    assert "ids of 'input_ids' are below 10, the number of rows of their table" in result.notes

"""What a .pte file describes, and the errors for broken files."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import Unfit
from drivers.executorch.program import BOUNDED, ProgramTensor, leaf_names, read_program
from drivers.executorch.samples import SampleCall, SampleValue, chain, write
from drivers.executorch.xnnpack import read_nodes
from drivers.local.flat_write import FlatWriter
from protocol.formats.model_files import FormatError

LEAF: Mapping[str, Any] = {"type": None, "context": None, "children_spec": []}


def node(kind: str, children: list[Any], keys: list[str] | None = None) -> dict[str, Any]:
    return {"type": f"builtins.{kind}", "context": json.dumps(keys), "children_spec": children}


def call(args: list[Any], keywords: Mapping[str, Any]) -> str:
    sides = [node("tuple", args), node("dict", list(keywords.values()), list(keywords))]
    return json.dumps([1, node("tuple", sides)])


def test_a_program_is_read_with_its_operators_and_parts(tmp_path: Path) -> None:
    values = [
        SampleValue((4, 8), dynamism=BOUNDED),
        SampleValue((8, 8), bytes(256)),
        SampleValue((4, 8), dynamism=BOUNDED),
    ]
    calls = [SampleCall((0, 1, 2, 2)), SampleCall((2, 1, 2, 2)), SampleCall((2, 2), backend="XnnpackBackend")]
    path = tmp_path / "m.pte"
    path.write_bytes(write(values, calls, [0], [2], keywords=("input_ids",)))
    plan = read_program(path)
    assert plan.inputs == (ProgramTensor("input_ids", "float", (4, 8), BOUNDED, (0, 1)),)
    assert (plan.method, plan.outputs) == ("forward", ("output0",))
    assert (dict(plan.kernels), dict(plan.parts)) == ({"aten::mm.out": 2}, {"XnnpackBackend": 1})
    assert (plan.keeps_state, plan.external) == (False, "")


def test_the_only_method_is_run_and_others_have_to_be_forward(tmp_path: Path) -> None:
    path = tmp_path / "m.pte"
    values = [SampleValue((1,)), SampleValue((1,))]
    path.write_bytes(write(values, [], [0], [1], method="encode"))
    assert read_program(path).method == "encode"
    path.write_bytes(write(values, [], [0], [1], method=""))
    assert read_program(path).method == ""


@pytest.mark.parametrize(
    ("args", "keywords", "names"),
    [
        ([LEAF, LEAF], {}, ("input0", "input1")),
        ([LEAF], {"mask": LEAF}, ("input0", "mask")),
        ([], {"input_ids": LEAF, "attention_mask": LEAF}, ("input_ids", "attention_mask")),
        ([node("dict", [LEAF, LEAF], ["a", "b"])], {}, ("input0.a", "input0.b")),
        ([node("list", [LEAF, node("tuple", [LEAF])])], {}, ("input0.0", "input0.1.0")),
        ([], {"a b": LEAF}, ("input0",)),
    ],
)
def test_inputs_have_the_names_that_their_callers_use(
    args: list[Any], keywords: Mapping[str, Any], names: tuple[str, ...]
) -> None:
    assert leaf_names(call(args, keywords), len(names), "input") == names


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "{}", "[1, 2]", call([LEAF], {}), "[1, " + '{"children_spec": [' * 2000, "[" * 100_000],
)
def test_names_that_cannot_be_read_are_numbers(text: str) -> None:
    assert leaf_names(text, 2, "input") == ("input0", "input1")


def test_outputs_have_the_keys_of_what_the_method_returns() -> None:
    tree = node("tuple", [node("dict", [LEAF, LEAF], ["logits", "cum"]), LEAF])
    assert leaf_names(json.dumps([1, tree]), 3, "output") == ("output0.logits", "output0.cum", "output1")
    keys = node("dict", [LEAF], ["logits"])
    assert leaf_names(json.dumps([1, keys]), 1, "output") == ("logits",)
    assert leaf_names(json.dumps([1, LEAF]), 1, "output") == ("output0",)


def test_operators_of_xnnpacks_parts_are_counted() -> None:
    made = FlatWriter()
    nodes = [made.table((0, "b", kind)) for kind in (7, 7, 2, 99)]
    graph = made.finish(made.table((1, "o", made.offsets(nodes))), b"XN01")
    header = b"\0\0\0\0XH00" + (30).to_bytes(2, "little") + (32).to_bytes(4, "little")
    blob = header + len(graph).to_bytes(4, "little") + bytes(14) + graph + b"weights"
    for content in (graph, blob):
        assert read_nodes(b"before" + content, 6, len(content)) == {
            "Conv2d": 2,
            "FullyConnected": 1,
            "operator 99": 1,
        }
    for content in (b"", b"another form of a part", b"\xff\xff\xff\xffXN01"):
        assert not read_nodes(content, 0, len(content))


WHOLE = chain(8, 2)


@pytest.mark.parametrize(
    "content", [WHOLE[:40], WHOLE[:8] + bytes(64), WHOLE[:8] + b"\xff" * 512, WHOLE[: len(WHOLE) // 3]]
)
def test_broken_programs_are_called_that(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.pte"
    path.write_bytes(content)
    with pytest.raises((FormatError, Unfit), match=r"broken|no method"):
        read_program(path)


def test_sizes_below_zero_are_impossible(tmp_path: Path) -> None:
    path = tmp_path / "m.pte"
    path.write_bytes(write([SampleValue((-2, -2)), SampleValue((1,))], [], [0], [1]))
    with pytest.raises(FormatError, match="impossible sizes"):
        read_program(path)


def test_bytes_that_were_changed_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pte"
    for seed in range(300):
        drawn, content = random.Random(seed), bytearray(WHOLE)
        for _ in range(4):
            content[drawn.randrange(8, len(content))] = drawn.randrange(256)
        path.write_bytes(bytes(content))
        with contextlib.suppress(FormatError, Unfit):  # any other error is a bug of ours
            read_program(path)

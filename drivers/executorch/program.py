"""The contents of a .pte file: inputs and outputs, operators, and the parts that backends run. Pure.

The runtime's Python interface reports only the largest sizes of inputs: neither which sizes are dynamic, nor names, operators or backends.
Slots are those of ExecuTorch's `program.fbs`.
"""

from __future__ import annotations

import json
import mmap
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import Unfit
from drivers.executorch.xnnpack import read_nodes
from drivers.local.flat_read import Bytes, FlatTable, root
from protocol.formats.model_files import FormatError

DTYPES: Final[Mapping[int, str]] = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float",
    7: "double",
    11: "bool",
    15: "bfloat16",
    27: "uint16",
    28: "uint32",
    29: "uint64",
}
"""`ScalarType` → element types as `drivers.inputs.synthetic` calls them."""
STATIC, BOUNDED, UNBOUNDED = range(3)
"""`TensorShapeDynamism`."""
NULL, INT, BOOL, DOUBLE, TENSOR, STRING = range(1, 7)
"""The first values of `KernelTypes`."""
KERNEL, DELEGATE = 1, 2
"""The first values of `InstructionArguments`."""
EXTERNAL: Final = 1
"""`TensorDataLocation`."""
SEGMENT: Final = 1
"""`DataLocation`."""
XNNPACK_ID: Final = "XnnpackBackend"
METHOD: Final = "forward"
_NAME: Final = re.compile(r"[\w.:/-]{1,100}")


@dataclass(frozen=True, slots=True)
class ProgramTensor:
    """An input that is a tensor."""

    name: str
    dtype: str
    sizes: tuple[int, ...]
    """Sizes; the largest size where one is dynamic."""
    dynamism: int = STATIC
    order: tuple[int, ...] = ()
    """Axes from the outermost in memory to the innermost."""


@dataclass(frozen=True, slots=True)
class ProgramConstant:
    """An input that is a plain value: the program accepts only the value that it was exported with."""

    name: str
    value: int | float | bool | str | None


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """One method of a program."""

    method: str
    inputs: tuple[ProgramTensor | ProgramConstant, ...]
    outputs: tuple[str, ...]
    kernels: Counter[str]
    """How often each operator is called that ExecuTorch's own kernels run, by name and overload."""
    parts: Counter[str]
    """Parts of the graph that backends run as one unit each, by the backend's id."""
    delegated: Counter[str]
    """Operators in XNNPACK's parts, by XNNPACK's name."""
    external: str = ""
    """Name of a tensor whose data are in another file; empty: there is none."""

    @property
    def tensors(self) -> tuple[ProgramTensor, ...]:
        return tuple(one for one in self.inputs if isinstance(one, ProgramTensor))

    @property
    def keeps_state(self) -> bool:
        """Whether operators write into their arguments, as `aten::copy_` does."""
        return any(name.partition(".")[0].endswith("_") for name in self.kernels)


def read_program(path: Path) -> ProgramPlan:
    """The method `forward`, or the only method. Raises `Unfit` or `FormatError`."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _Reader(content).plan()


class _Reader:
    def __init__(self, content: Bytes) -> None:
        self.content = content
        self.program = root(content)

    def plan(self) -> ProgramPlan:
        plan = self._method()
        meta = plan.table(1)
        encoded = ("", "") if meta is None else (meta.text(0), meta.text(1))
        inputs, outputs = plan.numbers(3, "i"), plan.numbers(4, "i")
        names = leaf_names(encoded[0], len(inputs), "input")
        kernels, parts, delegated = self._calls(plan)
        return ProgramPlan(
            plan.text(0),
            tuple(_input(name, plan.entry(2, at)) for name, at in zip(names, inputs, strict=True)),
            leaf_names(encoded[1], len(outputs), "output"),
            kernels,
            parts,
            delegated,
            next(_external(plan), ""),
        )

    def _method(self) -> FlatTable:
        methods = {plan.text(0): plan for plan in self.program.tables(1)}
        if METHOD not in methods and len(methods) != 1:
            there = ", ".join(methods)[:200] or "none"
            raise Unfit(
                f"the program has no method {METHOD!r} (it has: {there}): export the one to measure as {METHOD!r}"
            )
        return methods[METHOD] if METHOD in methods else next(iter(methods.values()))

    def _calls(self, plan: FlatTable) -> tuple[Counter[str], Counter[str], Counter[str]]:
        operators = [".".join(filter(None, (one.text(0), one.text(1)))) for one in plan.tables(6)]
        delegates = list(plan.tables(7))
        calls = Counter[tuple[int, int]]()
        for chain in plan.tables(5):
            for instruction in chain.tables(2):
                kind, call = instruction.union(0)
                if kind in (KERNEL, DELEGATE) and call is not None:
                    calls[kind, call.number(0, "i")] += 1
        kernels, parts, delegated = Counter[str](), Counter[str](), Counter[str]()
        for (kind, index), count in calls.items():
            if not 0 <= index < len(operators if kind == KERNEL else delegates):
                raise FormatError(
                    "the program is broken: it calls an operator or delegate that it does not list"
                )
            if kind == KERNEL:
                kernels[operators[index]] += count
                continue
            name = delegates[index].text(0)
            parts[name] += count
            if name == XNNPACK_ID:
                for node, nodes in self._nodes(delegates[index]).items():
                    delegated[node] += nodes * count
        return kernels, parts, delegated

    def _nodes(self, delegate: FlatTable) -> Counter[str]:
        """The operators in a part that the exporter made for XNNPACK."""
        where = delegate.table(1)
        if where is None:
            return Counter()
        index = where.number(1, "I")
        if where.number(0, "b") != SEGMENT:
            return read_nodes(self.content, *self.program.entry(3, index).span(0))
        segment = self.program.entry(4, index)
        return read_nodes(self.content, self._segments_at() + segment.number(0, "Q"), segment.number(1, "Q"))

    def _segments_at(self) -> int:
        """Start of the segments according to the extended header, whose fields are its mark, its length, the program's size, and this
        start."""
        return int.from_bytes(self.content[24:32], "little") if self.content[8:12] == b"eh00" else 0


def _input(name: str, value: FlatTable) -> ProgramTensor | ProgramConstant:
    kind, table = value.union(0)
    if kind == NULL:
        return ProgramConstant(name, None)
    if table is None or kind not in (INT, BOOL, DOUBLE, TENSOR, STRING):
        raise Unfit(
            f"input {name!r} is a list, which cannot be generated: export the model with tensors as inputs"
        )
    if kind == DOUBLE:
        return ProgramConstant(name, table.real(0))
    if kind == STRING:
        return ProgramConstant(name, table.text(0))
    if kind != TENSOR:
        value_of = table.number(0, "q" if kind == INT else "B")
        return ProgramConstant(name, value_of if kind == INT else bool(value_of))
    scalar = table.number(0, "b")
    if scalar not in DTYPES:
        raise Unfit(f"input {name!r} is of ExecuTorch's type {scalar}, which cannot be generated")
    sizes, order = table.numbers(2, "i"), table.numbers(3, "B")
    if any(size < 0 for size in sizes):
        raise FormatError(f"the program is broken: input {name!r} has impossible sizes")
    return ProgramTensor(name, DTYPES[scalar], sizes, table.number(8, "b"), order)


def _external(plan: FlatTable) -> Iterator[str]:
    """Names of tensors whose data are in a .ptd file."""
    for value in plan.tables(2):
        kind, tensor = value.union(0)
        extra = tensor.table(9) if kind == TENSOR and tensor is not None else None
        if extra is not None and extra.number(2, "b") == EXTERNAL:
            yield extra.text(1)[:100] or "a tensor"


def leaf_names(encoded: str, count: int, otherwise: str) -> tuple[str, ...]:
    """Names of a method's inputs or outputs: the keys of keyword arguments and dictionaries, if there are any, else `input0` or `output0`
    and so on.

    `encoded`: torch's pytree as JSON, of `(args, kwargs)` or of what the method returns.
    """
    plain = tuple(f"{otherwise}{index}" for index in range(count))
    try:
        tree = json.loads(encoded)[1]
        if otherwise == "input":
            positional, keywords = tree["children_spec"]
            names = [*_leaves(positional, "", otherwise), *_leaves(keywords, "", "")]
        else:
            names = [*_leaves(tree, "", otherwise)]
    except (ValueError, TypeError, LookupError, RecursionError):
        return plain
    good = len(names) == len(set(names)) == count and all(map(_NAME.fullmatch, names))
    return tuple(names) if good else plain


def _leaves(tree: Any, path: str, otherwise: str) -> Iterator[str]:
    """Names of a tree's leaves. `otherwise`: prefix of the numbers of children without a key, at the top."""
    kind, children = tree["type"], tree["children_spec"]
    if kind is None:
        yield path or f"{otherwise}0"
        return
    keys = json.loads(tree["context"]) if str(kind).endswith(("dict", "Dict")) else None
    if not isinstance(keys, list) or len(keys) != len(children):
        keys = [f"{otherwise}{index}" if not path else index for index in range(len(children))]
    for key, child in zip(keys, children, strict=True):
        yield from _leaves(child, f"{path}.{key}" if path else str(key), otherwise)

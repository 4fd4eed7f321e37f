"""Which operators a delegate took, according to the interpreter's list of its graph. Pure.

The graph keeps the operators that a delegate took, and has one more operator, `DELEGATE`, for each connected part of them. The part
consists of all operators on the paths from that operator's inputs to its outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from drivers.contract.base import MAX_OPERATORS, OperatorReport
from drivers.litert.units import KERNELS, XNNPACK

DELEGATE: Final = "DELEGATE"
STATEFUL: Final = frozenset({"ASSIGN_VARIABLE", "HASHTABLE_IMPORT"})
"""Operators that keep state for the next inference."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An operator of the graph, with the tensors that it takes and returns, by index."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Operators by type: those of the delegate, and those of the built-in kernels."""

    taken: Counter[str]
    left: Counter[str]
    parts: int
    """Parts of the graph that the delegate runs, each as one."""

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers with operators, the delegate first; for a graph without operators, the provider that would have run them."""
        return tuple(name for name, ops in ((XNNPACK, self.taken), (KERNELS, self.left)) if ops) or (KERNELS,)

    @property
    def keeps_state(self) -> bool:
        return not STATEFUL.isdisjoint({*self.taken, *self.left})

    def note(self) -> str:
        taken, total = self.taken.total(), self.taken.total() + self.left.total()
        parts = f", in {self.parts} part{'s' * (self.parts > 1)}" if self.parts else ""
        return f"{XNNPACK} took {taken} of {total} operators{parts}"

    def reports(self) -> tuple[OperatorReport, ...]:
        """Reports by type and provider, the most frequent first."""
        counts = Counter({(op, XNNPACK): count for op, count in self.taken.items()})
        counts.update({(op, KERNELS): count for op, count in self.left.items()})
        lines = sorted(counts.items(), key=lambda line: (-line[1], line[0]))[:MAX_OPERATORS]
        return tuple(OperatorReport(op=op[:200], provider=where, nodes=count) for (op, where), count in lines)


def read_nodes(details: Iterable[Mapping[str, Any]]) -> tuple[GraphNode, ...]:
    """The operators in the interpreter's own list."""
    return tuple(
        GraphNode(str(one["op_name"]), tuple(map(int, one["inputs"])), tuple(map(int, one["outputs"])))
        for one in details
    )


def place(nodes: Sequence[GraphNode]) -> Placement:
    """Find the operators of each `DELEGATE`, from its outputs back to its inputs."""
    maker = {tensor: at for at, node in enumerate(nodes) if node.op != DELEGATE for tensor in node.outputs}
    parts = [node for node in nodes if node.op == DELEGATE]
    taken: set[int] = set()
    for part in parts:
        todo = list(part.outputs)
        while todo:
            at = maker.get(todo.pop())
            if at is not None and at not in taken:
                taken.add(at)
                todo += [tensor for tensor in nodes[at].inputs if tensor not in part.inputs]
    ops = [(at in taken, node.op) for at, node in enumerate(nodes) if node.op != DELEGATE]
    return Placement(
        Counter(op for was_taken, op in ops if was_taken),
        Counter(op for was_taken, op in ops if not was_taken),
        len(parts),
    )

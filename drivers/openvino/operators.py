"""Where operators ran and how long they took, according to OpenVINO's profile of one inference. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from drivers.contract.base import MAX_OPERATORS, OperatorReport

DATA: Final = frozenset({"Constant", "Parameter", "Result"})
"""Nodes of a graph that compute nothing."""
MAX_TYPES: Final = 4


class ProfiledKernel(NamedTuple):
    """One kernel of the compiled model that ran."""

    op: str
    """The kernel's type, as the plug-in names it."""
    how: str
    """The implementation and the type in which it computes, such as `brgconv_avx512_bf16`."""
    ns: int


def kernels_of(profile: Iterable[Any]) -> list[ProfiledKernel]:
    """The kernels that ran. `profile`: OpenVINO's `ProfilingInfo`s."""
    return [
        ProfiledKernel(one.node_type, one.exec_type, one.real_time // timedelta(microseconds=1) * 1000)
        for one in profile
        if one.status.name == "EXECUTED" and one.node_type not in DATA
    ]


def operators_of(
    kernels: Sequence[ProfiledKernel], nodes: Iterable[str], device: str
) -> tuple[OperatorReport, ...]:
    """Operators by type, slowest first. `nodes`: the types in the model's graph, which was assigned to its device as a whole."""
    given = Counter(node for node in nodes if node not in DATA)
    ran = Counter(kernel.op for kernel in kernels)
    times: Counter[str] = Counter()
    for kernel in kernels:
        times[kernel.op] += kernel.ns
    every = sorted({*given, *ran}, key=lambda op: (-times[op], -given[op], op))
    return tuple(
        OperatorReport(op[:200], device, given[op], ran[op], times[op] if op in ran else None)
        for op in every[:MAX_OPERATORS]
    )


def types_note(kernels: Iterable[ProfiledKernel]) -> str:
    """The types in which the time was spent: `kernels by time: 93 % bf16, 7 % f32`; empty: unknown."""
    times: Counter[str] = Counter()
    for kernel in kernels:
        times[kernel.how.rpartition("_")[2].lower()] += kernel.ns
    total = sum(times.values())
    shares = [f"{ns / total:.0%} {name}" for name, ns in times.most_common(MAX_TYPES) if ns] if total else []
    return f"kernels by time: {', '.join(shares)}" if shares else ""

"""Where a model's operators ran and how long they took, according to what the runtime reports on one session: its profile of an inference,
the nodes of the graph that each provider was assigned, and its log. Pure.

A provider that compiles takes many nodes and runs them as one: then only the assignment has their names, and only the compiled node has a
time.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from drivers.contract.base import MAX_OPERATORS, OperatorReport

COPY: Final = "Memcpy"
"""Operators that the runtime inserts to copy values between devices."""
_SUFFIX: Final = "_kernel_time"
_NUMBERED: Final = re.compile(r"(_\d+)+$")
"""The suffix that a provider appends to the name of a part that it compiled."""
_NO_KERNEL: Final = re.compile(r"(\S+) kernel not found in registries for Op type: (\S+) node name: (.*)")
_FORCED: Final = re.compile(r"Force fallback to CPU execution for node: (.+?) because")
MAX_WHY: Final = 300


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One execution of a node, in microseconds of the runtime's clock."""

    node: str
    op: str
    provider: str
    began_us: int = 0
    took_us: int = 0
    """Microseconds, including the operators that this one called."""


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """A node of the graph, and the provider that it was assigned to before any were fused."""

    name: str
    op: str
    domain: str
    provider: str


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What the runtime reports on one session; an empty part: nothing reported."""

    calls: tuple[KernelCall, ...] = ()
    """Executions of the session's last inference."""
    assigned: tuple[AssignedNode, ...] = ()
    log: str = ""

    @property
    def nodes(self) -> Counter[str]:
        """Number of nodes that ran on each provider; a node counts once however often it ran."""
        return Counter({call.node: call.provider for call in self.calls}.values())


def read_profile(text: str) -> tuple[KernelCall, ...]:
    """The executions of the last inference in a profile, without copies. Empty if the profile is unusable."""
    try:
        events = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    since = 0
    calls: list[KernelCall] = []
    for event in events if isinstance(events, list) else []:
        if not isinstance(event, dict):
            continue
        began, took = _whole(event.get("ts")), _whole(event.get("dur"))
        if event.get("cat") == "Session" and event.get("name") == "model_run":
            since = max(since, began)
        args = event.get("args") if event.get("cat") == "Node" else None
        if not isinstance(args, dict) or not isinstance(provider := args.get("provider"), str):
            continue
        op = str(args.get("op_name", ""))
        if provider and not op.startswith(COPY):
            name = str(event.get("name")).removesuffix(_SUFFIX)
            calls.append(KernelCall(name, _NUMBERED.sub("", op), provider, began, took))
    return tuple(call for call in calls if call.began_us >= since)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def self_times(calls: Sequence[KernelCall]) -> list[tuple[KernelCall, int]]:
    """Each execution with its own microseconds: a loop's time excludes its body's. Executions follow or contain each other."""
    own = [call.took_us for call in calls]
    open_calls: list[int] = []
    for at in sorted(range(len(calls)), key=lambda at: (calls[at].began_us, -calls[at].took_us)):
        call = calls[at]
        while open_calls and _end(calls[open_calls[-1]]) <= call.began_us:
            open_calls.pop()
        if open_calls:
            own[open_calls[-1]] = max(0, own[open_calls[-1]] - call.took_us)
        open_calls.append(at)
    return list(zip(calls, own, strict=True))


def _end(call: KernelCall) -> int:
    return call.began_us + call.took_us


def reasons(log: str, assigned: Iterable[AssignedNode]) -> Mapping[str, str]:
    """Why the runtime assigned nodes of a type to a provider other than the requested one, by type, as far as its log says."""
    given: dict[str, Counter[str]] = defaultdict(Counter)
    types = {node.name: node.op for node in assigned if node.name}
    missing: set[tuple[str, str]] = set()
    forced: set[str] = set()
    for line in log.splitlines():
        if found := _NO_KERNEL.search(line):
            op, node = found[2], found[3].strip()
            if not node or (op, node) not in missing:
                missing.add((op, node))
                given[op][f"{found[1]} has no kernel for its version or types"] += 1
        elif (found := _FORCED.search(line)) and found[1] not in forced:
            forced.add(found[1])
            if found[1] in types:
                given[types[found[1]]]["the runtime considers the CPU faster for these"] += 1
    return {
        op: "; ".join(f"{number} × {why}" for why, number in whys.most_common())[:MAX_WHY]
        for op, whys in given.items()
    }


def use_of_operators(
    facts: SessionFacts, provider: str, *, issued: bool = False
) -> tuple[OperatorReport, ...]:
    """Operators by type and provider, slowest first. `provider`: the unit's provider. `issued`: times on it are times of issuing."""
    nodes = Counter((node.op, node.provider) for node in facts.assigned)
    domains = {(node.op, node.provider): node.domain for node in facts.assigned}
    ran: dict[tuple[str, str], set[str]] = defaultdict(set)
    times: Counter[tuple[str, str]] = Counter()
    for call, took_us in self_times(facts.calls):
        ran[call.op, call.provider].add(call.node)
        times[call.op, call.provider] += took_us
    whys = reasons(facts.log, facts.assigned)
    every = sorted({*nodes, *ran}, key=lambda key: (-times[key], -nodes[key], key))
    return tuple(
        OperatorReport(
            op=op[:200],
            domain=domains.get((op, where), "")[:200],
            provider=where[:200],
            nodes=nodes[op, where],
            ran=len(ran.get((op, where), ())),
            ns=times[op, where] * 1000 if (op, where) in ran else None,
            issued=issued and where == provider and (op, where) in ran,
            why=whys.get(op, "") if where != provider else "",
        )
        for op, where in every[:MAX_OPERATORS]
    )

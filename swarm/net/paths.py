"""The path to a peer as text (`direct, 3 ms`, `via gate 192.0.2.7:4101, 41 ms`) and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swarm.base.units import show_ms
from swarm.net.addresses import Address, circuits, parse_tcp
from swarm.net.network import Path


def path_words(path: Path | None, addresses: Sequence[Address] = ()) -> str:
    """For people; empty without a path. `addresses`: the peer's, which name the gate's own address."""
    if path is None:
        return ""
    route = "direct" if path.direct else f"via gate {gate_name(path.via, addresses)}"
    if path.rtt_ms is None:
        return route
    return f"{route}, {show_ms(round(path.rtt_ms, None if path.rtt_ms >= 10 else 1))}"


def gate_name(gate: str | None, addresses: Sequence[Address] = ()) -> str:
    """`192.0.2.7:4101` where its address is known, else the end of its id."""
    if gate is None:
        return "?"
    for circuit in circuits(addresses):
        where = parse_tcp(circuit.address)
        if circuit.gate == gate and where is not None:
            return f"[{where.host}]:{where.port}" if where.family == "ip6" else f"{where.host}:{where.port}"
    return f"…{gate[-8:]}"


def path_json(path: Path | None) -> dict[str, Any] | None:
    """`direct`, `gate` (its peer id, None where direct), `rtt_ms`; None without a path."""
    if path is None:
        return None
    rtt_ms = None if path.rtt_ms is None else round(path.rtt_ms, 3)
    return {"direct": path.direct, "gate": path.via, "rtt_ms": rtt_ms}

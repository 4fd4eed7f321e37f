"""A gate's status for people: the output of `sark-node gate status`, and its live view. Pure; fits 80 columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from protocol.messages.gate import GateSnapshot
from protocol.values.requirement import show_size
from swarm.base.text import count, escape_text

OVER: Final = 2
"""Lines above the rows of a table: a blank line and the header."""
TAIL: Final = 8
"""Trailing characters shown of a peer id."""
_UNITS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_ADMITS: Final = {"open": "anybody", "ticket": "members of its pools (ticket)", "list": "named peers (list)"}


def status_json(gate: str, snapshot: GateSnapshot, *, indent: int | None = 2) -> str:
    """The status as JSON. `gate`: its peer id."""
    return json.dumps({"gate": gate, **snapshot.model_dump(mode="json")}, indent=indent)


def status_view(
    gate: str,
    now: GateSnapshot,
    before: GateSnapshot | None = None,
    *,
    height: int | None = None,
    hint: Text | None = None,
) -> RenderableType:
    """The status. In the live view each fact takes one line, tables fill the rest of at most `height` lines, and `hint` is the last line.
    `before`: an earlier snapshot, for rates."""
    live = height is not None
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=9)
    table.add_column(no_wrap=live, overflow="ellipsis" if live else "fold")
    lines = _lines(gate, now, before)
    for what, value in lines:
        table.add_row(what, _on_one_line(value) if live else value)
    parts: list[RenderableType] = [table]
    circuits, peers = _line_count(now.circuits, now.busiest), _line_count(now.connected, now.peers)
    if height is not None:
        circuits, peers = shares(height - len(lines) - 2, circuits, peers)
    if circuits:
        rows = [
            (_tail(c.source), _tail(c.target), show_for(c.seconds), show_size(c.bytes)) for c in now.busiest
        ]
        parts += [Text(), _table(("circuit from", "to", "for", "carried"), rows, circuits, now.circuits)]
    if peers:
        listed = [
            (
                _tail(peer.peer),
                escape_text(peer.address) if peer.address else "through a gate",
                "yes" if peer.reserved else "",
            )
            for peer in now.peers
        ]
        parts += [Text(), _table(("peer", "address", "reservation"), listed, peers, now.connected)]
    if hint is not None:
        hint.no_wrap, hint.overflow = True, "ellipsis"
        parts += [Text(), hint] if height is None or height > len(lines) + 1 else [hint]
    return Group(*parts)


def shares(room: int, circuits: int, peers: int) -> tuple[int, int]:
    """Split `room` lines between `circuits` circuits and `peers` peers; each table takes `OVER` more lines."""
    one = room - OVER
    if not circuits or not peers or one - OVER < 2:
        first = min(circuits, max(0, one))
        return first, 0 if first else min(peers, max(0, one))
    both = one - OVER
    for_peers = min(peers, max(both // 2, both - circuits))
    return min(circuits, both - for_peers), for_peers


def _line_count(number: int, listed: Sequence[object]) -> int:
    """Lines for the listed items, and one that counts the rest."""
    return len(listed) + (number > len(listed)) if listed else 0


def _on_one_line(value: Text) -> Text:
    first, *others = value.split("\n")
    return Text.assemble(first, f" and {len(others)} more") if others else first


def _lines(gate: str, now: GateSnapshot, before: GateSnapshot | None) -> list[tuple[str, Text]]:
    state = "draining: accepts nothing new, about to stop" if now.draining else "up"
    up = Text(f"{state}, {show_for(now.uptime_s)}", style="yellow" if now.draining else "green")
    lines: list[tuple[str, str | Text]] = [
        ("gate", gate),
        ("state", up),
        ("version", f"{escape_text(now.version)}, start {now.incarnation}"),
        ("addresses", "\n".join(map(escape_text, now.addresses)) or "none"),
        ("admits", _ADMITS.get(now.admit, escape_text(now.admit))),
        ("peers", f"{now.connected} connected"),
        (
            "index",
            f"{count(now.adverts, 'device')}, {count(now.shards, 'shard')}, {show_size(now.advert_bytes)}",
        ),
    ]
    caps = now.caps
    if caps is None:
        lines.append(("relay", "off"))
    else:
        rate = _rate(now.relayed_bytes, before.relayed_bytes if before else None, now, before)
        speed = f", {show_size(int(rate))}/s now" if rate else ""
        limit = f", {show_size(caps.bytes_per_s)}/s at most" if caps.bytes_per_s else ""
        reservations = (
            f"{now.reservations} of {caps.reservations} held, {caps.reservations_per_network} for a network"
        )
        each = f"each {show_size(caps.circuit_bytes)}, {show_for(caps.circuit_s)} at most"
        lines += [
            ("reserved", f"{reservations}; {now.reservations_made} made so far"),
            ("circuits", f"{now.circuits} of {caps.circuits}, {each}; {now.circuits_begun} so far"),
            ("relayed", show_size(now.relayed_bytes) + speed + limit),
        ]
        if now.circuits_ended:
            lines.append(("ended", _counts(now.circuits_ended)))
    load = _rate(now.cpu_s, before.cpu_s if before else None, now, before)
    share = f", {100 * load:.0f} % of a core now" if load is not None else ""
    lines += [
        ("refused", _counts(now.refused) or "nothing"),
        ("memory", show_size(now.memory_bytes)),
        ("processor", f"{now.cpu_s:.1f} s used{share}; event loop at most {1000 * now.lag_s:.0f} ms late"),
    ]
    return [(what, value if isinstance(value, Text) else Text(value)) for what, value in lines]


def _rate(
    value: float, earlier: float | None, now: GateSnapshot, before: GateSnapshot | None
) -> float | None:
    if earlier is None or before is None or now.uptime_s - before.uptime_s < 0.2 or value < earlier:
        return None  # two snapshots of the same moment, or the gate restarted
    return (value - earlier) / (now.uptime_s - before.uptime_s)


def _counts(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{escape_text(what)} {number}" for what, number in most)


def _table(columns: Sequence[str], rows: Sequence[Iterable[str]], lines: int, number: int) -> Table:
    """The first of `number` rows in at most `lines` lines; if rows are left out, the last line counts them."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    shown = rows[: lines if number <= lines else lines - 1]
    for row in shown:
        table.add_row(*map(Text, row))
    if number > len(shown):
        table.add_row(Text(f"… {number - len(shown)} more", style="dim"))
    return table


def _tail(peer: str) -> str:
    return f"…{peer[-TAIL:]}"


def show_for(seconds: float) -> str:
    """A duration in its two largest units: `3 d 4 h`, `12 min 5 s`."""
    words = []
    for size, unit in _UNITS:
        whole, seconds = divmod(seconds, size)
        words += [f"{whole:.0f} {unit}"] if whole else []
    words += [f"{seconds:.0f} s"] if seconds >= 0.5 or not words else []
    return " ".join(words[:2])

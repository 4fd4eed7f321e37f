"""A gate's status for people: what `sark-node gate status` prints, and its live view. Pure; fits 80 columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from protocol.messages.gate import ConnectedPeer, GateSnapshot, LiveCircuit
from protocol.values.requirement import show_size
from swarm.base.text import escape_text

OVER: Final = 2
"""Lines above the rows of a table of the live view: a blank one, and its header."""
TAIL: Final = 8
"""Letters at the end of a peer id that are shown."""
_UNITS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def status_json(gate: str, snapshot: GateSnapshot) -> str:
    """As JSON. `gate`: its peer id."""
    return json.dumps({"gate": gate, **snapshot.model_dump(mode="json")}, indent=2)


def status_view(
    gate: str, now: GateSnapshot, before: GateSnapshot | None = None, *, rows: int = 12
) -> RenderableType:
    """The whole status. `before`: an earlier snapshot, for rates. `rows`: the most of circuits, and of peers."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for what, value in _lines(gate, now, before):
        table.add_row(what, value)
    parts: list[RenderableType] = [table]
    if now.busiest:
        parts += [Text(), _circuits(now, rows)]
    if now.peers:
        parts += [Text(), _peers(now, rows)]
    return Group(*parts)


def status_screen(
    gate: str, now: GateSnapshot, before: GateSnapshot | None, *, height: int, hint: Text
) -> RenderableType:
    """The same in at most `height` lines, one for each fact, as far as the facts leave room; `hint` comes last."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=9)
    table.add_column(no_wrap=True, overflow="ellipsis")
    lines = _lines(gate, now, before)
    for what, value in lines:
        table.add_row(what, _on_one_line(value))
    parts: list[RenderableType] = [table]
    circuits, peers = shares(
        height - len(lines) - 2, _line_count(now.circuits, now.busiest), _line_count(now.connected, now.peers)
    )
    if circuits:
        parts += [Text(), _circuits(now, _entries(circuits, now.circuits), titled=False)]
    if peers:
        parts += [Text(), _peers(now, _entries(peers, now.connected), titled=False)]
    hint.no_wrap, hint.overflow = True, "ellipsis"
    if height > len(lines) + 1:
        parts.append(Text())
    return Group(*parts, hint)


def shares(room: int, circuits: int, peers: int) -> tuple[int, int]:
    """Split `room` lines between so many circuits and peers; each table takes `OVER` lines more."""
    one = room - OVER
    if not circuits or not peers or one - OVER < 2:
        first = min(circuits, max(0, one))
        return first, 0 if first else min(peers, max(0, one))
    both = one - OVER
    for_peers = min(peers, max(both // 2, both - circuits))
    return min(circuits, both - for_peers), for_peers


def _line_count(number: int, listed: Sequence[object]) -> int:
    """Lines for the listed ones, and one for the others."""
    return len(listed) + (number > len(listed)) if listed else 0


def _entries(lines: int, number: int) -> int:
    """Rows for single entries, where the last line may count those left out."""
    return lines if number <= lines else lines - 1


def _on_one_line(value: Text) -> Text:
    first, *others = value.split("\n")
    return Text.assemble(first, f" and {len(others)} more") if others else first


def _lines(gate: str, now: GateSnapshot, before: GateSnapshot | None) -> list[tuple[str, Text]]:
    state = "draining: accepts nothing new, about to stop" if now.draining else "up"
    up = Text(f"{state}, {show_for(now.uptime_s)}", style="yellow" if now.draining else "green")
    caps = now.caps
    lines = [
        ("gate", Text(gate)),
        ("state", up),
        ("version", Text(f"{escape_text(now.version)}, start {now.incarnation}")),
        ("addresses", Text("\n".join(map(escape_text, now.addresses)) or "none")),
        ("admits", Text(_ADMITS.get(now.admit, escape_text(now.admit)))),
        ("peers", Text(f"{now.connected} connected")),
        ("index", Text(_index(now))),
    ]
    if caps is None:
        lines.append(("relay", Text("off")))
    else:
        rate = _rate(now.relayed_bytes, before.relayed_bytes if before else None, now, before)
        reservations = (
            f"{now.reservations} of {caps.reservations} held, {caps.reservations_per_network} for a network"
        )
        each = f"each {show_size(caps.circuit_bytes)}, {show_for(caps.circuit_s)} at most"
        lines += [
            ("reserved", Text(f"{reservations}; {now.reservations_made} made so far")),
            ("circuits", Text(f"{now.circuits} of {caps.circuits}, {each}; {now.circuits_begun} so far")),
            ("relayed", Text(show_size(now.relayed_bytes) + _speed(rate, caps.bytes_per_s))),
        ]
        if now.circuits_ended:
            lines.append(("ended", Text(_counts(now.circuits_ended))))
    lines.append(("refused", Text(_counts(now.refused) or "nothing")))
    load = _rate(now.cpu_s, before.cpu_s if before else None, now, before)
    share = f", {100 * load:.0f} % of a core now" if load is not None else ""
    lines.append(("memory", Text(show_size(now.memory_bytes))))
    lines.append(
        (
            "processor",
            Text(f"{now.cpu_s:.1f} s used{share}; event loop at most {1000 * now.lag_s:.0f} ms late"),
        )
    )
    return lines


def _index(now: GateSnapshot) -> str:
    devices = f"{now.adverts} device{'' if now.adverts == 1 else 's'}"
    return f"{devices}, {now.shards} shard{'' if now.shards == 1 else 's'}, {show_size(now.advert_bytes)}"


_ADMITS: Final = {
    "open": "anybody",
    "ticket": "members of its pools (ticket)",
    "list": "named peers (list)",
}


def _rate(
    value: float, earlier: float | None, now: GateSnapshot, before: GateSnapshot | None
) -> float | None:
    if earlier is None or before is None or now.uptime_s - before.uptime_s < 0.2 or value < earlier:
        return None  # two snapshots of one moment, or the gate restarted
    return (value - earlier) / (now.uptime_s - before.uptime_s)


def _speed(rate: float | None, most: int | None) -> str:
    now = f", {show_size(int(rate))}/s now" if rate else ""
    return now + (f", {show_size(most)}/s at most" if most else "")


def _counts(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{escape_text(what)} {count}" for what, count in most)


def _circuits(now: GateSnapshot, rows: int, *, titled: bool = True) -> Table:
    title = f"circuits, busiest first ({now.circuits})" if titled else None
    table = _table(title, ("from" if titled else "circuit from", "to", "for", "carried"))
    for observed in now.busiest[:rows]:
        table.add_row(*_circuit(observed))
    _more(table, now.circuits - min(rows, len(now.busiest)))
    return table


def _circuit(seen: LiveCircuit) -> tuple[Text, ...]:
    return (
        Text(_tail(seen.source)),
        Text(_tail(seen.target)),
        Text(show_for(seen.seconds)),
        Text(show_size(seen.bytes)),
    )


def _peers(now: GateSnapshot, rows: int, *, titled: bool = True) -> Table:
    table = _table(f"peers ({now.connected})" if titled else None, ("peer", "address", "reservation"))
    for observed in now.peers[:rows]:
        table.add_row(*_peer(observed))
    _more(table, now.connected - min(rows, len(now.peers)))
    return table


def _peer(seen: ConnectedPeer) -> tuple[Text, ...]:
    where = escape_text(seen.address) if seen.address else "through a gate"
    return Text(_tail(seen.peer)), Text(where), Text("yes" if seen.reserved else "")


def _table(title: str | None, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=None if title is None else Text(title),
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    return table


def _more(table: Table, left: int) -> None:
    if left > 0:
        table.add_row(Text(f"… {left} more", style="dim"))


def _tail(peer: str) -> str:
    return f"…{peer[-TAIL:]}"


def show_for(seconds: float) -> str:
    """In its two largest units: `3 d 4 h`, `12 min 5 s`."""
    words = []
    for size, unit in _UNITS:
        count, seconds = divmod(seconds, size)
        words += [f"{count:.0f} {unit}"] if count else []
    words += [f"{seconds:.0f} s"] if seconds >= 0.5 or not words else []
    return " ".join(words[:2])

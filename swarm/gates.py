"""The gates a role knows: the file in which a running gate leaves its addresses for its home's other roles, and whether they answer."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from swarm.home import Home
from swarm.identity import write_durably


def local_gates(home: Home) -> tuple[str, ...]:
    """The gate that runs, or last ran, on this home; none is no error."""
    return left_addresses(home.gate_file)


def left_addresses(path: Path) -> tuple[str, ...]:
    """What a running role left in its file, a line each; none is no error."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(line.strip() for line in lines if line.strip())


def leave_addresses(path: Path, addresses: Sequence[str]) -> None:
    """Leave a role's addresses for the commands of the same home. Raises `ResourceError`."""
    write_durably(path, "".join(f"{address}\n" for address in addresses).encode("ascii"))


def remember_gates(home: Home, gates: Sequence[str]) -> None:
    """Keep the gates a campaign was submitted through, so that it is carried on through them. Raises `ResourceError`."""
    write_durably(_remembered(home), "".join(f"{gate}\n" for gate in gates).encode())


def remembered_gates(home: Home) -> tuple[str, ...]:
    """The gates of the latest campaign; none is no error."""
    try:
        return tuple(_remembered(home).read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return ()


def _remembered(home: Home) -> Path:
    return home.folder("scheduler") / "gates"


ANSWER_WITHIN_S: Final = 3.0


def answers(gates: Sequence[str], within_s: float = ANSWER_WITHIN_S) -> bool:
    """Whether somebody listens at one of these addresses, so that a wrong one is told at once. Who it is shows later. Blocking."""

    def reached(gate: str) -> bool:
        from swarm.addresses import parse_tcp  # with it comes libp2p's address parser: not for every command

        address = parse_tcp(gate)
        if address is None:
            return False
        try:
            socket.create_connection((address.host, address.port), within_s).close()
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(max_workers=max(1, min(16, len(gates)))) as pool:
        return any(list(pool.map(reached, gates[:16])))

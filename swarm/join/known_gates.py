"""The gates a role knows: the file in which a running gate leaves its addresses for its home's other roles, and whether they answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from swarm.base.durable import write_durably
from swarm.base.home import Home, Role
from swarm.net.identity import load_or_create


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


@contextlib.contextmanager
def addresses_left(path: Path, addresses: Sequence[str]) -> Iterator[None]:
    """The same for as long as the block lasts. To be left while the folder is still this role's: the next one leaves its own at once."""
    leave_addresses(path, addresses)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def own_worker(home: Home) -> tuple[str, ...]:
    """The worker that runs on this home: as good a way in as a gate, for it keeps adverts and routes. None is no error."""
    addresses = left_addresses(home.worker_file)
    if not addresses or not home.key("worker").exists():
        return ()
    peer = load_or_create(home.key("worker")).peer_id
    return tuple(f"{address}/p2p/{peer}" for address in addresses)


def remember_gates(home: Home, gates: Sequence[str], role: Role = "scheduler") -> None:
    """Keep the gates a campaign was submitted through, or a worker joined by, for the home's other commands. Raises `ResourceError`.

    The home's own worker is not among them: it is found by its file, as long as it runs.
    """
    own = own_worker(home)
    kept = [gate for gate in gates if gate not in own]
    if kept:
        write_durably(_remembered(home, role), "".join(f"{gate}\n" for gate in kept).encode())


def remembered_gates(home: Home, roles: Sequence[Role] = ("scheduler", "worker")) -> tuple[str, ...]:
    """The gates of the latest campaign, then those that this home's worker joined by last; none is no error."""
    found: list[str] = []
    for role in roles:
        try:
            found += _remembered(home, role).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError):
            continue
    return tuple(dict.fromkeys(found))


def _remembered(home: Home, role: Role) -> Path:
    return home.folder(role) / "gates"


ANSWER_WITHIN_S: Final = 3.0


def answers(gates: Sequence[str], within_s: float = ANSWER_WITHIN_S) -> bool:
    """Whether somebody listens at one of these addresses, so that a wrong one is told at once. Who it is shows later. Blocking."""

    def reached(gate: str) -> bool:
        from swarm.net.addresses import (
            parse_tcp,  # with it comes libp2p's address parser: not for every command
        )

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

"""The ways into the swarm that a home knows: files with the addresses of its own running roles, of gates used before, and of peers to which
its roles were recently connected.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from swarm.base.durable import write_durably
from swarm.base.home import Home, Role
from swarm.net.identity import load_or_create, peer_id_bytes

MAX_PEERS: Final = 24
"""Peers in a file of known peers."""
ADDRESSES_EACH: Final = 2


def local_gates(home: Home) -> tuple[str, ...]:
    """The gate that runs, or last ran, in this home; empty if there is none."""
    return read_addresses(home.gate_file)


def read_addresses(path: Path) -> tuple[str, ...]:
    """The lines of an address file; empty if there is none."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(line.strip() for line in lines if line.strip())


def write_addresses(path: Path, addresses: Sequence[str]) -> None:
    """Write an address file for the commands of the same home. Raises `ResourceError`."""
    write_durably(path, "".join(f"{address}\n" for address in addresses).encode("ascii"))


@contextlib.contextmanager
def addresses_file(path: Path, addresses: Sequence[str]) -> Iterator[None]:
    """Keep an address file during the block. The caller holds the role's folder lock: the next process writes its own file at once."""
    write_addresses(path, addresses)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def worker_addresses(home: Home) -> tuple[str, ...]:
    """The worker that runs in this home, which is a way in like a gate; empty if there is none."""
    addresses = read_addresses(home.worker_file)
    if not addresses or not home.key("worker").exists():
        return ()
    peer = load_or_create(home.key("worker")).peer_id
    return tuple(f"{address}/p2p/{peer}" for address in addresses)


def save_gates(home: Home, gates: Sequence[str], role: Role = "scheduler") -> None:
    """Save the gates used to submit a campaign or to join as a worker, for the home's other commands. Raises `ResourceError`.

    Leaves out the home's own worker, which has its own file.
    """
    own = worker_addresses(home)
    others = [gate for gate in gates if gate not in own]
    if others:
        write_addresses(_recent_file(home, role), others)


def recent_gates(home: Home, roles: Sequence[Role] = ("scheduler", "worker")) -> tuple[str, ...]:
    """The gates of the latest campaign, then those that this home's worker last joined through."""
    return tuple(dict.fromkeys(gate for role in roles for gate in read_addresses(_recent_file(home, role))))


def read_peers(path: Path) -> tuple[str, ...]:
    """The valid lines of a file of known peers; empty if there is none."""
    return tuple(line for line in read_addresses(path)[: MAX_PEERS * ADDRESSES_EACH] if _is_valid(line))


def _is_valid(line: str) -> bool:
    from swarm.net.addresses import (  # loads libp2p's address parser, which few commands need
        split_peer,
        usable,
    )

    try:
        peer, address = split_peer(line)
        peer_id_bytes(peer)
    except ValueError:
        return False
    return bool(usable([address]))


def known_peers(home: Home, roles: Sequence[Role] = ("scheduler", "worker")) -> tuple[str, ...]:
    """Peers to which these roles of the home were recently connected: ways in when no gate answers."""
    return tuple(dict.fromkeys(line for role in roles for line in read_peers(home.peers_file(role))))


def gates_in_use(
    home: Home, configured: Sequence[str] = (), roles: Sequence[Role] = ("scheduler", "worker")
) -> tuple[str, ...]:
    """The configured gates, else this home's own gate, else the gates that its `roles` last used."""
    return tuple(configured) or local_gates(home) or recent_gates(home, roles)


def _recent_file(home: Home, role: Role) -> Path:
    return home.folder(role) / "gates"


ANSWER_WITHIN_S: Final = 3.0
Connect = Callable[[tuple[str, int], float], socket.socket]


MOST_TRIED: Final = 16


def any_gate_answers(
    gates: Sequence[str], within_s: float = ANSWER_WITHIN_S, connect: Connect = socket.create_connection
) -> bool:
    """Whether anybody listens at one of these addresses, so that a wrong address is noticed at once. Blocks until one answers, at most for
    `within_s`: unresolvable names and silent addresses delay nothing further."""
    answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def reach(gate: str) -> None:
        answered = False
        with contextlib.suppress(OSError, ValueError):
            answered = _reached(gate, within_s, connect)
        answers.put(answered)

    tried = gates[:MOST_TRIED]
    for gate in tried:
        threading.Thread(target=reach, args=(gate,), daemon=True).start()
    until = time.monotonic() + within_s
    with contextlib.suppress(queue.Empty):
        return any(answers.get(timeout=max(0.0, until - time.monotonic())) for _ in tried)
    return False


def _reached(gate: str, within_s: float, connect: Connect) -> bool:
    """Whether the gate accepts a connection. Raises `OSError`."""
    from swarm.net.addresses import parse_tcp  # loads libp2p's address parser, which few commands need

    address = parse_tcp(gate)
    if address is None:
        return False
    connect((address.host, address.port), within_s).close()
    return True

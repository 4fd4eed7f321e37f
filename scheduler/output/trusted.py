"""The devices that a home trusts, as a table and for programs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from results.row.form import JsonModel
from scheduler.output.schemas import Instant, shown_as
from scheduler.output.terminal import name, shrinking, table
from scheduler.store.store import has_store, open_store
from scheduler.trust.home import read_book
from scheduler.trust.listed import read_listed
from swarm.base.home import Home
from swarm.base.text import safe_text


class TrustedDevice(JsonModel):
    """A key that this home trusts."""

    peer: str
    """Peer id of the device's worker: this key is trusted, not a name."""
    kind: str
    """Kind of trust: own, pool NAME or listed."""
    name: str
    """Name that the owner of this home gave it; empty: none."""
    since: Instant | None
    """Time when it was listed; null: it is trusted as a device of this home or of a pool."""
    device: str
    """Name of the device when it last ran a task of this home; empty: it never did."""


def trusted_devices(home: Home, now: float) -> tuple[TrustedDevice, ...]:
    """All trusted devices, the home's own first. `now`: wall seconds. Raises `ResourceError` for a damaged list. Blocking."""
    book, listed = read_book(home, now), read_listed(home)
    seen: dict[str, str] = {}
    if has_store(home):
        with open_store(home) as store:
            seen = {worker.peer: worker.device for worker in store.workers.all()}
    devices = []
    for peer in book.peers():
        line = listed.find(peer)
        kind, device = book.trust_of(peer).text, seen.get(peer, "")
        devices.append(
            shown_as(
                TrustedDevice,
                line,
                peer=peer,
                kind=kind,
                name=line.name if line else "",
                since=line.since if line else None,
                device=device,
            )
        )
    return tuple(devices)


def trusted_table(devices: Sequence[TrustedDevice]) -> Table:
    """A line for each device; the key is shown in full, to be copied."""
    return table(
        devices,
        (name("trust", 6), lambda item: safe_text(item.kind, 40)),
        (shrinking("name"), lambda item: safe_text(item.name, 40)),
        (name("key", 52), lambda item: item.peer),
        (name("since", 10), lambda item: (item.since or "")[:10]),
        (shrinking("device"), lambda item: safe_text(item.device, 40)),
    )

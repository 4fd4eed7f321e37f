"""The table of devices, and the remarks below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from protocol.values.requirement import show_size
from protocol.words import WorkerState
from results.row.simulated import shown_name
from scheduler.output.fleet import ObservedDevice
from scheduler.output.terminal import name, table, wrapped
from scheduler.trust.identities import clash_lines
from swarm.base.text import safe_text
from swarm.net.network import path_words

ROOMY: Final = 110
"""Terminal width from which processor and peer id fit."""


def peers_table(devices: Sequence[ObservedDevice], width: int = 80) -> Table:
    """A line for each device. A narrow table shows only the end of the worker's id, and wraps states and units."""
    roomy = width >= ROOMY
    # Never wrap `direct, 53 ms`; a gate's address may be wrapped.
    direct = [path_words(item.path) for item in devices if item.path is not None and item.path.direct]
    return table(
        devices,
        (wrapped("device"), lambda item: Text(shown_name(item.advert), "" if item.fit.fits else "dim")),
        (name("peer", 9), lambda item: f"…{item.advert.peer[-8:]}"),
        (name("id", 18), lambda item: safe_text(item.advert.device, 40)) if roomy else None,  # to be copied
        (wrapped("trust"), device_trust) if any(item.trust is not None for item in devices) else None,
        (wrapped("state"), device_state),
        (wrapped("soc"), lambda item: safe_text(item.advert.soc, 28)) if roomy else None,
        (name("cores", 5), lambda item: str(item.advert.cores or "")),
        (name("ram", 8), lambda item: "" if item.advert.ram is None else show_size(item.advert.ram)),
        (
            wrapped("units"),
            lambda item: ", ".join(safe_text(unit.unit) for unit in item.advert.units) or "none",
        ),
        (wrapped("path", max(map(len, direct), default=4)), device_path),
        gap=2 if roomy else 1,
    )


def device_trust(device: ObservedDevice) -> Text:
    """Why the device is trusted, or what is missing."""
    if device.trust is None:
        return Text("")
    if not device.trust.stranger:
        return Text(safe_text(device.trust.text, 40))
    return Text("serves you", "yellow") if device.serves else Text("stranger", "dim")


def device_path(device: ObservedDevice) -> Text:
    """The path by which it answered; a path through a gate is yellow."""
    direct = device.path is None or device.path.direct
    return Text(path_words(device.path, device.advert.addresses), "" if direct else "yellow")


def device_state(device: ObservedDevice) -> Text:
    """Its state in words."""
    if device.pong is None:
        return Text("unreachable", "red")
    state, why = device.pong.state, safe_text(device.pong.why, 60)
    words = f"{state or 'up'} ({why})" if why else str(state or "up")
    return Text(why if why and state is WorkerState.DRAINING else words, _STATE_STYLES.get(state, ""))


_STATE_STYLES: Final[dict[WorkerState | None, str]] = {
    WorkerState.FAULTY: "red",
    WorkerState.DRAINING: "yellow",
    WorkerState.BUSY: "cyan",
}


def peer_remarks(devices: Sequence[ObservedDevice]) -> list[str]:
    """The remarks below the table: every clause that a device does not meet, and which workers belong to one device."""
    lines = [
        f"{shown_name(item.advert)} does not fit: {'; '.join(safe_text(str(clause)) for clause in item.fit.missing)}"
        for item in devices
        if not item.fit.fits
    ]
    lines += [
        f"{shown_name(item.advert)} serves you, not trusted yet: sark-node trust {item.advert.peer}"
        for item in devices
        if item.serves
    ]
    if simulated := sum(bool(item.advert.simulated) for item in devices):
        lines.append(f"{simulated} of {len(devices)} are simulated: these devices do not exist")
    clashing = [item for item in devices if item.clash]
    strangers = [item for item in clashing if item.trust is not None and item.trust.stranger]
    lines += clash_lines(
        [item.clash for item in clashing if item not in strangers], [item.clash for item in strangers]
    )
    shared = Counter(item.advert.device for item in devices if not item.clash)
    return lines + [
        f"{workers} workers share the device {safe_text(device, 40)}: spread: device measures on one of them, spread: worker on each"
        for device, workers in shared.items()
        if workers > 1
    ]

"""The device ids that this home has used, each with the keys to which it belongs, in one durable file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import NotPermitted, ResourceError, SettingsError
from protocol.wire.base import Name, PeerName
from scheduler.trust.identities import pins_with
from scheduler.trust.listed import LOCK_WAIT_S, check_peer
from swarm.base.durable import unusable, write_durably
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.base.text import safe_text

MAX_PINNED: Final = 50_000
MAX_FILE: Final = 16 * 1024 * 1024
Keys = Annotated[tuple[PeerName, ...], Field(min_length=1, max_length=64, strict=False)]
Pins = Mapping[str, tuple[str, ...]]


class PinnedDevices(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    devices: Annotated[dict[Name, Keys], Field(max_length=MAX_PINNED)] = {}
    """Device id → its keys, the first one used first."""


def pinned_file(home: Home) -> Path:
    """The file with the pinned devices."""
    return home.folder("scheduler") / "trust" / "devices.json"


def read_pinned(home: Home) -> Pins:
    """The pinned devices; none when there is no file. Raises `ResourceError` for a file that is unreadable or damaged."""
    path = pinned_file(home)
    try:
        if path.stat().st_size > MAX_FILE:
            raise _damaged(path, "it is too large")
        return PinnedDevices.model_validate_json(path.read_bytes()).devices
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise unusable(path, exc) from exc
    except ValidationError as exc:
        raise _damaged(path, str(exc.errors(include_url=False)[0]["msg"])) from None


def _damaged(path: Path, why: str) -> ResourceError:
    return ResourceError(
        f"{path} is damaged: {why[:200]}",
        hint="restore it from a copy; without it every device id belongs to whichever key is used first",
    )


def _change(home: Home, how: Callable[[Pins], Pins]) -> None:
    with lock_folder(pinned_file(home).parent, wait_s=LOCK_WAIT_S):
        before = read_pinned(home)
        after = how(before)
        if after != before:
            text = PinnedDevices(devices=dict(after)).model_dump_json(indent=1)
            write_durably(pinned_file(home), text.encode() + b"\n")


def pin_devices(home: Home, used: Mapping[str, str]) -> None:
    """Record that these keys were used as these devices, by device id. Beyond `MAX_PINNED` nothing is added. Raises `ResourceError`."""

    def pin(pinned: Pins) -> Pins:
        for device, key in used.items():
            if device in pinned or len(pinned) < MAX_PINNED:
                pinned = pins_with(pinned, device, key)
        return pinned

    _change(home, pin)


def claim_device(home: Home, peer: str, device: str) -> None:
    """Give this device id to this key, whichever other key claims it. Raises `SettingsError` for an invalid peer or device id."""
    check_peer(peer)
    try:
        PinnedDevices(devices={device: (peer,)})
    except ValidationError:
        raise SettingsError(
            f"{safe_text(device, 80)!r} is not a device id",
            hint="sark-node peers --json shows the id of each device",
        ) from None
    _change(home, lambda pinned: pins_with(pinned, device, peer))


def bind_keys(home: Home, peer: str, other: str, device: str = "") -> str:
    """Make `peer` a worker of the same device as `other` from now on; returns the device id. `device`: that device; empty: the device
    pinned to `other`. Raises `SettingsError` for an invalid peer or device id, `NotPermitted` if no device is pinned to `other`.
    """
    check_peer(peer)
    check_peer(other)
    pinned = read_pinned(home)
    if device and other not in pinned.get(device, ()):
        claim_device(home, other, device)
    device = device or next((each for each, keys in pinned.items() if other in keys), "")
    if not device:
        raise NotPermitted(
            f"this home has not used a device of {other} yet",
            hint="use it first, or name its device with --device DEVICE_ID: sark-node peers --json shows the ids",
        )
    _change(home, lambda pins: {**pins, device: tuple(dict.fromkeys((*pins[device], peer)))})
    return device

"""Settings that every role has: how it finds the swarm, and where it listens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict

from protocol.wire.base import AddressText
from swarm.base.settings import load_settings


def _names_a_peer(address: str) -> str:

    from swarm.net.addresses import split_peer  # the address parser: not for every command
    from swarm.net.identity import peer_id_bytes

    try:
        peer_id_bytes(split_peer(address)[0])
    except ValueError:
        raise ValueError(
            "a gate's address looks like /ip4/192.0.2.7/tcp/4101/p2p/12D3Koo… with the whole id (52 characters); the gate prints its own"
        ) from None
    return address


def can_be_dialled(address: str) -> str:
    """The address. Raises `ValueError` for one that no peer can dial."""

    from swarm.net.addresses import usable

    if not usable([address]):
        raise ValueError(
            "others cannot dial it: write an IP address that they reach, such as /ip4/192.0.2.7/tcp/4101"
        )
    return address


def _has_an_ip(address: str) -> str:
    if address.startswith("/dns"):
        raise ValueError(
            "other nodes do not resolve names in adverts: announce an IP address, such as /ip4/192.0.2.7/tcp/4001"
        )
    return can_be_dialled(address)


class RoleSettings(BaseModel):
    """The settings that every role shares."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    section: ClassVar[str] = ""

    gates: tuple[Annotated[str, AfterValidator(_names_a_peer)], ...] = ()
    """Addresses of gates, such as `/ip4/192.0.2.7/tcp/4102/p2p/PEERID`. Default: this home's own gate, else the gates used last."""
    listen: tuple[AddressText, ...] = ()
    """Addresses to listen on. Default: a free port on every interface."""
    announce: tuple[Annotated[AddressText, AfterValidator(_has_an_ip)], ...] = ()
    """Addresses to announce instead of the interfaces' addresses, such as a forwarded port."""

    lan: bool = True
    """Whether to find neighbours on the LAN, and let them find this node, without a gate. Never done while listening only on loopback."""
    upnp: bool = False
    """Whether to ask the LAN's router to forward a port, so that others can dial this node."""

    @classmethod
    def load(cls, config_file: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Self:
        """The settings for this start. Flags that are None count as not given. Raises `SettingsError`, `ResourceError`."""
        return load_settings(cls, config_file, environment, flags, section=cls.section)

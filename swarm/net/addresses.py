"""Addresses that can be told to others: concrete ones, never `0.0.0.0`; and circuits, for nodes that nobody can dial.

A circuit address names a gate where the node holds a place: `/ip4/192.0.2.7/tcp/4101/p2p/12D3KooGATE/p2p-circuit`. As with other
addresses, the `/p2p/12D3KooNODE` behind it is left out: it stands beside them in the advert.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import psutil
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from protocol.errors import ResourceError
from swarm.net.identity import peer_id_bytes

MAX_CIRCUITS: Final = 4
"""A node holds places at two gates or so; more would only be there to have gates dialled."""

_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """An IP address (or DNS name) and a TCP port."""

    host: str
    port: int
    family: str
    """`ip4`, `ip6`, `dns`, `dns4` or `dns6`."""

    def __str__(self) -> str:
        return f"/{self.family}/{self.host}/tcp/{self.port}"

    @property
    def ip(self) -> _IpAddress | None:
        """The IP address; None for a name."""
        return ipaddress.ip_address(self.host) if self.family in {"ip4", "ip6"} else None


@dataclass(frozen=True, slots=True)
class Circuit:
    """A way to a node through a gate where it holds a place."""

    gate: PeerId
    address: Address
    """Where the gate is dialled: TCP, without `/p2p/…`."""

    def __str__(self) -> str:
        return f"{self.address}/p2p/{self.gate}/p2p-circuit"


def parse_tcp(address: str) -> TcpAddress | None:
    """The TCP address in a multiaddr, whatever `/p2p/…` follows it; None when it is none, or goes through a relay."""
    try:
        parts = [(protocol.name, value) for protocol, value in Multiaddr(address).items()]
    except (MultiaddrError, ValueError):
        return None
    names = [name for name, _ in parts]
    if (
        names[1:2] != ["tcp"]
        or names[0] not in {"ip4", "ip6", "dns", "dns4", "dns6"}
        or set(names[2:]) - {"p2p"}
    ):
        return None
    return TcpAddress(str(parts[0][1]), int(str(parts[1][1])), names[0])


def parse_circuit(address: str) -> Circuit | None:
    """The circuit in a multiaddr, whatever `/p2p/…` follows it; None when it is none, or goes through two gates."""
    where, mark, rest = address.partition("/p2p-circuit")
    way, named, gate = where.rpartition("/p2p/")
    tcp = _parsed(way)
    whole = not rest or (rest.startswith("/p2p/") and rest.count("/") == 2)
    if not mark or not named or tcp is None or not whole or "/p2p/" in way:
        return None
    try:
        peer_id_bytes(gate)
    except ValueError:
        return None
    return Circuit(gate, str(tcp)) if usable([way]) else None


def split_peer(address: str) -> tuple[PeerId, Address]:
    """`/ip4/…/tcp/…/p2p/12D3Koo…` in two. ValueError with one clear line when it is not of that form."""
    where, mark, peer = address.rpartition("/p2p/")
    if not mark or parse_tcp(where) is None:
        raise ValueError(f"{address!r} is not of the form /ip4/1.2.3.4/tcp/4001/p2p/12D3Koo…")
    return peer, where


def concrete(listening: Iterable[str]) -> tuple[Address, ...]:
    """Where others can dial us, given what we listen on: each wildcard becomes the addresses of this machine.

    Loopback is told only when it was asked for, or when there is nothing else. Link-local addresses are left out: without
    the name of the other's interface nobody can dial them.
    """
    found: dict[str, bool] = {}
    for text in listening:
        address = parse_tcp(text)
        if address is None or address.ip is None:
            continue
        if not address.ip.is_unspecified:
            found[str(address)] = True
            continue
        for ip in _interface_addresses(address.family):
            entry = TcpAddress(str(ip), address.port, address.family)
            found[str(entry)] = found.get(str(entry), False) or not ip.is_loopback
    chosen = [address for address, wanted in found.items() if wanted]
    return tuple(chosen or found)


def usable(addresses: Iterable[object]) -> tuple[Address, ...]:
    """What of a peer's addresses can be dialled: TCP, of one machine, without `/p2p/…`, each once, at most 16."""
    seen: dict[str, None] = {}
    for item in addresses:
        address = _parsed(str(item))
        if address is not None and address.port and not (address.ip and _nobodys(address.ip)):
            seen[str(address)] = None
    return tuple(seen)[:16]


def from_wire(raw: Sequence[bytes]) -> tuple[Address, ...]:
    """What of the multiaddrs in another's message can be dialled directly."""
    found: list[str] = []
    for body in raw[:16]:
        try:
            found.append(str(Multiaddr(body)))
        except (MultiaddrError, ValueError):
            continue
    return usable(found)


def circuits(addresses: Iterable[object]) -> tuple[Circuit, ...]:
    """What of a peer's addresses goes through a gate, each once, at most MAX_CIRCUITS."""
    found = (parse_circuit(str(item)) for item in addresses)
    return tuple(dict.fromkeys(circuit for circuit in found if circuit is not None))[:MAX_CIRCUITS]


def all_addresses(addresses: Iterable[object]) -> tuple[Address, ...]:
    """All that can be dialled of a peer's addresses: the direct ones, then the circuits."""
    given = tuple(addresses)
    return (*usable(given), *map(str, circuits(given)))


def _nobodys(ip: _IpAddress) -> bool:
    """Addresses that no machine has for others: none, many, those of one cable (a cloud's own services among them), and IPv4 in
    the clothes of IPv6, which nobody announces and which would transfer grant past what is asked of IPv4."""
    if isinstance(ip, ipaddress.IPv6Address) and (
        ip.ipv4_mapped or ip.sixtofour or ip.teredo or ip in _NAT64
    ):
        return True
    return ip.is_unspecified or ip.is_multicast or ip.is_link_local or str(ip) == "255.255.255.255"


@functools.lru_cache(maxsize=8192)
def _parsed(text: str) -> TcpAddress | None:
    """The same few addresses are looked at again and again, on the way of every lookup."""
    return parse_tcp(text)


def observed_addresses(addresses: Iterable[Address], seen: Address) -> tuple[Address, ...]:
    """Those of a peer's own addresses that lie where its connection is seen to come from. The rest is hearsay."""
    there = _parsed(seen)
    if there is None:
        return ()
    found = ((text, _parsed(text)) for text in addresses)
    return tuple(
        text
        for text, one in found
        if one is not None and (one.family, one.host) == (there.family, there.host)
    )


def check_listen(addresses: Sequence[Address]) -> list[Multiaddr]:
    """The addresses to listen on; ResourceError when one is not an IP address with a TCP port."""
    for text in addresses:
        address = parse_tcp(text)
        if address is None or address.ip is None:
            raise ResourceError(
                f"cannot listen on {text!r}", hint="an address looks like /ip4/0.0.0.0/tcp/4001"
            )
    return [Multiaddr(text) for text in addresses]


def own_ips() -> frozenset[str]:
    """The IP addresses of this machine's interfaces, loopback among them."""
    return frozenset(str(ip) for family in ("ip4", "ip6") for ip in _interface_addresses(family))


def _interface_addresses(family: str) -> list[_IpAddress]:
    wanted = socket.AF_INET if family == "ip4" else socket.AF_INET6
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        ipaddress.ip_address(entry.address.partition("%")[0])
        for name, entries in psutil.net_if_addrs().items()
        if name in up
        for entry in entries
        if entry.family == wanted
    ]
    return [ip for ip in found if not ip.is_link_local and not ip.is_multicast]


def network_of(ip: str) -> str:
    """The /24 of an IPv4 address, the /48 of an IPv6 one; an IPv4 address in IPv6 clothes is IPv4."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    width = 24 if address.version == 4 else 48
    return str(ipaddress.ip_network((address, width), strict=False))


def gate_contacts(gates: Sequence[str]) -> tuple[Contact, ...]:
    """The peers behind the addresses. Raises `ResourceError` for one that makes no sense."""
    found: dict[PeerId, list[Address]] = {}
    for text in gates:
        try:
            peer, address = split_peer(text)
            peer_id_bytes(peer)
            if (
                not address.isascii() or len(address) > MOST_CHARS
            ):  # it is told to others, where nothing else is allowed
                raise ValueError(f"{address[:80]!r} is too long or not in ASCII; write names as xn--…")
        except ValueError as error:
            raise ResourceError(
                f"a bootstrap address makes no sense: {error}", hint="take it from the gate"
            ) from error
        found.setdefault(peer, []).append(address)
    return tuple(Contact(peer, tuple(addresses)) for peer, addresses in found.items())


MOST_CHARS: Final = 200


@lru_cache(maxsize=4096)
def is_private(address: Address) -> bool:
    """Whether it leads nowhere but within this machine, its LAN or its provider's network."""
    where = parse_tcp(address)
    return where is not None and where.ip is not None and not where.ip.is_global


@lru_cache(maxsize=4096)
def is_loopback(address: Address) -> bool:
    """Whether it leads nowhere but within this machine."""
    where = parse_tcp(address)
    return where is not None and where.ip is not None and where.ip.is_loopback


def public_network(addresses: Iterable[Address]) -> str:
    """The public network (/24, IPv6 /48) of the first public address; empty for private, loopback and relayed ones."""
    for address in addresses:
        parts = address.split("/")
        if "p2p-circuit" in parts or len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
            continue
        try:
            ip = ipaddress.ip_address(parts[2])
        except ValueError:
            continue
        if ip.is_global:
            return str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 48), strict=False))
    return ""


PeerId = str
"""Base58 of the multihash of an Ed25519 public key, as libp2p writes it (`12D3Koo…`); the key can be read back from it."""


Address = str
"""A multiaddr without the peer's own `/p2p/` part, such as `/ip4/192.0.2.7/tcp/4001`. Only concrete addresses are told to others.

A circuit is one, too: `/ip4/GATE/tcp/4101/p2p/GATEID/p2p-circuit` leads to a peer that holds a place at that gate.
"""


@dataclass(frozen=True, slots=True)
class Contact:
    """How to reach a peer. `holder`: it can be dialled by anybody and keeps adverts for others."""

    peer: PeerId
    addresses: tuple[Address, ...]
    holder: bool = True

"""Addresses to announce: concrete ones, never `0.0.0.0`; and circuits, for nodes that nobody can dial directly.

A circuit address names a gate where the node has a reservation: `/ip4/192.0.2.7/tcp/4101/p2p/12D3KooGATE/p2p-circuit`. Like other
addresses, it leaves out the node's own `/p2p/12D3KooNODE`, which the advert contains.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from protocol.errors import ResourceError
from swarm.net.identity import peer_id_bytes
from swarm.net.interfaces import INTERFACES

MAX_CIRCUITS: Final = 4
"""A node has reservations at about two gates; a longer list would only serve to have gates dialled."""

PeerId = str
"""Base58 of the multihash of an Ed25519 public key, as libp2p writes it (`12D3Koo…`); the key can be read back from it."""

Address = str
"""A concrete multiaddr without the peer's own `/p2p/` part: `/ip4/192.0.2.7/tcp/4001`, or a circuit."""

MAX_ADDRESS_CHARS: Final = 200

_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Contact:
    """How to reach a peer. `holder`: anybody can dial it, and it stores adverts for others."""

    peer: PeerId
    addresses: tuple[Address, ...]
    holder: bool = True


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
        """The IP address; None for a DNS name."""
        return ipaddress.ip_address(self.host) if self.family in {"ip4", "ip6"} else None


@dataclass(frozen=True, slots=True)
class Circuit:
    """The address of a node through a gate where it has a reservation."""

    gate: PeerId
    address: Address
    """The gate's TCP address, without `/p2p/…`."""

    def __str__(self) -> str:
        return f"{self.address}/p2p/{self.gate}/p2p-circuit"


@lru_cache(maxsize=8192)
def parse_tcp(address: str) -> TcpAddress | None:
    """The TCP address in a multiaddr, without any `/p2p/…`; None for a circuit or any other kind."""
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
    """The circuit in a multiaddr, without any final `/p2p/…`; None for any other kind, or for two gates."""
    where, mark, rest = address.partition("/p2p-circuit")
    relay, named, gate = where.rpartition("/p2p/")
    tcp = parse_tcp(relay)
    whole = not rest or (rest.startswith("/p2p/") and rest.count("/") == 2)
    if not mark or not named or tcp is None or not whole or "/p2p/" in relay:
        return None
    try:
        peer_id_bytes(gate)
    except ValueError:
        return None
    return Circuit(gate, str(tcp)) if usable([relay]) else None


def split_peer(address: str) -> tuple[PeerId, Address]:
    """The two parts of `/ip4/…/tcp/…/p2p/12D3Koo…`. Raises ValueError."""
    where, mark, peer = address.rpartition("/p2p/")
    if not mark or parse_tcp(where) is None:
        raise ValueError(f"{address!r} is not of the form /ip4/1.2.3.4/tcp/4001/p2p/12D3Koo…")
    return peer, where


def expand_wildcards(listening: Iterable[str]) -> tuple[Address, ...]:
    """The addresses to announce for those we listen on: each wildcard becomes this machine's addresses.

    Loopback is left out unless it was requested or is the only address; link-local addresses always are, since they need an interface name.
    """
    preferred: dict[str, bool] = {}
    for text in listening:
        address = parse_tcp(text)
        if address is None or address.ip is None:
            continue
        if not address.ip.is_unspecified:
            preferred[str(address)] = True
            continue
        for ip in _interface_addresses(socket.AF_INET if address.family == "ip4" else socket.AF_INET6):
            entry = TcpAddress(str(ip), address.port, address.family)
            preferred[str(entry)] = preferred.get(str(entry), False) or not ip.is_loopback
    return tuple([address for address, good in preferred.items() if good] or preferred)


def usable(addresses: Iterable[object]) -> tuple[Address, ...]:
    """The addresses that can be dialled directly: TCP, of one machine, without `/p2p/…`, without duplicates, at most 16."""
    unique: dict[str, None] = {}
    for item in addresses:
        address = parse_tcp(str(item))
        if address is not None and address.port and not (address.ip and _undialable(address.ip)):
            unique[str(address)] = None
    return tuple(unique)[:16]


def without_names(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """The IP addresses among these. Only DNS names that the user configured are resolved: a stranger's may take half a minute each."""
    return tuple(address for address in addresses if not address.startswith("/dns"))


def from_wire(raw: Sequence[bytes]) -> tuple[Address, ...]:
    """The directly dialable addresses among another peer's binary multiaddrs, without DNS names."""
    texts: list[str] = []
    for body in raw[:16]:
        try:
            texts.append(str(Multiaddr(body)))
        except (MultiaddrError, ValueError):
            continue
    return without_names(usable(texts))


def circuits(addresses: Iterable[object]) -> tuple[Circuit, ...]:
    """The circuits among a peer's addresses, without duplicates, at most `MAX_CIRCUITS`."""
    parsed = (parse_circuit(str(item)) for item in addresses)
    return tuple(dict.fromkeys(circuit for circuit in parsed if circuit is not None))[:MAX_CIRCUITS]


def all_addresses(addresses: Iterable[object]) -> tuple[Address, ...]:
    """A peer's dialable addresses: the direct ones, then the circuits."""
    given = tuple(addresses)
    return (*usable(given), *map(str, circuits(given)))


def _undialable(ip: _IpAddress) -> bool:
    """Whether an address is unspecified, multicast or link-local (such as cloud metadata services), or IPv4 embedded in IPv6, which nobody
    announces and which would bypass the IPv4 checks."""
    if isinstance(ip, ipaddress.IPv6Address) and (
        ip.ipv4_mapped or ip.sixtofour or ip.teredo or ip in _NAT64
    ):
        return True
    return ip.is_unspecified or ip.is_multicast or ip.is_link_local or str(ip) == "255.255.255.255"


def observed_addresses(addresses: Iterable[Address], observed_at: Address) -> tuple[Address, ...]:
    """Those of a peer's addresses that have the IP at which it is seen."""
    observed = parse_tcp(observed_at)
    if observed is None:
        return ()
    place = (observed.family, observed.host)
    return tuple(text for text in addresses if (one := parse_tcp(text)) and (one.family, one.host) == place)


def check_listen(addresses: Sequence[Address]) -> list[Multiaddr]:
    """The addresses to listen on. Raises `ResourceError` if one is not an IP address with a TCP port."""
    for text in addresses:
        address = parse_tcp(text)
        if address is None or address.ip is None:
            raise ResourceError(
                f"cannot listen on {text!r}", hint="an address looks like /ip4/0.0.0.0/tcp/4001"
            )
    return [Multiaddr(text) for text in addresses]


def own_ips() -> frozenset[str]:
    """The IP addresses of this machine's interfaces, including loopback."""
    return frozenset(map(str, _interface_addresses(socket.AF_INET, socket.AF_INET6)))


_parsed: Final = lru_cache(256)(ipaddress.ip_address)


def _interface_addresses(*families: int) -> list[_IpAddress]:
    matches = [
        _parsed(entry.address) for entry in INTERFACES.addresses() if entry.up and entry.family in families
    ]
    return [ip for ip in matches if not ip.is_link_local and not ip.is_multicast]


def network_of(ip: str) -> str:
    """The /24 of an IPv4 address or the /48 of an IPv6 address; IPv4-mapped IPv6 counts as IPv4."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    width = 24 if address.version == 4 else 48
    return str(ipaddress.ip_network((address, width), strict=False))


def gate_contacts(gates: Sequence[str]) -> tuple[Contact, ...]:
    """The peers of gate addresses. Raises `ResourceError` for an invalid one."""
    by_peer: dict[PeerId, list[Address]] = {}
    for text in gates:
        try:
            peer, address = split_peer(text)
            peer_id_bytes(peer)
            if (
                not address.isascii() or len(address) > MAX_ADDRESS_CHARS
            ):  # it is announced, where nothing else is allowed
                raise ValueError(f"{address[:80]!r} is too long or not in ASCII; write names as xn--…")
        except ValueError as error:
            raise ResourceError(
                f"invalid gate address: {error}",
                hint="copy the address that the gate prints: /ip4/192.0.2.7/tcp/4101/p2p/12D3Koo…",
            ) from error
        by_peer.setdefault(peer, []).append(address)
    return tuple(Contact(peer, tuple(addresses)) for peer, addresses in by_peer.items())


def peer_contacts(addresses: Iterable[str]) -> tuple[Contact, ...]:
    """The peers in addresses `…/p2p/12D3Koo…`, each once, reached directly or through a gate. Invalid addresses are left out."""
    by_peer: dict[PeerId, list[Address]] = {}
    for text in addresses:
        where, _, peer = text.rpartition("/p2p/")
        try:
            peer_id_bytes(peer)
        except ValueError:
            continue
        by_peer.setdefault(peer, []).extend(all_addresses([where]))
    return tuple(Contact(peer, tuple(dict.fromkeys(found))) for peer, found in by_peer.items() if found)


def dialled(addresses: Iterable[str]) -> tuple[Address, ...]:
    """The addresses that a node dials for `…/p2p/12D3Koo…` addresses: the peer's own, and those of gates on the way."""
    found = [address for contact in peer_contacts(addresses) for address in contact.addresses]
    return (*usable(found), *(circuit.address for circuit in circuits(found)))


def is_private(address: Address) -> bool:
    """Whether the address is not a global IP address."""
    where = parse_tcp(address)
    return where is not None and where.ip is not None and not where.ip.is_global


def is_loopback(address: Address) -> bool:
    """Whether the address is a loopback address."""
    where = parse_tcp(address)
    return where is not None and where.ip is not None and where.ip.is_loopback


def public_network(addresses: Iterable[Address]) -> str:
    """The public network (/24, IPv6 /48) of the first public address; empty if all are private, loopback or relayed."""
    parsed = filter(None, map(parse_tcp, addresses))
    return next((network_of(where.host) for where in parsed if where.ip and where.ip.is_global), "")

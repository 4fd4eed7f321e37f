"""Settings of a gate: section `[gate]` of config.toml, `SARK_…` in the environment, options of `gate`."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, BeforeValidator, Field

from protocol.values.requirement import parse_size
from protocol.wire.base import AddressText
from swarm.net.identity import peer_id_bytes
from swarm.net.limits import ConnectionLimits
from swarm.net.memory import MemoryLimits
from swarm.net.reservations import RelayLimits
from swarm.net.settings import RoleSettings, can_be_dialled

DEFAULT_PORT: Final = 4101
LIMITS: Final = RelayLimits()
MIB: Final = 1024 * 1024
ARRIVALS: Final = ConnectionLimits()
MEMORY: Final = MemoryLimits()


def _is_an_id(of: str, shown_by: str) -> AfterValidator:
    def check(text: str) -> str:
        try:
            peer_id_bytes(text)
        except ValueError:
            raise ValueError(f"a {of} id looks like 12D3Koo… (52 characters); {shown_by}") from None
        return text

    return AfterValidator(check)


def _is_a_size(value: object) -> object:
    """Bytes: a number, or text such as `1 GiB`."""
    if not isinstance(value, str):
        return value
    size = parse_size(value)
    if size is None:
        raise ValueError("write a size as 500 MB or 1 GiB")
    return size


def _is_a_listener(text: str) -> str:
    if text:
        split_listener(text)
    return text


def split_listener(text: str) -> tuple[str, int]:
    """Host and port in `127.0.0.1:9464`, `[::1]:9464` or `9464`, which means loopback. Raises `ValueError` for any other text."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not int(port) < 65_536:
        raise ValueError("write where to listen as 127.0.0.1:9464")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


Peer = Annotated[str, _is_an_id("peer", "each home shows its own: sark-node info")]
PoolId = Annotated[str, _is_an_id("pool", "on the pool's own home: sark-node pool members NAME")]
Size = Annotated[int, BeforeValidator(_is_a_size), Field(ge=0, le=2**53)]


class Admit(StrEnum):
    """Whom a gate admits."""

    OPEN = "open"
    TICKET = "ticket"
    LIST = "list"


class GateSettings(RoleSettings):
    """Like any role's settings, with a fixed default port, so that others can know the gate's address."""

    section: ClassVar[str] = "gate"

    listen: tuple[AddressText, ...] = (f"/ip4/0.0.0.0/tcp/{DEFAULT_PORT}",)
    announce: tuple[Annotated[AddressText, AfterValidator(can_be_dialled)], ...] = ()
    """Addresses to announce instead of the interfaces' addresses. A DNS name works only in tickets and settings, because nodes resolve only
    names that their users gave them; so announce an IP address as well."""
    admit: Admit = Admit.OPEN
    """Peers that the gate relays for, stores adverts for and takes manifests from: `open` anybody, `ticket` members of its pools, `list`
    peers in `allow`."""
    allow: tuple[Peer, ...] = ()
    """Peer ids that `ticket` and `list` admit."""
    pools: tuple[PoolId, ...] = ()
    """Ids of pools of other homes whose members `ticket` also admits."""
    operators: tuple[Peer, ...] = ()
    """Peer ids of schedulers that may read the gate's status. The keys of its own home always may."""
    metrics: Annotated[str, AfterValidator(_is_a_listener)] = ""
    """Address at which to serve Prometheus metrics, such as `127.0.0.1:9464`. Empty: none are served."""
    drain_s: Annotated[float, Field(ge=0, le=3_600)] = 30.0
    """Maximum number of seconds that a stopping gate waits for relayed connections."""
    connections_per_network: Annotated[int, Field(ge=1)] = ARRIVALS.per_network
    """Maximum number of connections from one network: an IPv4 /24, an IPv6 /48."""
    connections_per_s: Annotated[float, Field(gt=0)] = ARRIVALS.per_s
    """Maximum number of new connections from one network per second, after a burst of 256."""
    memory: Annotated[Size, Field(ge=2**20)] = MEMORY.most
    """Memory that peers may take in buffers, calls and answers, such as `64 MiB`. Above it, the gate closes the connections of the largest
    user."""
    memory_per_peer: Annotated[Size, Field(ge=2**16)] = MEMORY.most_of_peer
    """Memory that one peer's calls and answers may take, such as `4 MiB`. Above it, the gate reads no more from that peer until some are
    done."""
    relay: bool = True
    """Whether to relay for nodes that cannot be dialled."""
    relay_reservations: Annotated[int, Field(ge=1, le=65_536)] = LIMITS.reservations
    """Maximum number of reservations in total."""
    relay_reservations_per_network: Annotated[int, Field(ge=1)] = LIMITS.reservations_per_network
    """Maximum number of reservations from one network: an IPv4 /24, an IPv6 /48."""
    relay_circuits: Annotated[int, Field(ge=1, le=65_536)] = LIMITS.circuits
    """Maximum number of simultaneous relayed connections."""
    relay_circuits_from_peer: Annotated[int, Field(ge=1)] = LIMITS.circuits_from_peer
    """Maximum number of simultaneous relayed connections from one caller."""
    relay_circuits_to_peer: Annotated[int, Field(ge=1)] = LIMITS.circuits_to_peer
    """Maximum number of simultaneous relayed connections to one peer."""
    relay_circuits_from_network: Annotated[int, Field(ge=1)] = LIMITS.circuits_from_network
    """Maximum number of simultaneous relayed connections from callers in one network: an IPv4 /24, an IPv6 /48."""
    relay_circuit_bytes: Annotated[Size, Field(ge=MIB)] = LIMITS.circuit_bytes
    """Maximum number of bytes that one circuit carries in both directions together, such as `1 GiB`."""
    relay_circuit_s: Annotated[float, Field(ge=1, le=604_800)] = LIMITS.circuit_s
    """Maximum duration of a circuit, in seconds."""
    relay_bytes_per_s: Size = 0
    """Maximum number of bytes per second that all circuits carry together, such as `20 MiB`. 0: no limit."""

    @property
    def arrival_limits(self) -> ConnectionLimits:
        """Limits of inbound connections."""
        return replace(
            ARRIVALS,
            per_network=self.connections_per_network,
            per_s=self.connections_per_s,
            data_connections=2 * self.relay_circuits,
        )

    @property
    def memory_limits(self) -> MemoryLimits:
        """Limits of the memory that peers may take."""
        return MemoryLimits(self.memory, self.memory_per_peer)

    @property
    def relay_limits(self) -> RelayLimits | None:
        """Limits of the relay; None: it is off."""
        if not self.relay:
            return None
        limits = {
            field.name: getattr(self, f"relay_{field.name}")
            for field in fields(RelayLimits)
            if f"relay_{field.name}" in GateSettings.model_fields
        }
        return replace(LIMITS, **limits | {"bytes_per_s": self.relay_bytes_per_s or None})

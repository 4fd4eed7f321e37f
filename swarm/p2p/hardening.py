"""The holes of libp2p 0.8.1 closed, each by one small function that first looks whether libp2p is as expected.

What could be done by giving libp2p classes of ours is done so (`muxer`, `routing`, `host`); the rest is put in place here,
once for the process, by `harden()`. Each item has an attack in `tests/swarm/test_hardening_*.py` that succeeds without it.
"""

from __future__ import annotations

import importlib
import inspect
import ipaddress
from importlib.metadata import version
from types import ModuleType
from typing import Any, Final

from libp2p.abc import IMuxedConn, IRawConnection, ISecureConn
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_keys
from libp2p.custom_types import TProtocol
from libp2p.exceptions import ParseError
from libp2p.host import basic_host
from libp2p.host.basic_host import BasicHost
from libp2p.io.abc import Reader
from libp2p.io.exceptions import IncompleteReadError
from libp2p.io.trio import TrioTCPStream
from libp2p.kad_dht.kad_dht import KadDHT
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux import yamux
from libp2p.transport.exceptions import SecurityUpgradeFailure
from libp2p.transport.upgrader import TransportUpgrader

from protocol.errors import LocalProtocolError
from swarm.base.logs import tame_libraries
from swarm.net.identity import peer_id_text
from swarm.p2p.peerstore import read_identity
from swarm.p2p.routing import KAD_PROTOCOL
from swarm.p2p.yamux import BoundedYamux, Buffered, PatientStream

LIBP2P: Final = "0.8.1"
MAX_NEGOTIATION_BYTES: Final = 1024
"""One multistream message: a protocol name. go-multistream has the same limit."""
MAX_CONNECTIONS: Final = 1024
_IPFS_KAD: Final = "/ipfs/kad/1.0.0"
_KAD_MODULES: Final = ("common", "kad_dht", "peer_routing", "provider_store", "value_store")
_READ_MODULES: Final = (
    "libp2p.io.msgio",
    "libp2p.stream_muxer.yamux.yamux",
    "libp2p.host.ping",
    "libp2p.utils.varint",
)


def harden() -> None:
    """Put every patch in place. Safe to call again. LocalProtocolError when libp2p is not the one this was written for."""
    result = version("libp2p")
    if result != LIBP2P:
        raise LocalProtocolError(
            f"libp2p {result} is installed; the safety of this node was written and tested against {LIBP2P}",
            hint=f"pip install libp2p=={LIBP2P}",
        )
    expect_overridden_methods()
    limit_negotiation()
    count_no_reads()
    bound_streams()
    bound_identities()
    see_ipv6()
    name_own_dht()
    tame_libraries()


# -- the patches -----------------------------------------------------------------------------------------------------------


def limit_negotiation() -> None:
    """Multistream names are at most 1 KiB of UTF-8, before and after the handshake.

    Unpatched, a stranger without a key claims 4 GiB and is believed; a name that is no UTF-8 ends the whole node.
    """
    _replace(multiselect_communicator, "read_delim", read_name, expected="read_delim")


def count_no_reads() -> None:
    """A frame may arrive in any number of pieces. Unpatched, the 102nd ends the connection (small MTU, slow links)."""
    for name in _READ_MODULES:
        _replace(importlib.import_module(name), "read_exactly", read_exactly, expected="read_exactly")


def bound_streams() -> None:
    """Connections make streams of our class: no 5 s limit on a paused reader, windows that stay within the budget."""
    _replace(yamux, "YamuxStream", PatientStream, expected="YamuxStream")


def bound_identities() -> None:
    """What a peer says of itself is at most 16 KiB. Unpatched, it is 1 MiB of names and addresses, each looked at."""
    name = "read_length_prefixed_protobuf"
    _replace(basic_host, name, read_identity, expected=name)


def see_ipv6() -> None:
    """It is known where an IPv6 connection comes from. Unpatched, it comes from nowhere: it escapes every limit of its network, and a
    node that is reached by IPv6 cannot be dialled back."""
    name = "get_remote_address"
    _replace(TrioTCPStream, name, get_remote_address, expected=name)


def name_own_dht() -> None:
    """Kademlia under our own protocol name in every module that has copied the name."""
    for name in _KAD_MODULES:
        module = importlib.import_module(f"libp2p.kad_dht.{name}")
        present = getattr(module, "PROTOCOL_ID", None)
        if present not in {_IPFS_KAD, KAD_PROTOCOL}:
            raise _changed(f"libp2p.kad_dht.{name}.PROTOCOL_ID")
        module.PROTOCOL_ID = TProtocol(KAD_PROTOCOL)  # type: ignore[attr-defined]


def expect_overridden_methods() -> None:
    """The methods that our subclasses replace must still be there, with the parameters they had."""
    expected: list[tuple[type[Any], str, list[str]]] = [
        (AutoConnector, "maybe_connect", ["self"]),
        (AutoConnector, "run_background_task", ["self", "nursery"]),
        (Swarm, "dial_peer", ["self", "peer_id"]),
        (Swarm, "_do_handle_inbound_connection", ["self", "read_write_closer", "maddr", "failure_event"]),
        (BasicHost, "_swarm_stream_handler", ["self", "net_stream"]),
        (BasicHost, "new_stream", ["self", "peer_id", "protocol_ids"]),
        (BasicHost, "connect", ["self", "peer_info"]),
        (MuxerMultistream, "new_conn", ["self", "conn", "peer_id"]),
        (TransportUpgrader, "upgrade_security", ["self", "raw_conn", "is_initiator", "peer_id"]),
        (KadDHT, "handle_stream", ["self", "stream"]),
        (KadDHT, "add_peer", ["self", "peer_id", "skip_server_mode_check"]),
        (yamux.Yamux, "open_stream", ["self"]),
        (yamux.Yamux, "_write_frame", ["self", "data"]),
        (yamux.Yamux, "_measure_rtt_loop", ["self"]),
        (yamux.Yamux, "_read_data_body", ["self", "length"]),
        (yamux.Yamux, "_cleanup_on_error", ["self"]),
        (yamux.YamuxStream, "read", ["self", "n"]),
        (yamux.YamuxStream, "write", ["self", "data"]),
    ]
    for owner, name, parameters in expected:
        method = getattr(owner, name, None)
        if method is None or list(inspect.signature(method).parameters) != parameters:
            raise _changed(f"{owner.__name__}.{name}")


# -- what a host is built from ---------------------------------------------------------------------------------------------


def noise_and_yamux(keys: KeyPair) -> TransportUpgrader:
    """Noise for secrecy and identity, yamux for streams, and nothing else.

    libp2p's default host also takes `/plaintext/2.0.0` and SECIO, by which anybody can be anybody.
    """
    muxers: dict[TProtocol, type[IMuxedConn]] = {TProtocol(yamux.PROTOCOL_ID): BoundedYamux}
    upgrader = KnownKeys(
        secure_transports_by_protocol={
            NOISE: NoiseTransport(keys, noise_privkey=new_noise_keys().private_key)
        },
        muxer_transports_by_protocol=muxers,
    )
    upgrader.muxer_multistream = GivenMuxers(muxers, 10)
    return upgrader


class KnownKeys(TransportUpgrader):
    """Only peers with Ed25519 keys, from whose ids everything here reads the key. libp2p takes RSA, secp256k1 and ECDSA as well."""

    async def upgrade_security(
        self, raw_conn: IRawConnection, is_initiator: bool, peer_id: ID | None = None
    ) -> ISecureConn:
        """As libp2p's, and SecurityUpgradeFailure for a peer with another kind of key."""
        secured = await super().upgrade_security(raw_conn, is_initiator, peer_id)
        try:
            peer_id_text(secured.get_remote_peer().to_bytes())
        except ValueError as error:
            await secured.close()
            raise SecurityUpgradeFailure("the peer's key is no Ed25519 key") from error
        return secured


class GivenMuxers(MuxerMultistream):
    """libp2p makes its own Yamux whatever class it was given; this makes the given one, and all of a node share one count."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.buffered = Buffered()

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        _, muxer = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        made = muxer(conn, peer_id)
        if isinstance(made, BoundedYamux):
            made.buffered = self.buffered
        return made


def assert_closed(upgrader: TransportUpgrader) -> None:
    """Refuse to start with any other way of securing or sharing a connection."""
    security = [str(name) for name in upgrader.security_multistream.transports]
    muxers = [str(name) for name in upgrader.muxer_multistream.transports]
    if security != [str(NOISE)] or muxers != [yamux.PROTOCOL_ID]:
        raise LocalProtocolError(
            f"this node would also speak {security} and {muxers}; only Noise and yamux are safe"
        )


def connection_config() -> ConnectionConfig:
    """Room for many peers, short time limits. Liveness is yamux's pings (`muxer`), cheaper than libp2p's own."""
    return ConnectionConfig(
        max_connections=MAX_CONNECTIONS,
        min_connections=0,
        low_watermark=0,
        high_watermark=MAX_CONNECTIONS,  # none is closed to make room: who floods has streams open, who holds a place has none
        dial_timeout=5.0,
        inbound_upgrade_timeout=10.0,
        outbound_upgrade_timeout=5.0,
        outbound_stream_protocol_negotiation_timeout=5.0,
        inbound_stream_protocol_negotiation_timeout=10.0,
    )


def no_retries() -> RetryConfig:
    """A refused port is known at once; trying again is the caller's business."""
    return RetryConfig(max_retries=0)


# -- replacements ------------------------------------------------------------------------------------------------------------


async def read_name(reader: Reader) -> bytes:
    """One length-prefixed line of at most 1 KiB. ParseError for anything else; nothing is buffered before the check."""
    size = shift = 0
    while True:
        byte = (await read_exactly(reader, 1))[0]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 7:
            raise ParseError("a negotiation message of more than 16 KiB")
    if not 0 < size <= MAX_NEGOTIATION_BYTES:
        raise ParseError(f"a negotiation message of {size} bytes")
    line = await read_exactly(reader, size)
    if line[-1:] != b"\n":
        raise ParseError("a negotiation message without its newline")
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise ParseError("a negotiation message that is no UTF-8") from error
    return line[:-1]


async def read_exactly(reader: Reader, n: int, retry_count: int = 0) -> bytes:
    """`n` bytes in as many pieces as they come. IncompleteReadError when the stream ends before."""
    data = bytearray()
    while len(data) < n:
        part = await reader.read(n - len(data))
        if not part:
            raise IncompleteReadError(
                f"the stream ended after {len(data)} of {n} bytes", expected_bytes=n, received_bytes=len(data)
            )
        data += part
    return bytes(data)


def get_remote_address(stream: TrioTCPStream) -> tuple[str, int] | None:
    """IP address and port of the other end; an IPv4 address in the clothes of IPv6 is IPv4. None when it is gone, or no TCP."""
    if stream._cached_remote_address is None:
        try:
            host, port, *_ = stream.stream.socket.getpeername()
            ip = ipaddress.ip_address(str(host).partition("%")[0])
        except (OSError, ValueError):
            return None
        mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
        stream._cached_remote_address = (str(mapped or ip), int(port))
    return stream._cached_remote_address


def _replace(module: ModuleType | type, name: str, ours: Any, *, expected: str) -> None:
    present = getattr(module, name, None)
    if present is ours:
        return
    if getattr(present, "__name__", None) != expected:
        raise _changed(f"{module.__name__}.{name}")
    setattr(module, name, ours)


def _changed(what: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"libp2p's {what} is not what it was in {LIBP2P}; swarm/p2p/hardening.py must be looked at again"
    )

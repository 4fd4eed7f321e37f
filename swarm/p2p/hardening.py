"""Closes the holes of libp2p 0.8.1, each with a patch that `harden()` applies once per process.

Where possible, libp2p is given replacement classes instead (`yamux`, `routing`, `node_host`). Each patch has an attack in
`tests/swarm/p2p/test_hardening_attacks.py` that succeeds without it.
"""

from __future__ import annotations

import importlib
import ipaddress
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import trio
from libp2p.abc import IMuxedConn, INetStream, IRawConnection, ISecureConn
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_keys
from libp2p.custom_types import TProtocol
from libp2p.exceptions import ParseError
from libp2p.host import basic_host
from libp2p.io.abc import Reader
from libp2p.io.exceptions import IncompleteReadError, IOException
from libp2p.io.trio import TrioTCPStream
from libp2p.network.config import ConnectionConfig
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.id import ID
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux import yamux
from libp2p.tools.anyio_service.trio_manager import TrioManager
from libp2p.transport.exceptions import SecurityUpgradeFailure
from libp2p.transport.upgrader import TransportUpgrader

from protocol.errors import LocalProtocolError
from swarm.base.logs import tame_libraries
from swarm.net.addresses import PeerId
from swarm.net.identity import peer_id_text
from swarm.net.memory import MemoryAccount
from swarm.p2p.connection_gater import ConnectionGater
from swarm.p2p.due_checks import DueChecks
from swarm.p2p.handshakes import CrowdedError, HandshakeTurns, PacedNoise
from swarm.p2p.muxed_stream import PatientStream
from swarm.p2p.yamux import BoundedYamux

LIBP2P: Final = "0.8.1"
MAX_NEGOTIATION_BYTES: Final = 1024
"""Largest multistream message: a protocol name. go-multistream has the same limit."""
MAX_IDENTIFY: Final = 16_384
"""Most bytes of a peer's identify message; Sark's own take less than 2 KiB."""
MAX_CONNECTIONS: Final = 1024
_READ_MODULES: Final = (
    "libp2p.io.msgio",
    "libp2p.host.ping",
    "libp2p.utils.varint",
)


def harden() -> None:
    """Apply every patch. Safe to call again. Raises LocalProtocolError if libp2p is not the version this was written for."""
    result = version("libp2p")
    if result != LIBP2P:
        raise LocalProtocolError(
            f"libp2p {result} is installed; this node's security code was written for and tested with {LIBP2P}",
            hint=f"pip install libp2p=={LIBP2P}",
        )
    for owner, name, replacement in _patches():
        setattr(owner, name, replacement)
    tame_libraries()


def _patches() -> Iterator[tuple[object, str, object]]:
    """Owner, name and replacement; each comment says what happens without the patch."""
    # a stranger without a key claims a name of 4 GiB and is believed; a name that is not UTF-8 ends the whole node
    yield multiselect_communicator, "read_delim", read_name
    # the 102nd piece of a frame ends the connection (small MTU, slow links)
    for name in _READ_MODULES:
        yield importlib.import_module(name), "read_exactly", read_exactly
    # a reader that pauses for 5 s is reset, and windows grow beyond any budget
    yield yamux, "YamuxStream", PatientStream
    # a peer's identify message may have 1 MiB of names and addresses, all of which are processed
    yield basic_host, "read_length_prefixed_protobuf", read_identity
    # every new connection searches the tasks of all others for a parent that it never has
    yield TrioManager, "_find_parent_task", no_parent
    # an IPv6 connection has no remote address: it escapes every limit of its network, and AutoNAT cannot dial its node
    yield TrioTCPStream, "get_remote_address", get_remote_address


# -- what a host is built from ---------------------------------------------------------------------------------------------


def noise_and_yamux(keys: KeyPair) -> TransportUpgrader:
    """Noise for secrecy and identity, yamux for streams, and nothing else.

    libp2p's default host also accepts `/plaintext/2.0.0` and SECIO, with which anybody can claim any identity.
    """
    muxers: dict[TProtocol, type[IMuxedConn]] = {TProtocol(yamux.PROTOCOL_ID): BoundedYamux}
    upgrader = KnownKeys(
        secure_transports_by_protocol={NOISE: PacedNoise(keys, noise_privkey=new_noise_keys().private_key)},
        muxer_transports_by_protocol=muxers,
    )
    upgrader.muxer_multistream = GivenMuxers(muxers, 10)
    return upgrader


class KnownKeys(TransportUpgrader):
    """Accepts only peers with Ed25519 keys, since Sark reads keys from peer ids. libp2p also accepts RSA, secp256k1 and ECDSA."""

    welcome: Callable[[PeerId], bool] = staticmethod(lambda peer: True)
    """Whether to continue with an inbound connection of a key, at the cost of a muxer and its tasks."""

    async def upgrade_security(
        self, raw_conn: IRawConnection, is_initiator: bool, peer_id: ID | None = None
    ) -> ISecureConn:
        """Like libp2p's, but raises SecurityUpgradeFailure for a peer with another kind of key."""
        secured = await super().upgrade_security(raw_conn, is_initiator, peer_id)
        try:
            peer = peer_id_text(secured.get_remote_peer().to_bytes())
        except ValueError as error:
            await secured.close()
            raise SecurityUpgradeFailure("the peer's key is not an Ed25519 key") from error
        if not (is_initiator or self.welcome(peer)):
            await secured.close()
            raise SecurityUpgradeFailure("the peer reconnected too soon")
        return secured


class GivenMuxers(MuxerMultistream):
    """libp2p always creates its own Yamux. This creates the class it was given; a node's muxers share one memory account and one task."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.memory = MemoryAccount()
        self.looks = DueChecks()
        self.stream_turn: Callable[[PeerId], Awaitable[None]] | None = None
        """Waits until a peer's stream may be taken; a node sets it."""

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        _, muxer = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        made = muxer(conn, peer_id)
        if isinstance(made, BoundedYamux):
            made.memory, made.looks = self.memory, self.looks
            if self.stream_turn is not None:
                made.stream_turn = partial(self.stream_turn, made.owner)
        return made


def guard(upgrader: TransportUpgrader, gater: ConnectionGater) -> None:
    """Make inbound handshakes wait for their turn, and refuse keys that are back too soon right after they prove themselves."""
    noise, turns = upgrader.security_multistream.transports[NOISE], HandshakeTurns()
    assert isinstance(noise, PacedNoise)
    assert isinstance(upgrader, KnownKeys)

    async def may_begin(ip: str) -> None:
        try:
            await turns.turn(gater.sharing(ip) or ip, gater.weight(ip))
        except CrowdedError:
            gater.refused["crowded"] += 1
            raise

    noise.may_begin = may_begin  # type: ignore[method-assign]
    upgrader.welcome = lambda peer: gater.welcome(peer, trio.current_time())


def muxers_of(upgrader: TransportUpgrader) -> GivenMuxers:
    """The muxer state that a node's connections share."""
    assert isinstance(upgrader.muxer_multistream, GivenMuxers)
    return upgrader.muxer_multistream


def assert_closed(upgrader: TransportUpgrader) -> None:
    """Refuse to start if connections could be secured or multiplexed in any other way."""
    security = [str(name) for name in upgrader.security_multistream.transports]
    muxers = [str(name) for name in upgrader.muxer_multistream.transports]
    if security != [str(NOISE)] or muxers != [yamux.PROTOCOL_ID]:
        raise LocalProtocolError(
            f"this node would also speak {security} and {muxers}; only Noise and yamux are safe"
        )


def connection_config() -> ConnectionConfig:
    """Room for many peers, and short time limits. yamux's pings (`muxer`) check liveness, which is cheaper than libp2p's own."""
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


def no_parent(manager: TrioManager, task: trio.lowlevel.Task) -> None:
    """The parent of a task that libp2p starts for a connection: none, since listeners and dials are not tasks of its manager."""


# -- replacements ------------------------------------------------------------------------------------------------------------


async def read_name(reader: Reader) -> bytes:
    """One length-prefixed line of at most 1 KiB. Raises ParseError for anything else; nothing is buffered before the check."""
    line = await read_prefixed(reader, MAX_NEGOTIATION_BYTES)
    if line is None:
        raise IncompleteReadError("the stream ended before a negotiation message")
    if line[-1:] != b"\n":
        raise ParseError("a negotiation message without its newline")
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise ParseError("a negotiation message that is not UTF-8") from error
    return line[:-1]


async def read_identity(
    stream: INetStream, use_varint_format: bool = True, max_length: int = MAX_IDENTIFY
) -> bytes:
    """Read a peer's identify message. If it is too long or cut off, resets the stream and raises IOException."""
    try:
        message = await read_prefixed(stream, max_length)
    except ParseError:
        message = None
    if message is None:
        await stream.reset()
        raise IOException(f"no message of at most {max_length} bytes")
    return message


async def read_prefixed(reader: Reader | INetStream, most: int) -> bytes | None:
    """A message preceded by its length as a varint; None if the stream ended before. Raises ParseError if it is empty or above `most`."""
    size = shift = 0
    while True:
        byte = await _read(reader, 1)
        if not byte and not shift:
            return None
        if not byte:
            raise ParseError("the stream ended within a length")
        size |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            break
        if shift > 21:
            raise ParseError("a length that has no end")
    if not 0 < size <= most:
        raise ParseError(f"a message of {size} bytes; at most {most} are read")
    return await read_exactly(reader, size)


async def read_exactly(reader: Reader | INetStream, n: int, retry_count: int = 0) -> bytes:
    """`n` bytes, in as many pieces as they arrive in. Raises IncompleteReadError if the stream ends early."""
    data = bytearray()
    while len(data) < n:
        part = await _read(reader, n - len(data))
        if not part:
            raise IncompleteReadError(
                f"the stream ended after {len(data)} of {n} bytes", expected_bytes=n, received_bytes=len(data)
            )
        data += part
    return bytes(data)


async def _read(reader: Reader | INetStream, n: int) -> bytes:
    try:
        return await reader.read(n)
    except StreamEOF:
        return b""


def get_remote_address(stream: TrioTCPStream) -> tuple[str, int] | None:
    """IP address and port of the other end; IPv4-mapped IPv6 becomes IPv4. None if the connection is gone or is not TCP."""
    if stream._cached_remote_address is None:
        try:
            host, port, *_ = stream.stream.socket.getpeername()
            ip = ipaddress.ip_address(str(host).partition("%")[0])
        except (OSError, ValueError):
            return None
        mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
        stream._cached_remote_address = (str(mapped or ip), int(port))
    return stream._cached_remote_address

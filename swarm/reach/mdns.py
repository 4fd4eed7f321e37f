"""Finds neighbours on the LAN by multicast DNS (`_sark._tcp.local.`), without a gate: `Lan` for a node, `find_lan_contacts` for a command.

An answer on the LAN is only a few addresses to try, all in our own networks; the channel then proves the peer's identity. zeroconf blocks,
so it runs in threads. A failure (no multicast, no network at all) only costs a log line.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, Self

import structlog
import trio
from zeroconf import Error as ZeroconfError
from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, Zeroconf

from swarm.base.threads import LAN
from swarm.net.addresses import Address, Contact, PeerId, parse_tcp
from swarm.net.identity import peer_id_bytes
from swarm.p2p.dial_rules import own_ip_networks

SERVICE: Final = "_sark._tcp.local."
PEER_KEY: Final = "peer"
LOOK_AT_INTERFACES_S: Final = 10.0
"""How often to check whether this machine's addresses changed; if so, a new session begins."""
ANSWER_WITHIN_MS: Final = 2_000
AGAIN_S: Final = 60.0
"""A name is looked up at most this often, and a failed session is retried after this time."""
MAX_NEIGHBOURS: Final = 64
MAX_ADDRESSES: Final = 8
CLOSE_WITHIN_S: Final = 1.0
GLANCE_S: Final = 2.0
SETTLE_S: Final = 0.4
"""A glance ends if nobody new has answered for this long."""
_FAILURES: Final = (OSError, ZeroconfError, RuntimeError)

log = structlog.get_logger("sark.lan")


class Zeroconfs:
    """One mDNS session over IPv4 on all interfaces, with addresses of both families. All methods block; entering and leaving take up to a
    second. It announces `peer` at these addresses, unless `peer` is None."""

    def __init__(self, peer: PeerId | None, addresses: Sequence[Address]) -> None:
        self._info = announcement(peer, addresses) if peer is not None else None
        self._names: queue.Queue[str | None] = queue.Queue(maxsize=MAX_NEIGHBOURS)
        """Names of instances; None: the session was left."""

    def __enter__(self) -> Self:
        self._zeroconf = Zeroconf(ip_version=IPVersion.V4Only)
        try:
            if self._info is not None:
                self._zeroconf.register_service(self._info, cooperating_responders=True)
            ServiceBrowser(self._zeroconf, SERVICE, handlers=[self._changed])
        except BaseException:
            self._zeroconf.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(queue.Full):  # the queue is full: nobody waits for a name
            self._names.put_nowait(None)
        self._zeroconf.close()

    def _changed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: object) -> None:
        """Runs in zeroconf's thread: a service appeared, changed or left."""
        if getattr(state_change, "name", "") != "Removed" and not self._names.full():
            self._names.put_nowait(name)

    def next(self, within_s: float | None = None) -> str | None:
        """The next instance name; None if none came in time, or the session was left. Without `within_s`, waits until either happens."""
        try:
            return self._names.get(timeout=within_s)
        except queue.Empty:
            return None

    def resolve(self, name: str) -> Contact | None:
        """The contact of that name; None if it does not answer, or the answer is invalid."""
        info = self._zeroconf.get_service_info(SERVICE, name, ANSWER_WITHIN_MS)
        if info is None or not info.port:
            return None
        peer = (info.properties or {}).get(PEER_KEY.encode()) or b""
        return neighbour(peer, info.parsed_addresses(), info.port)


Session = Callable[[PeerId | None, Sequence[Address]], Zeroconfs]


def announcement(peer: PeerId, addresses: Sequence[Address]) -> ServiceInfo | None:
    """What the LAN sees: one port and the addresses that share it, without loopback. None if there is nothing to announce."""
    parsed = [address for text in addresses if (address := parse_tcp(text)) is not None]
    near = [a for a in parsed if a.ip is not None and not a.ip.is_loopback]
    if not near:
        return None
    ips = [address.host for address in near if address.port == near[0].port][:MAX_ADDRESSES]
    return ServiceInfo(
        SERVICE,
        f"{peer}.{SERVICE}",
        port=near[0].port,
        properties={PEER_KEY: peer},
        server=f"sark-{peer[-16:].lower()}.local.",
        parsed_addresses=ips,
    )


def neighbour(
    peer: bytes, ips: Iterable[str], port: int, networks: Iterable[str] | None = None
) -> Contact | None:
    """The contact in an answer from the LAN; None if it is invalid. `networks`: our own, as CIDR; None: look them up."""
    try:
        text = peer.decode("ascii")
        peer_id_bytes(text)
    except ValueError:
        return None
    own = own_ip_networks() if networks is None else networks
    near = [ipaddress.ip_network(each, strict=False) for each in own]
    texts = []
    for each in ips:
        with contextlib.suppress(ValueError):
            ip = ipaddress.ip_address(each)
            if not ip.is_loopback and any(ip in network for network in near):
                texts.append(f"/ip{ip.version}/{ip}/tcp/{port}")
    addresses = tuple(dict.fromkeys(texts))[:MAX_ADDRESSES]
    return Contact(text, addresses) if addresses and 0 < port < 65_536 else None


@dataclass(eq=False)
class Lan:
    """Announces a node on the LAN and finds its neighbours, while `run` runs."""

    peer: PeerId
    addresses: Callable[[], Sequence[Address]]
    """The addresses where this node listens now."""
    on_neighbour: Callable[[Contact], Awaitable[bool]]
    """Called for each peer that answers; returns whether the peer is there and has proved its key."""
    _: KW_ONLY
    announce: bool = True
    """False: only search."""
    session: Session = Zeroconfs

    def __post_init__(self) -> None:
        self._looked_up: dict[str, float] = {}
        self.neighbours: OrderedDict[PeerId, Contact] = OrderedDict()
        """The latest `MAX_NEIGHBOURS` confirmed neighbours, newest last, with the addresses that they named."""

    async def run(self) -> None:
        """Run until cancelled. Never raises because of the network."""
        while True:
            try:
                await self._one_session(tuple(self.addresses()))
            except _FAILURES as error:
                log.info("lan.failed", why=str(error) or type(error).__name__)
                await trio.sleep(AGAIN_S)

    async def _one_session(self, addresses: Sequence[Address]) -> None:
        """Run one session, until this machine's addresses change."""
        session = self.session(self.peer if self.announce else None, addresses)
        await LAN.run(session.__enter__)
        log.info("lan.up", announced=list(addresses) if self.announce else [])
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._browse, session, nursery)
                while True:
                    await trio.sleep(LOOK_AT_INTERFACES_S)
                    if tuple(self.addresses()) != addresses:
                        nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(CLOSE_WITHIN_S, shield=True):
                await LAN.run(session.__exit__, abandon_on_cancel=True)

    async def _browse(self, names: Zeroconfs, nursery: trio.Nursery) -> None:
        while True:
            name = await LAN.run(names.next, abandon_on_cancel=True)
            now = trio.current_time()
            if name is None or name.startswith(self.peer) or self._looked_up.get(name, now) > now:
                continue
            if len(self._looked_up) >= MAX_NEIGHBOURS:
                self._looked_up = {each: until for each, until in self._looked_up.items() if until > now}
            if len(self._looked_up) < MAX_NEIGHBOURS:
                self._looked_up[name] = now + AGAIN_S
                nursery.start_soon(self._meet, names, name)

    async def _meet(self, names: Zeroconfs, name: str) -> None:
        try:
            contact = await LAN.run(names.resolve, name, abandon_on_cancel=True)
        except _FAILURES as error:
            log.debug("lan.unresolved", name=name[:100], why=str(error))
            return
        if contact is None or contact.peer == self.peer:
            return
        log.info("lan.found", peer=contact.peer, addresses=list(contact.addresses))
        if await self.on_neighbour(contact):
            self.neighbours.pop(contact.peer, None)
            self.neighbours[contact.peer] = contact
            if len(self.neighbours) > MAX_NEIGHBOURS:
                self.neighbours.popitem(last=False)


def find_lan_contacts(
    within_s: float = GLANCE_S, *, session: Session = Zeroconfs, clock: Callable[[], float] = time.monotonic
) -> tuple[str, ...]:
    """Nodes on the LAN as ways into the swarm (`/ip4/…/tcp/…/p2p/12D3Koo…`), for a command that knows no gate. Blocks for up to `within_s`
    seconds, plus the time zeroconf takes to answer and to stop."""
    by_key: dict[PeerId, Contact] = {}
    until = clock() + within_s
    try:
        with session(None, ()) as names:
            while (left := until - clock()) > 0 and len(by_key) < MAX_ADDRESSES:
                name = names.next(min(left, SETTLE_S) if by_key else left)
                if name is None:
                    break
                contact = names.resolve(name)
                if contact is not None:
                    by_key.setdefault(contact.peer, contact)
    except _FAILURES as error:
        log.info("lan.failed", why=str(error) or type(error).__name__)
    return tuple(
        f"{address}/p2p/{contact.peer}" for contact in by_key.values() for address in contact.addresses[:2]
    )

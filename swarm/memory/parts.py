"""Parts of a simulated node: its relay, and the handlers of its inbound streams."""

from __future__ import annotations

import structlog
import trio

from protocol.errors import LocalProtocolError, Refused, SarkError, Unreachable
from swarm.memory.streams import MemoryLink, MemoryStream
from swarm.net.addresses import Address, Circuit, PeerId
from swarm.net.limits import InboundLimits
from swarm.net.network import Handler, Reservation
from swarm.net.reservations import WORDS, CircuitEnd, OpenCircuit, RelayReservations, ReservationDeclined

log = structlog.get_logger(__name__)


class MemoryGate:
    """A simulated gate: its reservations, and the circuit of each link."""

    def __init__(self, me: PeerId, address: Address, reservations: RelayReservations) -> None:
        self._me = me
        self._address = address
        self._reservations = reservations
        self.circuits: dict[MemoryLink, OpenCircuit] = {}
        """Established circuits."""

    def reserve(self, peer: PeerId, ip: str) -> Reservation:
        """Make a reservation for `peer`. Raises `Refused`."""
        now = trio.current_time()
        try:
            slot = self._reservations.reserve(peer, ip, now)
        except ReservationDeclined as declined:
            raise Refused(
                f"the gate {self._me} declined a reservation: {declined.reason.value}",
                reason=WORDS[declined.reason],
            ) from declined
        address = str(Circuit(self._me, self._address))
        return Reservation(self._me, address, slot.until - now)

    def begin(self, source: PeerId, ip: str, target: PeerId, connected: bool) -> OpenCircuit:
        """Begin to set up a circuit. Without a connection with the target, its reservation has ended. Raises `Unreachable`."""
        if not connected:
            self._reservations.release(target)
        for link in [link for link in self.circuits if link.dead]:
            self._reservations.end(self.circuits.pop(link), CircuitEnd.CLOSED)
        try:
            return self._reservations.begin(source, ip, target, trio.current_time())
        except ReservationDeclined as declined:
            raise Unreachable(f"cannot reach {target}: its gate says {declined.reason.value}") from declined

    def abandon(self, circuit: OpenCircuit) -> None:
        """End a circuit unless it was established."""
        if circuit not in self.circuits.values():
            self._reservations.end(circuit, None)


class InboundStreams:
    """The handlers of one node and the streams they serve, with the limits of the real network."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._handlers: dict[str, Handler] = {}
        self._limits = InboundLimits()
        self._serving: set[trio.CancelScope] = set()

    def handle(self, protocol: str, handler: Handler) -> None:
        """Set the only handler of a protocol."""
        if protocol in self._handlers:
            raise LocalProtocolError(f"{protocol} has a handler already")
        self._handlers[protocol] = handler

    def accept(self, nursery: trio.Nursery, stream: MemoryStream) -> None:
        """Serve one inbound stream. Raises `Unreachable`, for the opener, if it is not served."""
        handler = self._handlers.get(stream.protocol)
        if handler is None:
            raise Unreachable(f"cannot reach {self._me}: it does not speak {stream.protocol}")
        arriving = self._limits.arriving(stream.peer)
        if not arriving.__enter__():
            raise Unreachable(f"cannot reach {self._me}: it takes no more streams from this node")

        async def serve() -> None:
            scope = trio.CancelScope()
            self._serving.add(scope)
            try:
                with scope, self._limits.speaking(stream.peer, stream.protocol) as granted:
                    if granted:
                        await handler(stream)
                        await stream.aclose()
                        return
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                log.debug("inbound stream failed", peer=stream.peer, protocol=stream.protocol)
            except SarkError as error:
                log.info("inbound stream refused", peer=stream.peer, protocol=stream.protocol, why=error.what)
            except Exception:  # as in the real network: a bug in a handler costs its stream, not the node
                log.exception(
                    "a handler failed; its stream is reset", peer=stream.peer, protocol=stream.protocol
                )
            finally:
                self._serving.discard(scope)
                arriving.__exit__(None, None, None)
            stream.drop()

        nursery.start_soon(serve)

    def stop(self) -> None:
        """Cancel every handler at once."""
        for scope in tuple(self._serving):
            scope.cancel()

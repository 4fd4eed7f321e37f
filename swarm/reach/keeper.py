"""Keeping this node reachable: asks gates whether it can be dialled, and holds places at two of them while it cannot.

    network, gates ─▶ ReachKeeper.run: a look each second ─┬─ ask gates when it is time      (`reachability`: what follows from the answers)
                                                           ├─ a place lost or half used up: take it, or another one, again
                                                           └─ `addresses`, `holder` as of now; `changed()` wakes when they change

libp2p neither asks nor takes a place again: after a gate's restart or a silent cut that is done here, within seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from swarm.net.addresses import Address, Contact, PeerId, own_ips, parse_tcp
from swarm.net.network import Network
from swarm.net.paths import gate_name
from swarm.reach import reachability
from swarm.reach.autonat import DialBackAnswer, ask
from swarm.reach.reachability import Reach, ReachState

LOOK_S: Final = 1.0
LOOK_AT_INTERFACES_S: Final = 5.0
ASKED: Final = 2
"""Gates asked at a time."""
PLACES: Final = 2
"""Gates at which a place is held."""
OTHERS_S: Final = 3.5
"""How long a gate's answer waits for those of the others that are asked with it: dialling a door that is shut takes them 2.5 s."""
PATIENCE_S: Final = 5.0
RETRY_S: Final = (1.0, 10.0)
"""After a gate did not answer: so soon at first, then this rarely."""
REFUSED_S: Final = 60.0
"""After a gate said no without saying for how long."""
RENEW_AT: Final = 0.5
"""A place is renewed when this share of its time is over."""
ALONE_S: Final = 20.0
"""Without any gate for so long, a node behind a router serves its LAN, which is all that is left."""
MOST_PORTS: Final = 4

BEHIND_LINE: Final = "this device cannot be dialled from outside; others reach it through a gate"

log = structlog.get_logger("sark.reach")


@dataclass(slots=True)
class _Place:
    """How it stands with one gate."""

    taken_at: float = 0.0
    ttl_s: float = 0.0
    retry_at: float = 0.0
    pause_s: float = RETRY_S[0]
    trying: bool = False

    def due(self, now: float) -> bool:
        """Whether a place that is held should be renewed."""
        return now >= self.taken_at + self.ttl_s * RENEW_AT


@dataclass(slots=True)
class _Round:
    """Gates that are asked at a time."""

    moves: int
    """How often this machine had moved when it began."""
    left: int
    over: trio.Event = field(default_factory=trio.Event)

    def one_less(self) -> None:
        self.left -= 1
        if not self.left:
            self.over.set()


class ReachKeeper:
    """One node's. `run` must be running; everything else may be read at any time, also before."""

    def __init__(
        self,
        network: Network,
        gates: Callable[[], Sequence[Contact]],
        *,
        rng: random.Random,
        wall: Callable[[], float],
        gate: bool = False,
        fixed: Sequence[Address] = (),
        ips: Callable[[], Collection[str]] = own_ips,
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        """`gates`: those known now; `gate`: this node is one itself, so it takes no places and serves in any case;
        `fixed`: addresses that the user wants told; `ips`: of this machine's interfaces; `tell`: gets a line for people at changes."""
        self._network = network
        self._gates = gates
        self._rng = rng
        self._wall = wall
        self._gate = gate
        self._fixed = tuple(fixed)
        self._ips = ips
        self._tell = tell
        self._places: dict[PeerId, _Place] = {}
        self._mapped: tuple[Address, ...] = ()
        self._own: tuple[tuple[Address, ...], frozenset[str]] | None = None
        self._look_at_interfaces_at = 0.0
        self._linked: frozenset[PeerId] = frozenset()
        self._linked_at: float | None = None
        self._called_at = network.called_at
        self._asking = False
        self._moves = 0
        self._told: tuple[tuple[Address, ...], bool] | None = None
        self._changed = trio.Event()
        self.standing = ReachState()
        self.replies: dict[PeerId, DialBackAnswer] = {}
        """What each gate answered last."""

    # -- what others read --------------------------------------------------------------------------------------------------

    @property
    def reach(self) -> Reach:
        """Whether this node can be dialled."""
        return self.standing.reach

    @property
    def holder(self) -> bool:
        """Whether this node may keep adverts and route for others now."""
        if self._gate or self.standing.holder:
            return True
        return self._linked_at is not None and trio.current_time() >= self._linked_at + ALONE_S

    @property
    def addresses(self) -> tuple[Address, ...]:
        """What goes into the advert, best first."""
        own = (
            self._own[0] if self._own is not None else self._network.addresses
        )  # a look at interfaces takes 1 ms
        return reachability.told(self.standing, own, self._circuits(), self._fixed)

    @property
    def words(self) -> str:
        """How others reach this node, for people; empty where that is not known, or plain."""
        match self.reach:
            case Reach.BEHIND:
                gates = [gate_name(place.gate, [place.address]) for place in self._network.reservations()]
                through = f"gate {' and '.join(gates)}" if gates else "no gate now"
                return f"cannot be dialled from outside; reached through {through}"
            case Reach.DIRECT if self.standing.far_at is not None:
                return "can be dialled from outside"
            case _:
                return ""

    async def changed(self) -> None:
        """Wait until `addresses` or `holder` are others."""
        await self._changed.wait()

    def mapped(self, address: Address | None) -> None:
        """A router sends what comes to this address to this node; None: no longer. Gates are asked about its port."""
        mapped = () if address is None else (address,)
        if mapped != self._mapped:
            self._mapped = mapped
            self.standing = reachability.link_came_back(self.standing, trio.current_time())

    def _circuits(self) -> tuple[Address, ...]:
        if self.standing.reach is not Reach.BEHIND:
            return ()
        places = self._network.reservations()
        first = [place.address for place in places]
        return tuple(dict.fromkeys([*first, *(address for place in places for address in place.others)]))

    # -- the loop ------------------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look, ask and hold places for ever."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                now = trio.current_time()
                self._notice(now)
                if now >= self.standing.ask_at and not self._asking and self._gates():
                    self._asking = True
                    nursery.start_soon(self._ask_gates, nursery)
                self._hold(now, nursery)
                self._settle()
                await trio.sleep(LOOK_S)

    def _notice(self, now: float) -> None:
        """What of itself may change whether this node can be dialled."""
        if now >= self._look_at_interfaces_at:
            self._look_at_interfaces_at = now + LOOK_AT_INTERFACES_S
            own = (self._network.addresses, self._own_ips())
            if self._own is not None and own != self._own:
                log.info("reach.moved", addresses=list(own[0]))
                self._moves += 1
                self.standing = reachability.moved(self.standing, now)
            self._own = own
        if self._network.called_at > self._called_at:
            self._called_at = self._network.called_at
            self.standing = reachability.called(self.standing, now)
        gates = {gate.peer for gate in self._gates()}
        linked = frozenset(gates.intersection(self._network.connected()))
        if linked - self._linked and not self._asking:
            self.standing = reachability.link_came_back(self.standing, now)
        if linked or self._linked_at is None:
            self._linked_at = now
        self._linked = linked

    def _own_ips(self) -> frozenset[str]:
        """As of now; where the system does not tell (no more open files, say), those of the last look."""
        try:
            return frozenset(self._ips())
        except OSError as error:
            log.debug("reach.no-interfaces", why=error.strerror)
            return self._own[1] if self._own is not None else frozenset()

    def _settle(self) -> None:
        """Wake those who wait for a change."""
        now = (self.addresses, self.holder)
        if now == self._told:
            return
        if self._told is None or now[1] != self._told[1]:
            self._network.route(now[1])
        self._told = now
        self._changed.set()
        self._changed = trio.Event()

    # -- asking --------------------------------------------------------------------------------------------------------------

    def ports(self) -> tuple[int, ...]:
        """The ports at which this node might be dialled."""
        found = (parse_tcp(address) for address in (*self._mapped, *self._fixed, *self._network.addresses))
        ports = (address.port for address in found if address is not None and 0 < address.port < 65_536)
        return tuple(dict.fromkeys(ports))[:MOST_PORTS]

    def _first(self, gates: Sequence[Contact]) -> list[Contact]:
        """Those that are connected first; among the others chance decides, so that not all nodes ask the same two."""
        live = set(self._network.connected())
        mixed = self._rng.sample(list(gates), len(gates))
        return sorted(mixed, key=lambda gate: gate.peer not in live)

    async def _ask_gates(self, nursery: trio.Nursery) -> None:
        before, gates = self.standing.reach, self._first(self._gates())
        heard = self.standing.asked_at
        everybody = _Round(self._moves, len(gates[:ASKED]))
        async with trio.open_nursery() as asking:
            for gate in gates[:ASKED]:
                asking.start_soon(self._ask, gate, gates, everybody)
        self._asking = False
        now = trio.current_time()
        if self.standing.asked_at == heard and everybody.moves == self._moves:
            self.standing = reachability.unanswered(self.standing, now)
        if self.standing.reach is not before:
            self._say()
        self._hold(now, nursery)
        self._settle()

    async def _ask(self, gate: Contact, gates: Sequence[Contact], everybody: _Round) -> None:
        try:
            reply = await ask(self._network, gate, self.ports(), gates, wall=self._wall)
        except (Unreachable, Refused, RemoteProtocolError) as error:
            log.debug("reach.no-answer", gate=gate.peer, why=error.what)
            return
        finally:
            everybody.one_less()
        with trio.move_on_after(OTHERS_S):  # no gate is believed before the other could contradict it
            await everybody.over.wait()
        if everybody.moves != self._moves:
            return  # the gate saw this machine where it no longer is
        self.replies[gate.peer] = reply
        verdict = reachability.verdict_of(reply.gate, reply.observed, reply.reached, self._own_ips())
        log.debug("reach.heard", gate=gate.peer, observed=reply.observed, reached=list(reply.reached))
        self.standing = reachability.heard(self.standing, verdict, trio.current_time())

    def _say(self) -> None:
        log.info("reach.changed", reach=str(self.reach), reached=list(self.standing.reached))
        if self.reach is Reach.BEHIND:
            what = "this gate cannot be dialled from outside" if self._gate else BEHIND_LINE
            self._tell(f"{what} (see: sark-node doctor)")
        elif self.reach is Reach.DIRECT and self.standing.far_at is not None:
            self._tell(f"this device can be dialled: {', '.join(self.standing.reached)}")

    # -- places ----------------------------------------------------------------------------------------------------------------

    def _hold(self, now: float, nursery: trio.Nursery) -> None:
        """Begin what is needed to hold places at as many gates as there should be."""
        if self._gate or self.reach is not Reach.BEHIND:
            return
        held = {place.gate for place in self._network.reservations()}
        wanted = PLACES
        for gate in self._first_to_hold(held):
            if not wanted:
                return
            place = self._places.setdefault(gate.peer, _Place())
            if place.trying or (gate.peer in held and not place.due(now)):
                wanted -= 1
            elif now >= place.retry_at:
                wanted -= 1
                place.trying = True
                nursery.start_soon(self._take, gate, place)

    def _first_to_hold(self, held: Collection[PeerId]) -> list[Contact]:
        """Gates where a place is held come first, then those that were not refused or silent lately."""
        gates = list(self._gates())
        return sorted(gates, key=lambda gate: (gate.peer not in held, gate.peer not in self._places))

    async def _take(self, gate: Contact, place: _Place) -> None:
        try:
            reservation = await self._network.reserve(gate.peer, gate.addresses, max_wait_s=PATIENCE_S)
        except (Unreachable, Refused) as error:
            refused = isinstance(error, Refused)
            wait = (error.retry_after_s or REFUSED_S) if isinstance(error, Refused) else place.pause_s
            place.retry_at = trio.current_time() + wait * self._rng.uniform(0.5, 1.0)
            place.pause_s = RETRY_S[0] if refused else min(place.pause_s * 2, RETRY_S[1])
            log.info("place.not-taken", gate=gate.peer, why=error.what)
        else:
            fresh = not place.ttl_s
            place.taken_at, place.ttl_s = trio.current_time(), reservation.ttl_s
            place.retry_at, place.pause_s = 0.0, RETRY_S[0]
            log.info("place.taken", gate=gate.peer, address=reservation.address, ttl_s=reservation.ttl_s)
            if fresh:
                self._tell(f"reached through gate …{gate.peer[-8:]} now")
        finally:
            place.trying = False
        self._settle()

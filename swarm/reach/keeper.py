"""Keeps this node reachable: asks gates whether it can be dialled, and holds reservations at two gates while it cannot.

    network, gates ─▶ ReachKeeper.run, every second  ─┬─ ask gates when due      (`reachability` decides what follows from the answers)
                      or, when all is well, every 3   ├─ renew a reservation at half its life, replace a lost one
                                                      └─ `addresses` and `holder` now; `changed()` wakes when they change

libp2p does neither. With the keeper, this node recovers within seconds after a gate's restart or a silent disconnection.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

import structlog
import trio

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.words import Reason
from swarm.net.addresses import Address, Contact, PeerId, own_ips, parse_tcp
from swarm.net.network import Network, gate_name
from swarm.reach import reachability
from swarm.reach.autonat import DialBackAnswer, ask
from swarm.reach.reachability import Reach, ReachState

LOOK_S: Final = 1.0
CALM_S: Final = 3.0
"""Between two looks while nothing is missing, so that an idle device does not wake every second."""
LOOK_AT_INTERFACES_S: Final = 5.0
GATES_ASKED: Final = 2
"""Gates asked at once."""
RESERVATIONS: Final = 2
"""Gates at which this node has a reservation."""
OTHERS_S: Final = 3.5
"""How long one gate's answer waits for the others: a filtered port takes them 2.5 s to dial."""
MAX_WAIT_S: Final = 5.0
RETRY_S: Final = (1.0, 10.0)
"""Pauses after a gate did not answer: the first and the longest."""
REFUSED_S: Final = 60.0
"""Pause after a refusal that names no time."""
BARRED: Final = 2
"""How many refusals for lack of membership before the user is informed: the first may come before a ticket was shown."""
RENEW_AT: Final = 0.5
"""A reservation is renewed after this share of its lifetime."""
ALONE_S: Final = 20.0
"""After this long without a gate, a node behind a router serves its LAN, which is all it can reach."""
MOST_PORTS: Final = 4

BEHIND_LINE: Final = "this device cannot be dialled from outside, and needs a gate that relays for it"

log = structlog.get_logger("sark.reach")


@dataclass(slots=True)
class _GateState:
    """The reservation at one gate, and requests for it."""

    renew_at: float = 0.0
    retry_at: float = 0.0
    pause_s: float = RETRY_S[0]
    trying: bool = False
    barred: int = 0
    """How often the gate refused this node for lack of membership."""


@dataclass(eq=False)
class ReachKeeper:
    """The reachability of one node. Everything may be read at any time; `run` keeps it current."""

    network: Network
    gates: Callable[[], Sequence[Contact]]
    """The gates known now."""
    _: KW_ONLY
    rng: random.Random
    wall: Callable[[], float]
    gate: bool = False
    """This node is a gate: it makes no reservations, and always serves."""
    fixed: Sequence[Address] = ()
    """Addresses that the user announces."""
    ips: Callable[[], Collection[str]] = own_ips
    """The IP addresses of this machine's interfaces."""
    tell: Callable[[str], object] = lambda line: None
    """Called with a line for the user at changes."""

    def __post_init__(self) -> None:
        self._fixed = tuple(self.fixed)
        self._states: dict[PeerId, _GateState] = {}
        self._mapped: tuple[Address, ...] = ()
        self._own: tuple[tuple[Address, ...], frozenset[str]] | None = None
        self._look_at_interfaces_at = 0.0
        self._linked: frozenset[PeerId] = frozenset()
        self._linked_at: float | None = None
        self._called_at = self.network.called_at
        self._asking = False
        self._moves = 0
        self._last: tuple[tuple[Address, ...], bool] | None = None
        self._changed = trio.Event()
        self._news = trio.Event()
        """Set to make `run` look at once."""
        self.state = ReachState()

    # -- results --------------------------------------------------------------------------------------------------

    @property
    def reach(self) -> Reach:
        return self.state.reach

    @property
    def holder(self) -> bool:
        """Whether this node may now store adverts and route for others."""
        if self.gate or self.state.holder:
            return True
        return self._linked_at is not None and trio.current_time() >= self._linked_at + ALONE_S

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses for the advert, best first."""
        own = self._own[0] if self._own is not None else self.network.addresses
        held = self.network.reservations() if self.reach is Reach.BEHIND else ()
        others = (address for reservation in held for address in reservation.others)
        circuits = tuple(dict.fromkeys((*(reservation.address for reservation in held), *others)))
        return reachability.advertised(self.state, own, circuits, self._fixed)

    @property
    def words(self) -> str:
        """How others reach this node, in words; empty if unknown, or if only one network is involved."""
        match self.reach:
            case Reach.BEHIND:
                gates = [gate_name(each.gate, [each.address]) for each in self.network.reservations()]
                through = f"gate {' and '.join(gates)}" if gates else "no gate now"
                return f"cannot be dialled from outside; reached through {through}"
            case Reach.DIRECT if self.state.far_at is not None:
                return "can be dialled from outside"
            case _:
                return ""

    async def changed(self) -> None:
        """Wait until `addresses` or `holder` changes."""
        await self._changed.wait()

    def mapped(self, address: Address | None) -> None:
        """Record that a router forwards this address to this node; None: no longer. Gates are then asked about its port."""
        mapped = () if address is None else (address,)
        if mapped != self._mapped:
            self._mapped = mapped
            self.state = replace(self.state, ask_at=trio.current_time())
            self._news.set()

    # -- the loop ------------------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep this node reachable until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                now = trio.current_time()
                self._notice(now)
                if now >= self.state.ask_at and not self._asking and self.gates():
                    self._asking = True
                    nursery.start_soon(self._ask_gates, nursery)
                self._hold(now, nursery)
                self._settle()
                with trio.move_on_after(CALM_S if self._calm() else LOOK_S):
                    await self._news.wait()
                self._news = trio.Event()

    def _calm(self) -> bool:
        """Whether this node has everything it needs: a verdict, a gate and, if it is behind a router, its reservations."""
        if self._asking or self.reach is Reach.UNKNOWN or not self._linked:
            return False
        held = len(self.network.reservations()) if self.reach is Reach.BEHIND else RESERVATIONS
        return self.gate or held >= min(RESERVATIONS, len(self.gates()))

    def _notice(self, now: float) -> None:
        """Notice local changes that may affect whether this node can be dialled."""
        if now >= self._look_at_interfaces_at:
            self._look_at_interfaces_at = now + LOOK_AT_INTERFACES_S
            own = (self.network.addresses, self._own_ips())
            if self._own is not None and own != self._own:
                log.info("reach.moved", addresses=list(own[0]))
                self._moves += 1
                self.state = reachability.after_address_change(self.state, now)
            self._own = own
        if self.network.called_at > self._called_at:
            self._called_at = self.network.called_at
            self.state = reachability.called(self.state, now)
        linked = frozenset(gate.peer for gate in self.gates() if self.network.path(gate.peer) is not None)
        if linked - self._linked and not self._asking:
            self.state = replace(self.state, ask_at=now)
        if linked or self._linked_at is None:
            self._linked_at = now
        self._linked = linked

    def _own_ips(self) -> frozenset[str]:
        """The current IP addresses; the last known ones if the system cannot tell (for example, with too many open files)."""
        try:
            return frozenset(self.ips())
        except OSError as error:
            log.debug("reach.no-interfaces", why=error.strerror)
            return self._own[1] if self._own is not None else frozenset()

    def _settle(self) -> None:
        """Wake the tasks that wait for a change."""
        now = (self.addresses, self.holder)
        if now == self._last:
            return
        self._last = now
        self._changed.set()
        self._changed = trio.Event()

    # -- asking gates -----------------------------------------------------------------------------------------------------------

    def ports(self) -> tuple[int, ...]:
        """The ports at which this node might be dialled."""
        parsed = (parse_tcp(address) for address in (*self._mapped, *self._fixed, *self.network.addresses))
        ports = (address.port for address in parsed if address is not None and 0 < address.port < 65_536)
        return tuple(dict.fromkeys(ports))[:MOST_PORTS]

    async def _ask_gates(self, nursery: trio.Nursery) -> None:
        asked_at, moves, live = self.state.asked_at, self._moves, self.network.connected()
        # connected gates first; the rest in random order, so that not all nodes ask the same two
        gates = list(self.gates())
        self.rng.shuffle(gates)
        gates.sort(key=lambda gate: gate.peer not in live)
        replies: list[DialBackAnswer] = []
        async with trio.open_nursery() as waiting:
            async with trio.open_nursery() as asking:

                async def apply_early() -> None:
                    await trio.sleep(OTHERS_S)  # slower gates may still contradict this answer
                    self._apply(replies, moves, nursery)

                async def ask_one(gate: Contact) -> None:
                    try:
                        replies.append(await ask(self.network, gate, self.ports(), gates, wall=self.wall))
                    except (Unreachable, Refused, RemoteProtocolError) as error:
                        log.debug("reach.no-answer", gate=gate.peer, why=error.what)
                    else:
                        waiting.start_soon(apply_early)

                for gate in gates[:GATES_ASKED]:
                    asking.start_soon(ask_one, gate)
            waiting.cancel_scope.cancel()
        self._asking = False
        self._apply(replies, moves, nursery)
        if self.state.asked_at == asked_at and moves == self._moves:
            self.state = reachability.unanswered(self.state, trio.current_time())

    def _apply(self, replies: list[DialBackAnswer], moves: int, nursery: trio.Nursery) -> None:
        """Apply the answers received, unless this machine's addresses changed after the gates were asked."""
        before, now = self.state.reach, trio.current_time()
        for reply in replies if moves == self._moves else ():
            verdict = reachability.verdict_of(reply.gate, reply.observed, reply.reached, self._own_ips())
            log.debug("reach.answer", gate=reply.gate, observed=reply.observed, reached=list(reply.reached))
            self.state = reachability.answered(self.state, verdict, now)
        replies.clear()
        if self.state.reach is not before:
            self._say()
        self._hold(now, nursery)
        self._settle()

    def _say(self) -> None:
        log.info("reach.changed", reach=str(self.reach), reached=list(self.state.reached))
        if self.reach is Reach.BEHIND:
            what = "this gate cannot be dialled from outside" if self.gate else BEHIND_LINE
            self.tell(f"{what} (see: sark-node doctor)")
        elif self.reach is Reach.DIRECT and self.state.far_at is not None:
            self.tell(f"this device can be dialled: {', '.join(self.state.reached)}")

    # -- reservations ----------------------------------------------------------------------------------------------------------------

    def _hold(self, now: float, nursery: trio.Nursery) -> None:
        """Start the requests needed to hold `RESERVATIONS` reservations."""
        if self.gate or self.reach is not Reach.BEHIND:
            return
        held = {reservation.gate for reservation in self.network.reservations()}
        missing = RESERVATIONS
        # gates with a reservation first, then gates that neither refused nor failed lately
        for gate in sorted(
            self.gates(), key=lambda gate: (gate.peer not in held, gate.peer not in self._states)
        ):
            if not missing:
                return
            state = self._states.setdefault(gate.peer, _GateState())
            if state.trying or (gate.peer in held and now < state.renew_at):
                missing -= 1
            elif now >= state.retry_at:
                missing -= 1
                state.trying = True
                nursery.start_soon(self._reserve, gate, state)

    async def _reserve(self, gate: Contact, state: _GateState) -> None:
        try:
            reservation = await self.network.reserve(gate.peer, gate.addresses, max_wait_s=MAX_WAIT_S)
        except (Unreachable, Refused) as error:
            wait = state.pause_s
            state.pause_s = min(wait * 2, RETRY_S[1])
            if isinstance(error, Refused):
                wait, state.pause_s = error.retry_after_s or REFUSED_S, RETRY_S[0]
                state.barred += error.reason is Reason.NOT_ALLOWED
                if state.barred == BARRED:
                    self.tell(
                        f"gate …{gate.peer[-8:]} does not serve this device: join with a ticket, or ask its operator to admit it"
                    )
            state.retry_at = trio.current_time() + wait * self.rng.uniform(0.5, 1.0)
            log.info("reservation.failed", gate=gate.peer, why=error.what)
        else:
            if not state.renew_at:
                self.tell(f"reached through gate …{gate.peer[-8:]} now")
            state.renew_at = trio.current_time() + reservation.ttl_s * RENEW_AT
            state.retry_at, state.pause_s = 0.0, RETRY_S[0]
            log.info("reservation.made", gate=gate.peer, address=reservation.address, ttl_s=reservation.ttl_s)
        finally:
            state.trying = False
        self._settle()

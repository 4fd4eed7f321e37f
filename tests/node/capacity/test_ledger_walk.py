"""Random walk: schedulers, a delegate, an owner and a device do anything to a ledger, and its invariants hold."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from node.capacity.allocations import (
    DEVICE_OCCUPYING_STATES,
    SLOT_HOLDING_STATES,
    Allocation,
    KillCommand,
    LedgerCommand,
    OfferCommand,
    RunCommand,
    SlotRequest,
    WarnCommand,
)
from node.capacity.ledger import Ledger
from node.capacity.queue import LeaseQueue, QueueRank
from protocol.messages.work import Denied, Granted, HeldLease, Queued
from protocol.values.lease import (
    GRACE_S,
    LEASE_TTL_S,
    MAX_PREEMPTIONS,
    PREEMPT_GAP,
    PREEMPT_GRACE_S,
    RENEW_EVERY_S,
    LeaseState,
)
from protocol.words import Reason
from tests.node.ledger_parts import ANN, BOB, DEE, campaign_of, held, want

PRINCIPAL = {ANN: ANN, BOB: BOB, DEE: ANN}
"""Dee acts for Ann."""
SLOTS_OF_BOB = 3
WHY_KILLED = {Reason.CANCELLED, Reason.EXPIRED, Reason.PREEMPTED, Reason.TIMED_OUT, Reason.NOT_ALLOWED}
peers = st.sampled_from([ANN, BOB, DEE])


def wanted(peer: str, number: int, queue: bool, epoch: int) -> SlotRequest:
    """A request whose terms follow from the task's number, so that a replay sends the same."""
    return want(
        number,
        peer,
        principal=PRINCIPAL[peer],
        queue=queue,
        epoch=epoch,
        priority=(20, 25, 50, 50, 55, 60, 80, 100)[number % 8],
        max_priority=90,
        slots=SLOTS_OF_BOB if peer == BOB else None,
        owner=peer == BOB,
        preempted=number % 3,
        left_s=2_000.0 if number % 5 == 4 else None,
        queue_s=300.0 if number % 7 == 5 else 1e6,
    )


class LedgerMachine(RuleBasedStateMachine):
    """Two schedulers, and a third that acts for the first, on a device with one or two slots."""

    leases = Bundle("leases")

    @initialize(slots=st.integers(1, 2), owner_first=st.booleans())
    def begin(self, slots: int, owner_first: bool) -> None:
        self.now = 0.0
        self.slots = slots
        self.owner_first = owner_first
        self.ledger = Ledger(3, slots=slots, max_queue=6, max_queue_each=4, owner_first=owner_first)
        self.running: set[str] = set()
        self.timed: set[str] = set()
        self.between = ""
        self.offered: set[str] = set()
        self.ever_run: set[str] = set()
        self.links = {ANN: 0, BOB: 0, DEE: 0}
        self.last_fence = (0, 0)
        self.gave_way: Counter[str] = Counter()
        """Task → how often its run was preempted here."""
        self.terms: dict[str, SlotRequest] = {}
        self.spoke: dict[str, str] = {}
        """Principal → the peer that spoke last for its campaign."""
        self.unfair_since: dict[tuple[str, str], float] = {}
        for peer in self.links:
            self._link(peer, True)

    def obey(self) -> None:
        """Carry out the ledger's commands, as the worker does after each change."""
        if not self.ledger.condition.serves_queue:
            self.ledger.close_queue()
        for order in self.ledger.take_commands():
            self._obey(order)
        self._look_for_unfairness()

    def _obey(self, order: LedgerCommand) -> None:
        match order:
            case RunCommand(lease):
                assert lease not in self.ever_run, "a lease runs once"
                self.ever_run.add(lease)
                self.running.add(lease)
                assert len(self.running) <= self.slots, "never two runs on one slot"
                place = self.ledger.allocation(lease)
                assert place is not None
                place.began_at = self.now
            case OfferCommand(lease):
                self.offered.add(lease)
            case WarnCommand(note=note):
                assert self._may_give_way(note.lease)
                gives_way_at_once = note.grace_s == 0
                loses_no_launch = note.lease not in self.running or note.lease == self.between
                assert loses_no_launch == gives_way_at_once, (
                    "who has not begun, or stands between two launches, gives way at once"
                )
                assert note.fence.incarnation == 3
            case KillCommand(lease, reason):
                assert lease in self.running
                assert reason in WHY_KILLED, "every end has a reason"
                if reason is Reason.PREEMPTED:
                    assert lease not in self.timed, "never inside a timed measurement"
                    assert self._may_give_way(lease), "twice is enough"
                    self.gave_way[self.terms[lease].task.task] += 1

    def _may_give_way(self, lease: str, to_owner: bool = True) -> bool:
        """Whether the run may be preempted again. What its scheduler says of earlier preemptions binds everybody but the owner, Bob."""
        terms = self.terms[lease]
        claimed = 0 if to_owner and not terms.owner else terms.commit.preempted
        return max(claimed, self.gave_way[terms.task.task]) < MAX_PREEMPTIONS

    def _outranks(self, one: SlotRequest, other: SlotRequest) -> bool:
        if self.owner_first and one.owner != other.owner:
            return one.owner
        return one.base_priority - other.base_priority >= PREEMPT_GAP

    def _look_for_unfairness(self) -> None:
        """Nobody waits long behind a run that could give way: one grace, and one more if the first choice was being timed."""
        places = self.ledger.allocations()
        pairs = {
            (ticket.lease, run.lease)
            for ticket in places
            for run in places
            if ticket.state is LeaseState.QUEUED
            and self.links[ticket.peer]
            and run.state is LeaseState.RUNNING
            and run.lease not in self.timed
            and self._may_give_way(run.lease, ticket.request.owner)
            and self._outranks(ticket.request, run.request)
        }
        self.unfair_since = {pair: self.unfair_since.get(pair, self.now) for pair in pairs}
        for pair, since in self.unfair_since.items():
            assert self.now - since <= 2 * PREEMPT_GRACE_S, f"{pair[0]} waits behind {pair[1]}"

    # -- actions of schedulers -------------------------------------------------------------------------------------------

    @rule(
        target=leases,
        peer=peers,
        number=st.integers(1, 64),
        queue=st.sampled_from([True, True, True, False]),
        epoch=st.sampled_from([None, None, None, None, 1, 2, 3]),
    )
    def commit(self, peer: str, number: int, queue: bool, epoch: int | None) -> object:
        """With `epoch` None, the scheduler that speaks for the campaign carries on with its epoch."""
        if epoch is None:
            principal = PRINCIPAL[peer]
            epoch = max(1, self.ledger.epoch(principal, campaign_of(peer, principal)))
            peer = self.spoke.get(principal, peer)
        ask = wanted(peer, number, queue, epoch)
        answer = self.ledger.commit(ask, self.now)
        if not isinstance(answer, (Granted, Queued)):
            self.obey()
            return multiple()
        new = answer.lease not in self.terms
        if new:
            assert answer.fence.key() > self.last_fence, "fences rise"
            self.last_fence = answer.fence.key()
            self.terms[answer.lease] = ask
            self._speaks(peer, epoch)
        self.obey()
        version = self.ledger.version
        again = self.ledger.commit(ask, self.now)
        assert again == answer, "a replay gets the same answer"
        assert self.ledger.version == version, "a replay changes nothing"
        assert not self.ledger.take_commands()
        return held(answer)

    def _speaks(self, peer: str, epoch: int) -> None:
        self.spoke[PRINCIPAL[peer]] = peer
        assert epoch == self.ledger.epoch(PRINCIPAL[peer], campaign_of(peer, PRINCIPAL[peer]))
        for place in self.ledger.of_campaign(PRINCIPAL[peer], campaign_of(peer, PRINCIPAL[peer])):
            assert place.peer == peer, "one speaks for a campaign"

    @rule(lease=leases, peer=peers)
    def renew(self, lease: HeldLease, peer: str) -> None:
        place = self.ledger.allocation(lease.lease)
        speaker = place.peer if place is not None else None
        result = self.ledger.renew(peer, [lease], self.now)
        assert len(result.renewed) + len(result.lost) == 1
        assert not result.renewed or speaker == peer
        assert all(waiting.lease in result.renewed for waiting in result.waiting)
        self.obey()

    @rule(lease=leases, peer=peers)
    def stop(self, lease: HeldLease, peer: str) -> None:
        dying = self.ledger.stop(peer, [lease], Reason.CANCELLED, self.now)
        assert set(dying) <= self.running
        self.obey()
        assert self.ledger.stop(peer, [lease], Reason.CANCELLED, self.now) == dying
        assert not self.ledger.take_commands()

    @precondition(lambda self: self.offered)
    @rule(data=st.data(), answer=st.sampled_from(["start", "skip", "defer"]))
    def answer_offer(self, data: st.DataObject, answer: str) -> None:
        lease = data.draw(st.sampled_from(sorted(self.offered)))
        self.offered.discard(lease)
        if answer == "start":
            self.ledger.start(lease, self.now)
        elif answer == "skip":
            self.ledger.skip(lease, self.now)
        else:
            place = self.ledger.allocation(lease)
            if place is not None:
                self._link(place.peer, False)
            self.ledger.defer(lease, self.now)
        self.obey()

    @precondition(lambda self: self.offered)
    @rule()
    def take_all_offers(self) -> None:
        while self.offered:
            self.ledger.start(self.offered.pop(), self.now)
            self.obey()

    @rule(peer=peers, up=st.sampled_from([True, True, False]))
    def link(self, peer: str, up: bool) -> None:
        self._link(peer, up)
        self.obey()

    def _link(self, peer: str, up: bool) -> None:
        self.links[peer] = self.links[peer] + 1 if up else max(0, self.links[peer] - 1)
        (self.ledger.link_up if up else self.ledger.link_down)(peer, self.now)

    @rule(peer=peers, epoch=st.integers(1, 4))
    def adopt(self, peer: str, epoch: int) -> None:
        campaign = campaign_of(peer, PRINCIPAL[peer])
        before = self.ledger.epoch(PRINCIPAL[peer], campaign)
        refused = self.ledger.adopt(peer, PRINCIPAL[peer], campaign, epoch, self.now)
        if epoch < before:
            assert isinstance(refused, Denied)
        if refused is None:
            self._speaks(peer, epoch)
        self.obey()

    @rule(who=st.sampled_from([None] * 9 + [ANN, BOB]))
    def evict(self, who: str | None) -> None:
        if who is None:
            return
        dying = self.ledger.evict(who, Reason.NOT_ALLOWED, self.now)
        assert set(dying) <= self.running
        self.obey()
        left = [place for place in self.ledger.allocations() if who in (place.peer, place.request.principal)]
        assert {place.state for place in left} <= {LeaseState.STOPPING, LeaseState.REPORTING}

    @rule(why=st.sampled_from(["", "", "paused by its owner"]))
    def hold(self, why: str) -> None:
        """The owner pauses the worker, or resumes it."""
        self.ledger.condition.hold(why)
        self.obey()

    # -- actions of the device -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.running)
    @rule(data=st.data(), on=st.booleans())
    def time(self, data: st.DataObject, on: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.running)))
        (self.timed.add if on else self.timed.discard)(lease)
        self.ledger.timing(lease, on, self.now)
        self.obey()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_launch(self, data: st.DataObject) -> None:
        self.between = lease = data.draw(st.sampled_from(sorted(self.running)))
        self.timed.discard(lease)
        self.ledger.between_launches(lease, self.now)
        self.obey()
        self.between = ""

    @precondition(lambda self: self.running)
    @rule(data=st.data(), settled=st.booleans())
    def finish(self, data: st.DataObject, settled: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.running)))
        self._gone(lease)
        if settled:
            self.ledger.acknowledge(lease)

    @precondition(lambda self: any(place.state is LeaseState.STOPPING for place in self.ledger.allocations()))
    @rule()
    def die(self) -> None:
        """Killed runs are dead now."""
        for place in self.ledger.allocations():
            if place.state is LeaseState.STOPPING:
                self._gone(place.lease)

    def _gone(self, lease: str) -> None:
        self.running.discard(lease)
        self.timed.discard(lease)
        self.ledger.finish(lease, self.now)
        self.obey()

    @rule(
        seconds=st.sampled_from([0.5, 1.0, 1.0, 2.0, 8.0, LEASE_TTL_S, 61.0, GRACE_S]), renewing=st.booleans()
    )
    def wait(self, seconds: float, renewing: bool) -> None:
        """Pass time as the worker does, waking at each deadline. With `renewing`, all peers renew their leases in time."""
        until = self.now + seconds
        while self.now < until:
            step = min(until, self.now + RENEW_EVERY_S)
            if renewing:
                self._renew_all()
            while (deadline := self.ledger.next_deadline()) is not None and deadline <= step:
                assert deadline > self.now, "a deadline that is over has been dealt with"
                self.now = deadline
                self.ledger.expire(self.now)
                self.obey()
            self.now = step
            self.ledger.expire(self.now)
            self.obey()

    def _renew_all(self) -> None:
        for peer in self.links:
            mine = [
                HeldLease(lease=place.lease, fence=place.fence)
                for place in self.ledger.allocations()
                if place.peer == peer
            ]
            self.ledger.renew(peer, mine, self.now)
            self.obey()

    @rule(seconds=st.sampled_from([40.0, 5 * GRACE_S]))
    def sleep(self, seconds: float) -> None:
        """The machine slept: nothing happened for long, then everything at once."""
        self.now += seconds
        self.unfair_since.clear()
        self.ledger.expire(self.now)
        self.obey()

    # -- invariants ------------------------------------------------------------------------------------------------------

    @invariant()
    def promises_hold(self) -> None:
        places = self.ledger.allocations()
        assert sum(1 for p in places if p.state in SLOT_HOLDING_STATES) <= self.slots, (
            "never two live leases on one slot"
        )
        assert {p.lease for p in places if p.state in DEVICE_OCCUPYING_STATES} == self.running
        assert self.ledger.queue <= 6
        assert all(
            p.deadline is not None
            for p in places
            if p.state in SLOT_HOLDING_STATES or p.state is LeaseState.QUEUED
        ), "every lease ends"
        of_bob = [p for p in places if p.request.principal == BOB and _counts(p)]
        assert len(of_bob) <= SLOTS_OF_BOB, "no more than the permission is for"
        line = self.ledger.queue_order(self.now)
        assert sorted(line) == sorted(p.lease for p in places if p.state is LeaseState.QUEUED)
        quote = self.ledger.quote(self.now)
        for priority in (20, 60, 90):
            ahead, start_s, preempts = self.ledger.estimate_wait(ANN, priority, False, self.now)
            assert 0 <= ahead <= self.ledger.queue
            assert quote.free == 0 or (ahead, start_s, preempts) == (0, 0.0, "")

    def teardown(self) -> None:
        """Once faults stop, everything ends."""
        self.now += LEASE_TTL_S + GRACE_S
        for _ in range(3):
            self.unfair_since.clear()
            self.ledger.expire(self.now)
            self.obey()
            for lease in sorted(self.running):
                self._gone(lease)
            self.now += LEASE_TTL_S + GRACE_S
        assert all(p.state is LeaseState.REPORTING for p in self.ledger.allocations())


def _counts(place: Allocation) -> bool:
    return place.state in SLOT_HOLDING_STATES or place.state is LeaseState.QUEUED


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=60)


ranks = st.lists(
    st.tuples(st.booleans(), st.sampled_from([50, 55]), st.sampled_from("abc")), min_size=1, max_size=12
)


@given(ranks, st.lists(st.sampled_from("abc"), max_size=4))
def test_the_order_of_the_queue_is_the_order_of_service(
    tickets: list[tuple[bool, int, str]], before: list[str]
) -> None:
    queue = LeaseQueue()
    for principal in before:
        queue.served(principal)
    waiting = [
        QueueRank(owner, priority, who, at, str(at)) for at, (owner, priority, who) in enumerate(tickets)
    ]
    line = queue.order(waiting)
    for expected in line:
        first = min(
            waiting,
            key=lambda one: (not one.owner, -one.priority, queue._last_served(one.principal), one.number),
        )
        assert first == expected
        waiting.remove(first)
        queue.served(first.principal)
    assert not waiting


@given(ranks)
def test_among_equals_nobody_is_served_twice_while_another_waits(
    tickets: list[tuple[bool, int, str]],
) -> None:
    line = LeaseQueue().order([QueueRank(False, 50, who, at) for at, (_, _, who) in enumerate(tickets)])
    for at, rank in enumerate(line):
        since = next((back for back in range(at - 1, -1, -1) if line[back].principal == rank.principal), None)
        if since is not None:
            between = {one.principal for one in line[since + 1 : at]}
            waiting = {one.principal for one in line[at:]} - {rank.principal}
            assert waiting <= between

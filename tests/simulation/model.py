"""The model: two schedulers and three workers on virtual time, with faults of every kind, all drawn from one seed.

    run(seed) -> Outcome     its history, checked against every invariant

The cores and the conversations are the real ones. Around them are short shells that do what the services do (`sim_scheduler`,
`sim_worker`), a store made of dictionaries (`sim_store`) and a network of virtual links (`wire`). A run starts without faults while
campaigns are submitted. Then faults are injected for a minute. After that nothing more goes wrong, and every task has to end. Finally each
scheduler submits one more task for each worker.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final

from node.capacity.ledger import Ledger
from node.conversation.conversation import WorkerConversation
from protocol.errors import LocalProtocolError
from protocol.messages.permission import CallPermission
from protocol.values.advert import Advert, UnitOffer
from protocol.values.attempt import TaskState
from protocol.values.lease import GRACE_S, LEASE_TTL_S
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.values.trust import OWN, STRANGER, Trust
from scheduler.conversation.conversation import SchedulerConversation
from scheduler.core.scheduler import SchedulerCore
from tests.simulation.adapter import device_of
from tests.simulation.disasters import DISASTERS, Disasters
from tests.simulation.faults import FAULTS, FAULTS_S
from tests.simulation.history import Breach, Event, History, Kind, Limits
from tests.simulation.invariants import check
from tests.simulation.kernel import Kernel
from tests.simulation.real_store import RealStore
from tests.simulation.sim_adopter import SimAdopter
from tests.simulation.sim_scheduler import SimScheduler
from tests.simulation.sim_store import SimCampaign, SimStore
from tests.simulation.sim_worker import BEGAN_AT, PRETEND_S, Runs, SimWorker
from tests.simulation.sittings import with_sittings
from tests.simulation.wire import Air

UNIT: Final = "CPU (ONNX)"
MAX_WAIT_S: Final = 900.0
"""Once faults stop, everything has to end within this time."""
LONGEST_RUN_S: Final = 40.0
SLOWEST: Final = 0.9
"""The lowest rate of a process's clock."""
AFTERWARDS_S: Final = (PRETEND_S + LONGEST_RUN_S) / SLOWEST + 1.0
"""From the last end of a task, and the last pause, to the final check of what is left. A run that its scheduler gave up while the worker
was paused continues to its own end, because nobody needs the device. So does a run that began for a scheduler which had just heard that
another scheduler leads the campaign: that scheduler touches nothing any more."""
GIB: Final = 1024**3


@dataclass(frozen=True)
class Mutant:
    """A known mistake, built in on purpose. The simulation has to find it."""

    name: str = ""
    make_ledger: Callable[..., Ledger] = Ledger
    make_conversation: Callable[..., WorkerConversation] = WorkerConversation
    make_core: Callable[..., SchedulerCore] = SchedulerCore
    make_scheduler: Callable[..., SchedulerConversation] = SchedulerConversation
    store: type[SimStore] = SimStore
    switches: frozenset[str] = frozenset()
    """Mistakes in the shells."""
    faults: tuple[int, int] = (8, 16)
    """Minimum and maximum number of faults in a run."""
    disasters: tuple[int, int] = (0, 0)
    """Minimum and maximum number of disasters, the rare faults."""
    only: frozenset[str] = frozenset()
    """Names of the fault and disaster methods that may be drawn; empty: all."""
    holders: float = 0.15
    """Share of the workers that never run some of the leases they grant, or all of them."""
    holds_on_s: float = 0.0
    """For how many seconds these workers go on holding leases once no other fault is active."""
    shows: int = 0
    """A seed that reveals the mistake: where to look first."""


FAITHFUL: Final = Mutant(faults=(0, 9), disasters=(0, 3))
STORM: Final = Mutant(faults=(8, 16), disasters=(3, 6))
WITH_STORE: Final = replace(FAITHFUL, store=RealStore)
"""`FAITHFUL` with the product's store beside the double."""


def few_kinds(seed: int) -> Mutant:
    """Faults of only a few kinds, each often: with all kinds, the same fault rarely happens twice in a row."""
    rng = random.Random(f"{seed} kinds")
    faults, disasters = (
        rng.sample([*FAULTS], rng.choice((1, 2, 3))),
        rng.sample(DISASTERS, rng.choice((1, 2))),
    )
    return Mutant(faults=(4, 16), disasters=(1, 4), only=frozenset((*faults, *disasters)))


@dataclass
class Outcome:
    """The outcome of one run."""

    seed: int
    history: History
    breaches: list[Breach]
    faults: Counter[str]
    seconds: float
    """Virtual seconds that the run took."""
    wasted: int = 0
    """Runs that began and whose result was not recorded."""
    began: int = 0
    error: str = ""
    """The rule of the core, the ledger or the store that was broken during the run."""


def peer_name(name: str) -> str:
    """A readable peer id."""
    return name.rjust(32, "x")


@dataclass
class World(Disasters):
    """A run in progress."""

    seed: int
    mutant: Mutant
    kernel: Kernel = field(default_factory=Kernel)
    history: History = field(default_factory=History)
    faults: Counter[str] = field(default_factory=Counter)
    schedulers: list[SimScheduler] = field(default_factory=list)
    workers: list[SimWorker] = field(default_factory=list)
    home: dict[str, SimScheduler] = field(default_factory=dict)
    """Campaign → its present scheduler: the one that submitted it, or adopted it last."""
    principals: dict[str, str] = field(default_factory=dict)
    """Peer → the principal it acts for, where that is not itself."""
    permits: dict[tuple[str, str], CallPermission] = field(default_factory=dict)
    """(worker, principal) → its permission at that worker."""
    revoked: set[tuple[str, str]] = field(default_factory=set)
    """(worker, peer) pairs whose permission is revoked."""
    broken: set[str] = field(default_factory=set)
    """Tasks whose model fails wherever it runs."""
    gone: list[SimWorker] = field(default_factory=list)
    """Workers that never come back."""
    gates_down: int = 0
    quiet: bool = False
    """Faults have stopped."""
    coming: int = 0
    """Number of campaigns, over all schedulers."""
    _trusts: dict[str, Trust] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.air = Air(random.Random(self.rng.random()))
        self.air.dropped = lambda one, other: self.tell(Kind.TROUBLE, worker=one, peer=other)
        self.air.delayed = lambda one, other: self.tell(Kind.DELAYED, worker=one, peer=other)
        self.history.limits = Limits(end_s=MAX_WAIT_S, slack_s=0.3)
        broken = self.broken
        for n in range(self.rng.choice((3, 3, 3, 2, 1))):
            self._add_worker(n, broken)
        left = 8
        for n in range(2):
            left = self._add_scheduler(n, left, broken)
        for worker in self.workers:
            worker.broken = frozenset(broken)
        self.history.liars = frozenset(worker.name for worker in self.workers if worker.runs.lies)
        for worker in self.workers:
            owner = self.rng.choice(self.schedulers).name
            for scheduler in self.schedulers:
                slots = self.rng.choice((None, None, None, None, 2, 3))
                self.permits[worker.name, scheduler.name] = CallPermission(
                    principal=scheduler.name,
                    rights=frozenset(),
                    owner=scheduler.name == owner,
                    slots=slots if scheduler.name != owner else None,
                )
                self.tell_permitted(worker.name, scheduler.name)

    # -- participants ---------------------------------------------------------------------------------------------------------

    def _add_worker(self, n: int, broken: set[str]) -> None:
        rng, name = self.rng, peer_name(f"w{n + 1}")
        slots = rng.choice((1, 1, 1, 2))
        slow = rng.random() < 0.2
        runs = Runs(
            seconds=(5.0, LONGEST_RUN_S) if slow else (0.2, rng.choice((1.0, 6.0, 15.0))),
            crashes=rng.choice((0.0, 0.0, 0.1, 0.5)),
            lies=rng.random() < 0.05,
        )
        holds = random.Random(f"{self.seed} {n}")  # a separate source, so that all other draws stay the same
        if holds.random() < self.mutant.holders:
            runs.holds, runs.pretends = holds.choice((0.3, 1.0)), holds.random() < 0.4
        worker = SimWorker(
            self.kernel,
            self.air,
            name,
            random.Random(rng.random()),
            self.tell,
            runs=runs,
            slots=slots,
            permit=self.permit,
            advert=partial(self._advert, name),
            owner_first=rng.random() < 0.3,
            make_ledger=self.mutant.make_ledger,
            make_conversation=self.mutant.make_conversation,
            mutant=self.mutant.switches,
        )
        worker.lost_changes = self._lost_changes
        self.history.slots[name] = slots
        self.workers.append(worker)

    def _lost_changes(self, number: int) -> None:
        if number:
            self.faults["unsynced changes lost"] += number

    def _add_scheduler(self, n: int, left: int, broken: set[str]) -> int:
        rng, name = self.rng, peer_name(f"s{n + 1}")
        scheduler = SimScheduler(*self.given(name), **self.named(name))
        self.schedulers.append(scheduler)
        for number in range(rng.choice((1, 1, 2))):
            count = rng.randint(1, min(5, left)) if left else 0
            if count:
                left -= count
                self.coming += 1
                campaign = f"c-{n + 1}{'ab'[number]}"
                tasks = self._tasks(name, campaign, count)
                broken |= {task.task for task in tasks if rng.random() < 0.07}
                submit = partial(self._submit, scheduler, campaign, tasks, rng.choice((50, 50, 50, 70, 20)))
                self.kernel.at(rng.uniform(0.0, 20.0), submit)
        return left

    def given(self, name: str) -> tuple[Kernel, Air, str, random.Random, Callable[..., None]]:
        """The positional arguments of every scheduler."""
        return self.kernel, self.air, name, random.Random(self.rng.random()), self.tell

    def named(self, name: str) -> dict[str, Any]:
        """The keyword arguments of every scheduler."""
        return {
            "store": self.mutant.store(name, self.tell, self._wall),
            "adverts": self._adverts,
            "broke": self._disk_broke,
            "make_core": self.mutant.make_core,
            "make_conversation": self.mutant.make_scheduler,
            "trust_of": self.trust_of,
            "mutant": self.mutant.switches,
        }

    def _wall(self) -> float:
        """The wall clock of schedulers, in seconds since 1970. It is always right."""
        return BEGAN_AT + self.kernel.now

    def trust_of(self, worker: str) -> Trust:
        """The trust in a worker. In every third run some workers are strangers to all schedulers."""
        if self.seed % 3:
            return OWN
        if worker not in self._trusts:
            drawn = random.Random(f"{self.seed} {worker}").random()
            self._trusts[worker] = STRANGER if drawn < 0.7 else OWN
        return self._trusts[worker]

    def _tasks(self, scheduler: str, campaign: str, count: int) -> list[Task]:
        """The tasks of a campaign. Some of them are replicas of one task, on as many devices."""
        rng = self.rng
        twins = min(count, rng.randint(2, len(self.workers))) if len(self.workers) > 1 < count else 0
        twins = twins if rng.random() < 0.3 else 0
        model = f"{rng.getrandbits(64):064x}"
        tasks = [self._task(scheduler, campaign, n, model, replica=n) for n in range(1, twins + 1)]
        self.history.siblings |= {task.task: campaign for task in tasks}
        rest = range(twins + 1, count + 1)
        tasks += [self._task(scheduler, campaign, n, f"{rng.getrandbits(64):064x}") for n in rest]
        return with_sittings(tasks, self.seed, self.history)

    @staticmethod
    def _task(
        scheduler: str, campaign: str, n: int, model: str, replica: int | None = None, pin: str = ""
    ) -> Task:
        clauses = tuple(parse_clause(text) for text in (f"units has {UNIT}", pin) if text)
        return Task(
            campaign=campaign,
            task=f"{campaign}/{n}",
            scheduler=scheduler,
            model=Model(name="m.onnx", sha256=model, size=1000),
            unit=UNIT,
            requirement=Requirement(clauses=clauses),
            measure=Measure(runs=1, loads=1),
            replica=replica,
            timeouts=Timeouts(queue_s=MAX_WAIT_S if pin else 300.0, fetch_s=20.0, load_s=10.0, run_s=60.0),
        )

    def _submit(
        self,
        scheduler: SimScheduler,
        campaign: str,
        tasks: list[Task],
        priority: int,
        *,
        wait_s: float = 120.0,
    ) -> None:
        history = self.history
        for task in tasks:
            history.tasks[task.task] = campaign
            history.models[task.task] = task.model.sha256
        attempts = self.rng.choice((2, 3, 3, 5))
        history.attempts[campaign] = attempts
        folder = SimCampaign(campaign, attempts=attempts, backoff_s=2.0, wait_s=wait_s, priority=priority)
        scheduler.store.create(folder, tasks)
        self.home[campaign] = scheduler

    def _adverts(self) -> list[Advert]:
        """What the index answers; empty while no gate is up. It still lists some workers that just left, and not yet some that just
        came.
        """
        if self.gates_down:
            return []
        return [
            self._advert(worker.name, worker.incarnation)
            for worker in self.workers
            if worker.incarnation and (worker.process.alive or self.rng.random() < 0.5)
        ]

    @staticmethod
    @lru_cache
    def _advert(worker: str, seq: int = 1) -> Advert:
        return Advert.model_construct(
            v=1,
            peer=worker,
            seq=seq,
            device=device_of(worker),
            name=worker[-2:],
            units=(UnitOffer.model_construct(unit=UNIT, runtime="r"),),
            ram=8 * GIB,
        )

    def permit(self, worker: str, peer: str) -> CallPermission | None:
        """What a peer may do at a worker now; None once its permission, or that of its principal, is revoked."""
        principal = self.principals.get(peer, peer)
        if self.revoked & {(worker, peer), (worker, principal)}:
            return None
        return self.permits[worker, principal]

    def tell_permitted(self, worker: str, peer: str) -> None:
        """Tell the history what a peer may do."""
        self.tell(Kind.PERMITTED, worker=worker, peer=peer, word="*")

    def _all(self) -> list[SimWorker | SimScheduler]:
        return [*self.workers, *self.schedulers]

    def tell(self, kind: Kind, **what: object) -> None:
        """Add an event to the history."""
        self.history.events.append(Event(self.kernel.now, kind, **what))  # type: ignore[arg-type]

    # -- the run --------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole run."""
        self.begin()
        self.plan_faults()
        self.plan_disasters()
        self.kernel.run(FAULTS_S + 1.0, lambda: False)
        self.wind_down()

    def begin(self) -> None:
        """Start every process within the first two seconds."""
        for worker in self.workers:
            self.kernel.at(self.rng.uniform(0.0, 2.0), partial(self._start_worker, worker))
        for scheduler in self.schedulers:
            self.kernel.at(self.rng.uniform(0.0, 2.0), partial(self._start_scheduler, scheduler))

    def wind_down(self) -> None:
        """Stop all faults and wait until everything ends."""
        self._calm()
        self.kernel.run(self.kernel.now + MAX_WAIT_S, self._over)
        if self._over():
            awake = max(one.process.paused_until for one in self._all())
            self.kernel.run(max(self.kernel.now, awake) + AFTERWARDS_S, lambda: False)
            if self._forgotten():
                self.kernel.run(
                    self.kernel.now + (LEASE_TTL_S + GRACE_S) / SLOWEST, lambda: not self._forgotten()
                )
            self._look_at_reservations()
            self._submit_afterwards()
            self.kernel.run(self.kernel.now + MAX_WAIT_S, self._over)
        self._look()

    def _submit_afterwards(self) -> None:
        """Submit, from each of the two original schedulers, one task for each worker alone."""
        for scheduler in self.schedulers[:2]:
            name = scheduler.name
            campaign, tasks = f"c-{name[-1]}z", []
            for n, worker in enumerate((one for one in self.workers if one not in self.gone), 1):
                pin = f"device == {device_of(worker.name)}"
                task = self._task(name, campaign, n, f"{self.rng.getrandbits(64):064x}", pin=pin)
                tasks.append(task)
                if not worker.runs.lies and not worker.runs.holds:
                    self.history.afterwards += (task.task,)
            self.coming += 1
            self._submit(scheduler, campaign, tasks, 50, wait_s=MAX_WAIT_S)

    def _over(self) -> bool:
        came = {campaign for scheduler in self.schedulers for campaign in scheduler.store.campaigns}
        busy = any(isinstance(s, SimAdopter) and s.adopting for s in self.schedulers)
        return (
            len(came) == self.coming and not busy and not any(s.store.unfinished() for s in self.schedulers)
        )

    def _look(self) -> None:
        """Record what is left, and every participant's view of the tasks."""
        history, tell = self.history, self.tell
        history.final, stored = {}, set()
        for scheduler in self.schedulers:
            store = scheduler.store
            store.commit()
            stored |= {one.sha256 for one in store.attempts.values() if one.sha256}
            for row in store.tasks.values():
                if self.leader(row.campaign) is not scheduler:
                    continue  # the campaign has another leader now, and only the leader's view counts
                history.final[row.id] = str(row.state)
                tell(Kind.VIEW, who=store.owner, task=row.id, word=str(row.state))
                entry = scheduler.core.state.tasks.get(row.id)
                if entry is not None:
                    tell(Kind.VIEW, who=f"{store.owner}'s core", task=row.id, word=str(entry.state))
        history.stored = frozenset(stored)

    def _forgotten(self) -> bool:
        """Whether a run waits for inputs from a scheduler that does not lead its campaign, or does not know the run: it restarted since, or
        the link broke while it cancelled runs that it found when it adopted. Such a run yields to any other, and ends with its grace.
        """
        for worker in self.workers:
            for place in worker.awaiting_reveal() if worker.process.alive else ():
                leader = self.leader(place.request.task.campaign)
                known = leader.core.state.by_lease(worker.name, place.lease, place.fence)
                if leader.peer != place.peer or known is None:
                    return True
        return False

    def _look_at_reservations(self) -> None:
        for worker in self.workers:
            if worker.process.alive:
                self.tell(Kind.RESERVED, worker=worker.name, number=worker.held())

    def close(self) -> None:
        """Stop every process and close every store."""
        for one in self._all():
            one.process.kill()
        for scheduler in self.schedulers:
            scheduler.store.close()


def run(seed: int, mutant: Mutant = FAITHFUL) -> Outcome:
    """One run. The same seed makes the same history, to the last event."""
    world = World(seed, mutant)
    error = ""
    try:
        world.run()
    except (AssertionError, LocalProtocolError, KeyError, ValueError) as exc:
        error = f"{type(exc).__name__}: {exc}"
    breaches = check(world.history)
    world.close()
    if error:
        breaches.insert(0, Breach("no_rule_is_broken", error, world.kernel.now))
    history = world.history
    recorded = sum(1 for event in history.of(Kind.RECORDED) if event.word == TaskState.SUCCEEDED)
    began = sum(1 for _ in history.of(Kind.BEGAN))
    return Outcome(
        seed,
        history,
        breaches,
        world.faults + world.air.injected,
        world.kernel.now,
        wasted=began - recorded,
        began=began,
        error=error,
    )

"""The model: two schedulers and three workers on virtual time, and whatever can go wrong with them, all drawn from one seed.

    run(seed) -> Outcome     the history of it, held against every invariant

The book and the ledger are the real ones. Around them stand short shells that do what the services do (`sim_scheduler`, `sim_worker`), a
store of dictionaries (`shelf`) and a network of virtual links (`wire`). First everything is fair while campaigns come in, then faults
come for a minute, then nothing more goes wrong, and everything has to end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from node.ledger import Ledger
from protocol.advert import Advert, UnitOffer
from protocol.attempt import TaskState
from protocol.errors import LocalProtocolError
from protocol.requirement import Requirement, parse_clause
from protocol.task import Measure, Model, Task, Timeouts
from scheduler.book import Book
from tests.simulation.history import Breach, Event, History, Kind, Limits
from tests.simulation.invariants import FINAL, check
from tests.simulation.kernel import Kernel
from tests.simulation.shelf import Folder, Shelf
from tests.simulation.sim_scheduler import SimScheduler
from tests.simulation.sim_worker import Runs, SimWorker
from tests.simulation.wire import Air, Weather

UNIT: Final = "CPU (ONNX)"
FAULTS_S: Final = 60.0
"""Faults come up to this instant."""
PATIENCE_S: Final = 900.0
"""After them everything has to end in this time."""
AFTERWARDS_S: Final = 40.0
"""From the last end of a task, and the last pause, to the look at what is left: a run that its scheduler gave up while its worker stood
still goes on to its own end, as nobody needs the device."""
GIB: Final = 1024**3


@dataclass(frozen=True)
class Mutant:
    """A known mistake, built in on purpose: the campaign of runs must find it."""

    name: str = ""
    make_ledger: Callable[..., Ledger] = Ledger
    make_book: Callable[[random.Random], Book] = Book
    shelf: type[Shelf] = Shelf
    switches: frozenset[str] = frozenset()
    """Mistakes in the shells."""
    faults: tuple[int, int] = (8, 16)
    """From, to: how many come in a run."""
    shows: int = 0
    """A seed at which it showed: where to look first."""


FAITHFUL: Final = Mutant(faults=(0, 9))


@dataclass
class Outcome:
    """What became of one run."""

    seed: int
    history: History
    breaches: list[Breach]
    faults: Counter[str]
    seconds: float
    """Of virtual time."""
    wasted: int = 0
    """Runs that began and whose result was not recorded."""
    began: int = 0
    error: str = ""
    """A rule of the book, the ledger or the store that was broken on the way."""


def peer_name(name: str) -> str:
    """A peer id that is easy to read."""
    return name.rjust(32, "x")


@dataclass
class World:
    """One run under way."""

    seed: int
    mutant: Mutant
    kernel: Kernel = field(default_factory=Kernel)
    history: History = field(default_factory=History)
    faults: Counter[str] = field(default_factory=Counter)
    schedulers: list[SimScheduler] = field(default_factory=list)
    workers: list[SimWorker] = field(default_factory=list)
    revoked: set[tuple[str, str]] = field(default_factory=set)
    gone: list[SimWorker] = field(default_factory=list)
    """Those that never come back."""
    coming: int = 0
    """Campaigns, all together."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.air = Air(random.Random(self.rng.random()))
        self.history.limits = Limits(end_s=PATIENCE_S, slack_s=0.3)
        broken: set[str] = set()
        for n in range(self.rng.choice((3, 3, 3, 2, 1))):
            self._add_worker(n, broken)
        left = 8
        for n in range(2):
            left = self._add_scheduler(n, left, broken)
        for worker in self.workers:
            worker.broken = frozenset(broken)
        self._permit_all()

    # -- who is there ---------------------------------------------------------------------------------------------------------

    def _add_worker(self, n: int, broken: set[str]) -> None:
        rng, name = self.rng, peer_name(f"w{n + 1}")
        slots = rng.choice((1, 1, 1, 2))
        slow = rng.random() < 0.2
        runs = Runs(
            seconds=(5.0, 40.0) if slow else (0.2, rng.choice((1.0, 6.0, 15.0))),
            crashes=rng.choice((0.0, 0.0, 0.1, 0.5)),
            lies=rng.random() < 0.05,
        )
        worker = SimWorker(
            self.kernel,
            self.air,
            name,
            random.Random(rng.random()),
            self.tell,
            runs=runs,
            slots=slots,
            may=lambda worker, peer: (worker, peer) not in self.revoked,
            make_ledger=self.mutant.make_ledger,
            mutant=self.mutant.switches,
        )
        self.history.slots[name] = slots
        self.workers.append(worker)

    def _add_scheduler(self, n: int, left: int, broken: set[str]) -> int:
        rng, name = self.rng, peer_name(f"s{n + 1}")
        scheduler = SimScheduler(
            self.kernel,
            self.air,
            name,
            random.Random(rng.random()),
            self.tell,
            shelf=self.mutant.shelf(name, self.tell),
            adverts=self._adverts,
            broke=self._disk_broke,
            make_book=self.mutant.make_book,
            mutant=self.mutant.switches,
        )
        self.schedulers.append(scheduler)
        for number in range(rng.choice((1, 1, 2))):
            count = rng.randint(1, min(5, left)) if left else 0
            if count:
                left -= count
                self.coming += 1
                campaign = f"c-{n + 1}{'ab'[number]}"
                tasks = [self._task(name, campaign, k) for k in range(1, count + 1)]
                broken |= {task.task for task in tasks if rng.random() < 0.07}
                submit = partial(self._submit, scheduler, campaign, tasks, rng.choice((50, 50, 50, 70, 20)))
                self.kernel.at(rng.uniform(0.0, 20.0), submit)
        return left

    def _task(self, scheduler: str, campaign: str, n: int) -> Task:
        model = f"{self.rng.getrandbits(64):064x}"
        clauses = (parse_clause(f"units has {UNIT}"),)
        return Task(
            campaign=campaign,
            task=f"{campaign}/{n}",
            scheduler=scheduler,
            model=Model(name="m.onnx", sha256=model, size=1000),
            unit=UNIT,
            requirement=Requirement(clauses=clauses),
            measure=Measure(runs=1, loads=1),
            timeouts=Timeouts(queue_s=300.0, fetch_s=20.0, load_s=10.0, run_s=60.0),
        )

    def _submit(self, scheduler: SimScheduler, campaign: str, tasks: list[Task], priority: int) -> None:
        history = self.history
        for task in tasks:
            history.tasks[task.task] = campaign
            history.models[task.task] = task.model.sha256
        attempts = self.rng.choice((2, 3, 3, 5))
        history.attempts[campaign] = attempts
        folder = Folder(campaign, attempts=attempts, backoff_s=2.0, wait_s=120.0, priority=priority)
        scheduler.shelf.create(folder, tasks)

    def _adverts(self) -> list[Advert]:
        """The index: it also has some that have just gone, and not yet some that have just come."""
        return [
            Advert.model_construct(
                v=1,
                peer=worker.name,
                seq=worker.incarnation,
                device=f"d-{worker.name[-2:]}",
                name=worker.name[-2:],
                units=(UnitOffer.model_construct(unit=UNIT, runtime="r"),),
                ram=8 * GIB,
            )
            for worker in self.workers
            if worker.incarnation and (worker.process.alive or self.rng.random() < 0.5)
        ]

    def _permit_all(self) -> None:
        for worker in self.workers:
            for scheduler in self.schedulers:
                self.tell(Kind.PERMITTED, worker=worker.name, peer=scheduler.name, word="*")

    def _all(self) -> list[SimWorker | SimScheduler]:
        return [*self.workers, *self.schedulers]

    def tell(self, kind: Kind, **what: object) -> None:
        """For the history."""
        self.history.events.append(Event(self.kernel.now, kind, **what))  # type: ignore[arg-type]

    # -- what goes wrong ------------------------------------------------------------------------------------------------------

    def plan_faults(self) -> None:
        """Draw them all."""
        rng = self.rng
        self.air.weather = Weather(
            drop=rng.choice((0.0, 0.0, 0.02, 0.1)),
            twice=rng.choice((0.0, 0.02, 0.2)),
            slow=rng.choice((0.0, 0.02, 0.1)),
            latency_s=rng.choice((0.002, 0.02, 0.3)),
        )
        kinds = (
            (self.crash_worker, 3),
            (self.crash_scheduler, 3),
            (self.pause, 2),
            (self.cut, 3),
            (self.fill_worker, 1),
            (self.fill_scheduler, 1),
            (self.cancel, 2),
            (self.revoke, 1),
            (self.drop_links, 1),
            (self.lose_worker, 1),
        )
        drawn = rng.choices(
            [kind for kind, _ in kinds], [weight for _, weight in kinds], k=rng.randint(*self.mutant.faults)
        )
        for kind in drawn:
            self.kernel.at(rng.uniform(1.0, FAULTS_S), kind)

    def _injected(self, name: str) -> None:
        self.faults[name] += 1

    def crash_worker(self) -> None:
        """One is killed, or its machine loses power; it comes back."""
        worker = self.rng.choice(self.workers)
        if worker.process.alive:
            silent = self.rng.random() < 0.3
            self._injected("worker killed" if not silent else "worker lost power")
            worker.crash(silent=silent)
            self.kernel.after(self.rng.choice((0.5, 3.0, 20.0)), partial(self._start_worker, worker))

    def lose_worker(self) -> None:
        """One goes and never comes back."""
        worker = self.rng.choice(self.workers)
        if worker.process.alive and sum(one not in self.gone for one in self.workers) > 1:
            self._injected("worker gone for good")
            self.gone.append(worker)
            worker.crash(silent=True)

    def _start_worker(self, worker: SimWorker) -> None:
        if not worker.process.alive and worker not in self.gone:
            worker.start()

    def crash_scheduler(self) -> None:
        """One is killed; it comes back."""
        scheduler = self.rng.choice(self.schedulers)
        if scheduler.process.alive:
            self._injected("scheduler killed")
            scheduler.crash()
            self.kernel.after(
                self.rng.choice((0.1, 2.0, 10.0, 25.0)), partial(self._start_scheduler, scheduler)
            )

    def _start_scheduler(self, scheduler: SimScheduler) -> None:
        if not scheduler.process.alive and not scheduler.shelf.full:
            scheduler.start()

    def _disk_broke(self, scheduler: SimScheduler) -> None:
        self.kernel.after(0.0, scheduler.crash)

    def pause(self) -> None:
        """A process stands still for a while."""
        who = self.rng.choice(self._all())
        self._injected("paused")
        seconds = self.rng.choice((1.0, 5.0, 20.0, 40.0))
        who.process.pause(seconds)
        self.tell(Kind.PAUSED, worker=who.name, number=1)
        self.kernel.after(seconds, partial(self.tell, Kind.PAUSED, worker=who.name, number=0))

    def cut(self) -> None:
        """Nothing passes between two, or in one direction, or between one worker and all, for a while."""
        worker, scheduler = self.rng.choice(self.workers), self.rng.choice(self.schedulers)
        both = {(worker.name, scheduler.name), (scheduler.name, worker.name)}
        if self.rng.random() < 0.3:
            both.pop() if self.seed % 2 else both.discard((scheduler.name, worker.name))
        self._injected("cut" if len(both) == 2 else "cut one way")
        if self.rng.random() < 0.3:  # the worker from everybody
            both |= {(worker.name, other.name) for other in self.schedulers}
            both |= {(other.name, worker.name) for other in self.schedulers}
        self.air.cuts |= both
        self.kernel.after(self.rng.choice((1.0, 6.0, 14.0, 30.0)), partial(self._heal, both))

    def _heal(self, pairs: set[tuple[str, str]]) -> None:
        self.air.cuts -= pairs

    def fill_worker(self) -> None:
        """A worker's disk is full for a while."""
        worker = self.rng.choice(self.workers)
        self._injected("worker's disk full")
        worker.disk_full = True
        self.kernel.after(self.rng.uniform(1.0, 20.0), partial(setattr, worker, "disk_full", False))

    def fill_scheduler(self) -> None:
        """A scheduler's disk is full for a while: it ends, and comes back."""
        scheduler = self.rng.choice(self.schedulers)
        self._injected("scheduler's disk full")
        scheduler.shelf.full = True
        self.kernel.after(self.rng.uniform(1.0, 15.0), partial(self._free_scheduler, scheduler))

    def _free_scheduler(self, scheduler: SimScheduler) -> None:
        scheduler.shelf.full = False
        self._start_scheduler(scheduler)

    def cancel(self) -> None:
        """A person cancels a campaign, or one task."""
        scheduler = self.rng.choice(self.schedulers)
        folders = scheduler.shelf.unfinished()
        if folders:
            self._injected("cancelled")
            tasks = self.rng.choice(folders).tasks
            chosen = tasks if self.rng.random() < 0.4 else [self.rng.choice(tasks)]
            scheduler.shelf.request_cancel(chosen)
            for task in chosen:
                self.tell(Kind.CANCEL_ASKED, task=task)

    def revoke(self) -> None:
        """A worker's owner takes a permission back, and gives it again later."""
        worker, scheduler = self.rng.choice(self.workers), self.rng.choice(self.schedulers)
        pair = (worker.name, scheduler.name)
        if pair not in self.revoked:
            self._injected("permission taken")
            self.revoked.add(pair)
            self.tell(Kind.REVOKED, worker=worker.name, peer=scheduler.name)
            if worker.process.alive:
                worker.evict(scheduler.name)
            self.kernel.after(self.rng.uniform(2.0, 30.0), partial(self._permit, pair))

    def _permit(self, pair: tuple[str, str]) -> None:
        if pair in self.revoked:
            self.revoked.discard(pair)
            self.tell(Kind.PERMITTED, worker=pair[0], peer=pair[1], word="*")
            for worker in self.workers:
                if worker.name == pair[0]:
                    worker.presented()

    def drop_links(self) -> None:
        """All links of a scheduler break."""
        scheduler = self.rng.choice(self.schedulers)
        self._injected("links broken")
        for end in tuple(scheduler.station.ends):
            end.drop()

    def _calm(self) -> None:
        """Nothing goes wrong from now on; who is down comes up."""
        self.air.weather = Weather(latency_s=self.air.weather.latency_s)
        self.air.cuts.clear()
        for pair in sorted(self.revoked):
            self._permit(pair)
        for worker in self.workers:
            worker.disk_full = False
            worker.runs.crashes = 0.0
            self._start_worker(worker)
        for scheduler in self.schedulers:
            self._free_scheduler(scheduler)
        self.tell(Kind.QUIET)

    # -- from beginning to end ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All of it."""
        self.begin()
        self.plan_faults()
        self.kernel.run(FAULTS_S + 1.0, lambda: False)
        self.wind_down()

    def begin(self) -> None:
        """Everybody comes up within two seconds."""
        for worker in self.workers:
            self.kernel.at(self.rng.uniform(0.0, 2.0), partial(self._start_worker, worker))
        for scheduler in self.schedulers:
            self.kernel.at(self.rng.uniform(0.0, 2.0), partial(self._start_scheduler, scheduler))

    def wind_down(self) -> None:
        """Nothing goes wrong any more, and everything has to end."""
        self._calm()
        self.kernel.run(self.kernel.now + PATIENCE_S, self._over)
        if self._over():
            awake = max(one.process.paused_until for one in self._all())
            self.kernel.run(max(self.kernel.now, awake) + AFTERWARDS_S, lambda: False)
        self._look()

    def _over(self) -> bool:
        came = sum(len(scheduler.shelf.campaigns) for scheduler in self.schedulers)
        return came == self.coming and not any(s.shelf.unfinished() for s in self.schedulers)

    def _look(self) -> None:
        """What is left, and how everybody says that it stands."""
        history, tell = self.history, self.tell
        history.final, stored = {}, set()
        for scheduler in self.schedulers:
            shelf = scheduler.shelf
            history.final |= {row.id: str(row.state) for row in shelf.tasks.values()}
            stored |= {one.sha256 for one in shelf.attempts.values() if one.sha256}
            for task, state in history.final.items():
                if task in shelf.tasks:
                    tell(Kind.VIEW, who=shelf.owner, task=task, word=state)
                entry = scheduler.book.entries.get(task)
                if entry is not None:
                    tell(Kind.VIEW, who=f"{shelf.owner}'s book", task=task, word=str(entry.state))
        history.stored = frozenset(stored)
        done = all(state in FINAL for state in history.final.values())
        for worker in self.workers:
            if done and worker.process.alive:
                tell(Kind.RESERVED, worker=worker.name, number=worker.held())

    def close(self) -> None:
        """Let go of what is under way."""
        for one in self._all():
            one.process.kill()


def run(seed: int, mutant: Mutant = FAITHFUL) -> Outcome:
    """One run. The same seed makes the same history, to the last event."""
    world = World(seed, mutant)
    error = ""
    try:
        world.run()
    except (AssertionError, LocalProtocolError, KeyError) as exc:
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

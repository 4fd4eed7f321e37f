"""The faults of the model. Each is a method that draws its target. Part of `model.World`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from protocol.messages.permission import CallPermission
from tests.simulation.history import Kind
from tests.simulation.kernel import Kernel
from tests.simulation.sim_adopter import SimAdopter
from tests.simulation.sim_scheduler import SimScheduler
from tests.simulation.sim_worker import SimWorker
from tests.simulation.wire import Air, Weather

if TYPE_CHECKING:
    from tests.simulation.model import Mutant

FAULTS_S: Final = 60.0
"""Faults begin up to this instant."""
MOST_SCHEDULERS: Final = 4
"""The two original schedulers, and adopters."""

FAULTS: Final = {
    "crash_worker": 3,
    "crash_scheduler": 3,
    "pause": 2,
    "cut": 3,
    "fill_worker": 1,
    "fill_scheduler": 1,
    "cancel": 2,
    "revoke": 1,
    "drop_links": 1,
    "lose_worker": 1,
    "adopt": 2,
}
"""Methods of `Faults`, one for each kind of fault, and how often each is drawn."""


class Faults:
    """Part of `model.World`."""

    seed: int
    mutant: Mutant
    kernel: Kernel
    air: Air
    rng: random.Random
    faults: Counter[str]
    schedulers: list[SimScheduler]
    workers: list[SimWorker]
    quiet: bool
    home: dict[str, SimScheduler]
    principals: dict[str, str]
    revoked: set[tuple[str, str]]
    gone: list[SimWorker]
    tell: Callable[..., None]
    tell_permitted: Callable[[str, str], None]
    permit: Callable[[str, str], CallPermission | None]
    given: Callable[[str], Any]
    named: Callable[[str], Any]
    _all: Callable[[], list[SimWorker | SimScheduler]]

    # -- the faults -----------------------------------------------------------------------------------------------------------

    def plan_faults(self) -> None:
        """Draw all faults of the run."""
        rng = self.rng
        self.air.weather = Weather(
            drop=rng.choice((0.0, 0.0, 0.02, 0.1)),
            twice=rng.choice((0.0, 0.02, 0.2)),
            slow=rng.choice((0.0, 0.02, 0.1)),
            latency_s=rng.choice((0.002, 0.02, 0.3)),
        )
        weights = {name: weight for name, weight in FAULTS.items() if name in (self.mutant.only or FAULTS)}
        drawn = rng.choices([*weights], [*weights.values()], k=rng.randint(*self.mutant.faults))
        for kind in drawn:
            self.kernel.at(rng.uniform(1.0, FAULTS_S), getattr(self, kind))

    def _injected(self, name: str, *whom: str) -> None:
        self.faults[name] += 1
        for one in whom:
            self.tell(Kind.TROUBLE, worker=one)

    def crash_worker(self) -> None:
        """A worker is killed, or its machine loses power; it comes back."""
        worker = self.rng.choice(self.workers)
        if worker.process.alive:
            silent = self.rng.random() < 0.3
            self._injected("worker killed" if not silent else "worker lost power", worker.name)
            worker.crash(silent=silent)
            self.kernel.after(self.rng.choice((0.5, 3.0, 20.0)), partial(self._start_worker, worker))

    def lose_worker(self) -> None:
        """A worker goes and never comes back."""
        worker = self.rng.choice(self.workers)
        if worker.process.alive and sum(one not in self.gone for one in self.workers) > 1:
            self._injected("worker gone for good", worker.name)
            self.gone.append(worker)
            worker.crash(silent=True)

    def _start_worker(self, worker: SimWorker) -> None:
        if not worker.process.alive and worker not in self.gone:
            worker.start()

    def crash_scheduler(self) -> None:
        """A scheduler is killed; it comes back."""
        scheduler = self.rng.choice(self.schedulers)
        self._kill(scheduler, self.rng.choice((0.1, 2.0, 10.0, 25.0)))

    def _kill(self, scheduler: SimScheduler, seconds: float) -> None:
        if scheduler.process.alive:
            self._injected("scheduler killed", scheduler.name)
            scheduler.crash()
            self.kernel.after(seconds, partial(self._start_scheduler, scheduler))

    def _start_scheduler(self, scheduler: SimScheduler) -> None:
        if not scheduler.process.alive and not scheduler.store.full:
            scheduler.start()

    def _disk_broke(self, scheduler: SimScheduler) -> None:
        scheduler.crash()  # at once: whatever would continue at this very instant is cancelled before it can send anything

    def pause(self) -> None:
        """A process is paused for a while."""
        who = self.rng.choice(self._all())
        self._pause(who, self.rng.choice((1.0, 5.0, 20.0, 40.0)))

    def _pause(self, who: SimWorker | SimScheduler, seconds: float) -> None:
        self._injected("paused", who.name)
        who.process.pause(seconds)
        self.tell(Kind.PAUSED, worker=who.name, number=1)
        self.kernel.after(seconds, partial(self.tell, Kind.PAUSED, worker=who.name, number=0))

    def cut(self) -> None:
        """Messages between two processes, in one direction, or between one worker and everybody are lost for a while."""
        worker, scheduler = self.rng.choice(self.workers), self.rng.choice(self.schedulers)
        ways = [(worker.name, scheduler.name), (scheduler.name, worker.name)]
        both = set(ways)
        if self.rng.random() < 0.3:
            both = {ways[self.seed % 2]}
        self._injected("cut" if len(both) == 2 else "cut one way", worker.name)
        if self.rng.random() < 0.3:  # the worker from all schedulers
            both |= {(worker.name, other.name) for other in self.schedulers}
            both |= {(other.name, worker.name) for other in self.schedulers}
        self.air.cuts |= both
        self.kernel.after(self.rng.choice((1.0, 6.0, 14.0, 30.0)), partial(self._heal, both))

    def _heal(self, pairs: set[tuple[str, str]]) -> None:
        self.air.cuts -= pairs
        for name in sorted({name for pair in pairs for name in pair}):
            self.tell(Kind.TROUBLE, worker=name)

    def fill_worker(self) -> None:
        """A worker's disk is full for a while."""
        worker = self.rng.choice(self.workers)
        self._injected("worker's disk full", worker.name)
        worker.disk.full = True
        self.kernel.after(self.rng.uniform(1.0, 20.0), partial(setattr, worker.disk, "full", False))

    def fill_scheduler(self) -> None:
        """A scheduler's disk is full for a while: the process ends, and comes back."""
        scheduler = self.rng.choice(self.schedulers)
        self._injected("scheduler's disk full", scheduler.name)
        scheduler.store.full = True
        self.kernel.after(self.rng.uniform(1.0, 15.0), partial(self._free_scheduler, scheduler))

    def _free_scheduler(self, scheduler: SimScheduler) -> None:
        scheduler.store.full = False
        self._start_scheduler(scheduler)

    def cancel(self) -> None:
        """A user cancels a campaign, or one task."""
        scheduler = self.rng.choice(self.schedulers)
        folders = scheduler.store.unfinished()
        if folders:
            self._injected("cancelled")
            tasks = self.rng.choice(folders).tasks
            chosen = tasks if self.rng.random() < 0.4 else [self.rng.choice(tasks)]
            scheduler.store.request_cancel(chosen)
            for task in chosen:
                self.tell(Kind.CANCEL_ASKED, task=task)

    def revoke(self) -> None:
        """A worker's owner revokes a permission, and grants it again later."""
        worker, scheduler = self.rng.choice(self.workers), self.rng.choice(self.schedulers)
        pair = (worker.name, scheduler.peer)
        if pair not in self.revoked:
            self._injected("permission taken", worker.name)
            for peer in self._acting(scheduler.peer):
                if self.permit(worker.name, peer) is not None:
                    self.tell(Kind.REVOKED, worker=worker.name, peer=peer)
            self.revoked.add(pair)
            if worker.process.alive:
                worker.evict(scheduler.peer)
            self.kernel.after(self.rng.uniform(2.0, 30.0), partial(self._permit, pair))

    def _acting(self, principal: str) -> list[str]:
        """A principal, and the peers that act for it."""
        return [principal, *(peer for peer, other in self.principals.items() if other == principal)]

    def _permit(self, pair: tuple[str, str]) -> None:
        if pair in self.revoked:
            self.revoked.discard(pair)
            self.tell(Kind.TROUBLE, worker=pair[0])
            for peer in self._acting(pair[1]):
                if self.permit(pair[0], peer) is not None:
                    self.tell_permitted(pair[0], peer)
            for worker in self.workers:
                if worker.name == pair[0]:
                    worker.presented()

    def adopt(self) -> None:
        """Another machine adopts a campaign; the former scheduler lives, is paused, or was killed and comes back."""
        rng = self.rng
        begun = [
            folder
            for s in self.schedulers
            for folder in s.store.unfinished()
            if folder.epoch and self.home[folder.id] is s
        ]
        busy = {s.manifest.id for s in self.schedulers if isinstance(s, SimAdopter) and s.adopting}
        begun = [folder for folder in begun if folder.id not in busy]  # one adopter at a time
        if not begun or len(self.schedulers) >= MOST_SCHEDULERS:
            return
        manifest = rng.choice(begun)
        old = self.home[manifest.id]
        principal = self.principals.get(old.peer, old.peer)
        name = old.name[:-2] + f"s{len(self.schedulers) + 1}"
        copied = rng.random() < 0.5
        adopter = SimAdopter(
            *self.given(name),
            **self.named(name),
            peer=principal if copied else name,
            manifest=manifest,
            bodies={task: old.store.tasks[task].body for task in manifest.tasks},
            taken=self._taken,
            linked=rng.random() < 0.3,
            honest=lambda name: not any(worker.runs.lies for worker in self.workers if worker.name == name),
        )
        self.schedulers.append(adopter)
        if not copied:
            self.principals[name] = principal
            for worker in self.workers:
                if self.permit(worker.name, name) is not None:
                    self.tell_permitted(worker.name, name)
        match rng.choice(("lives", "stands", "dead")):
            case "stands":
                self._pause(old, rng.choice((5.0, 20.0, 40.0)))
            case "dead":
                self._kill(old, rng.choice((2.0, 10.0, 60.0)))
            case _:
                pass
        self._injected("adopted with a copied key" if copied else "adopted by a delegate")
        adopter.start()

    def _taken(self, adopter: SimAdopter) -> None:
        self.home[adopter.manifest.id] = adopter

    def drop_links(self) -> None:
        """All links of a scheduler break."""
        scheduler = self.rng.choice(self.schedulers)
        self._injected("links broken", scheduler.name)
        for end in tuple(scheduler.station.ends):
            end.drop()

    def _calm(self) -> None:
        """Stop all faults and bring every process up."""
        self.quiet = True
        self.air.weather = Weather(latency_s=self.air.weather.latency_s)
        self.air.cuts.clear()
        for pair in sorted(self.revoked):
            self._permit(pair)
        for worker in self.workers:
            worker.disk.full = False
            worker.runs.crashes = 0.0
            self.kernel.after(self.mutant.holds_on_s, partial(setattr, worker.runs, "holds", 0.0))
            self._start_worker(worker)
        for scheduler in self.schedulers:
            self._free_scheduler(scheduler)
        self.tell(Kind.QUIET)

"""The rare faults: partitions, clocks that jump, gates that are gone, machines that are set back or copied."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

from protocol.values.attempt import TASK
from protocol.values.lease import LeaseState
from protocol.wire.table import final
from scheduler.store.rows import CampaignStatus
from tests.simulation.faults import FAULTS_S, MOST_SCHEDULERS, Faults
from tests.simulation.history import Kind
from tests.simulation.sim_adopter import SimAdopter
from tests.simulation.sim_scheduler import SimScheduler
from tests.simulation.sim_store import StoreImage
from tests.simulation.sim_worker import BEGAN_AT, SimWorker, WorkerImage

HOUR_S: Final = 3600.0
CLOCKS_OFF_S: Final = (-HOUR_S, HOUR_S, 2 * 24 * HOUR_S, 400 * 24 * HOUR_S, -BEGAN_AT)
"""The last offset leads to 1970."""


UNHEARD_S: Final = 20.0
"""Longer than a scheduler waits before it gives a silent worker up."""
LINGERS_S: Final = 75.0

DISASTERS: Final = (
    "split",
    "set_clock",
    "lose_gates",
    "put_worker_back",
    "put_scheduler_back",
    "copy_home",
    "cancel_unheard",
)
"""Methods of `Disasters`, one for each kind."""


class Disasters(Faults):
    """Part of `model.World`."""

    gates_down: int

    def plan_disasters(self) -> None:
        """Draw all disasters of the run."""
        rng = random.Random(
            f"{self.seed} disasters"
        )  # a separate source, so that all other draws stay the same
        kinds = [name for name in DISASTERS if name in (self.mutant.only or DISASTERS)]
        for kind in rng.choices(kinds, k=rng.randint(*self.mutant.disasters)):
            self.kernel.at(rng.uniform(1.0, FAULTS_S), getattr(self, kind))

    def split(self) -> None:
        """The network falls into two parts for a while."""
        names = sorted(one.name for one in self._all())
        side = set(self.rng.sample(names, self.rng.randint(1, len(names) - 1)))
        pairs = {(one, other) for one in names for other in names if (one in side) is not (other in side)}
        self._injected("partition", *(one.name for one in self.workers))
        self.air.cuts |= pairs
        self.kernel.after(self.rng.choice((3.0, 10.0, 25.0)), partial(self._heal, pairs))

    def set_clock(self) -> None:
        """A worker's wall clock jumps, and is set right later."""
        worker = self.rng.choice(self.workers)
        self._injected("wall clock jumped")
        worker.clock_off_s = self.rng.choice(CLOCKS_OFF_S)
        self.kernel.after(self.rng.uniform(1.0, 60.0), partial(setattr, worker, "clock_off_s", 0.0))

    def lose_gates(self) -> None:
        """No device can be found for a while. Existing links stay up."""
        self._injected("no gate")
        self.gates_down += 1
        self.kernel.after(self.rng.choice((2.0, 10.0, 30.0)), self._gates_back)

    def _gates_back(self) -> None:
        self.gates_down -= 1

    def put_worker_back(self) -> None:
        """A worker's machine is set back to a snapshot taken some seconds ago, with its disk."""
        worker = self.rng.choice(self.workers)
        if worker.incarnation:
            image = worker.image()
            self.kernel.after(
                self.rng.choice((1.0, 5.0, 20.0)), partial(self._put_worker_back, worker, image)
            )

    def _put_worker_back(self, worker: SimWorker, image: WorkerImage) -> None:
        if worker not in self.gone and worker.process.alive and not self.quiet:
            self._injected("worker put back", worker.name)
            worker.roll_back(image)
            for scheduler in self.schedulers:
                scheduler.store.put_back(worker.name)
            self.kernel.after(self.rng.choice((0.5, 3.0, 20.0)), partial(self._start_worker, worker))

    def put_scheduler_back(self) -> None:
        """A home is restored from a backup taken some seconds ago, unless a campaign was submitted since: no campaign may be lost here."""
        scheduler = self.rng.choice(self.schedulers)
        if not scheduler.store.full:
            image = scheduler.store.image()
            after = partial(self._put_scheduler_back, scheduler, image)
            self.kernel.after(self.rng.choice((1.0, 5.0, 20.0)), after)

    def _put_scheduler_back(self, scheduler: SimScheduler, image: StoreImage) -> None:
        if scheduler.process.alive and set(image[1]) == set(scheduler.store.campaigns) and not self.quiet:
            self._injected("home restored", scheduler.name)
            scheduler.roll_back(image)
            self.kernel.after(self.rng.choice((0.1, 2.0, 10.0)), partial(self._start_scheduler, scheduler))

    def copy_home(self) -> None:
        """A copy of a home, with its key, runs elsewhere. The original home lives, is paused or is down meanwhile."""
        rng, old = self.rng, self.rng.choice(self.schedulers)
        adopting = isinstance(old, SimAdopter) and old.adopting
        if len(self.schedulers) >= MOST_SCHEDULERS or not old.store.unfinished() or adopting:
            return
        name = old.name[:-2] + f"s{len(self.schedulers) + 1}"
        copy = SimScheduler(*self.given(name), **self.named(name), peer=old.peer)
        copy.store.become(old.store.image())
        copy.store.tell_all()
        old.has_copy = copy.has_copy = True
        self.schedulers.append(copy)
        match rng.choice(("lives", "stands", "dead")):
            case "stands":
                self._pause(old, rng.choice((5.0, 20.0, 40.0)))
            case "dead":
                self._kill(old, rng.choice((2.0, 10.0, 60.0)))
            case _:
                pass
        self._injected("home copied")
        copy.start()

    def cancel_unheard(self) -> None:
        """A user cancels a long run whose scheduler cannot reach the worker. The scheduler may be killed before it can."""
        rng = self.rng
        running = [
            (worker, place)
            for worker in self.workers
            if worker.process.alive and not worker.runs.lies
            for place in worker.ledger.allocations()
            if place.state is LeaseState.RUNNING and place.request.task.campaign in self.home
        ]
        if not running or self.kernel.now > FAULTS_S / 2:
            return
        worker, place = rng.choice(running)
        task = place.request.task
        scheduler = self.home[task.campaign]
        row = scheduler.store.tasks[task.task]
        if not scheduler.process.alive or row.worker != worker.name or row.cancel or final(TASK, row.state):
            return
        self._injected("cancelled unheard", worker.name)
        worker.linger(place.lease, LINGERS_S)
        pairs = {(worker.name, scheduler.name), (scheduler.name, worker.name)}
        self.air.cuts |= pairs
        self.kernel.after(UNHEARD_S, partial(self._heal, pairs))
        chosen = scheduler.store.campaigns[task.campaign].tasks if rng.random() < 0.5 else [task.task]
        scheduler.store.request_cancel(chosen)
        for each in chosen:
            self.tell(Kind.CANCEL_ASKED, task=each)
        if rng.random() < 0.5:
            after_s = rng.uniform(0.6 * UNHEARD_S, UNHEARD_S)
            self.kernel.after(after_s, partial(self._kill, scheduler, rng.choice((0.1, 2.0, 10.0))))

    def leader(self, campaign: str) -> SimScheduler:
        """The scheduler that leads the campaign in the end: the one with the highest epoch among the adopters and the copies of a home.

        A scheduler that stepped down ranks behind all others, even behind one that was set back to a lower epoch since.
        """
        having = [one for one in self.schedulers if campaign in one.store.campaigns]

        def order(one: SimScheduler) -> tuple[bool, int, bool]:
            folder = one.store.campaigns[campaign]
            return folder.ended != CampaignStatus.ADOPTED, folder.epoch, one is self.home[campaign]

        return max(having, key=order)

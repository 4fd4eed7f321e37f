"""A day of devices that are away most of the time: quiet hours, pauses by their owners, reboots. Nothing else goes wrong.

    run_day(seed) -> Outcome     two homes, one to three devices, a campaign in the morning and one in the evening

The history is checked against the invariants, and three more rules apply. Nothing begins on a device while its owner's rules forbid it.
Every task has its result. The reason that a waiting task gives is true: it names each device that could run the task with what keeps the
device away, and names no device that serves.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import Final

from node.serve.owner_control import CHECK_S
from node.settings.rules import Rules, read_quiet, why_not_serving
from protocol.errors import LocalProtocolError
from protocol.values.attempt import TaskState
from protocol.values.task import Task
from tests.simulation.history import Breach, Kind
from tests.simulation.invariants import check
from tests.simulation.model import FAITHFUL, Outcome, World, peer_name
from tests.simulation.sim_scheduler import SimScheduler
from tests.simulation.sim_worker import BEGAN_AT, Runs, SimWorker

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
BEAT_S: Final = 10.0
KNOWN_S: Final = 300.0
"""How long it takes until every scheduler knows a change at a device and its waiting tasks name it."""
QUIET: Final = (
    ("22:00-07:00",),
    ("09:00-17:00",),
    ("00:00-06:00", "12:00-13:00"),
    ("20:00-09:30",),
    ("23:00-05:00",),
)
TASKS: Final = 150
"""Number of tasks in one campaign."""


class DayScheduler(SimScheduler):
    """A scheduler with rare beats, to save time."""

    async def _beat(self) -> None:
        while True:
            self.conversation.load()
            if self.store.unfinished() or not self.core.idle:
                self.conversation.beat()
            await self.process.sleep(BEAT_S)


class Owned:
    """A device with an owner: its rules, and whether it is paused."""

    def __init__(self, worker: SimWorker, quiet: tuple[str, ...]) -> None:
        self.worker = worker
        self.rules = Rules(tuple(read_quiet(text) for text in quiet))
        self.paused = False
        self.since = 0.0
        """When its state last changed."""
        self.said = "gone"

    def away(self, now: float) -> str:
        """Why the device takes no work now: `gone`, or the reason it gives itself; empty: it serves."""
        if not self.worker.process.alive:
            return "gone"
        return why_not_serving(self.rules, datetime.fromtimestamp(BEGAN_AT + now, UTC), paused=self.paused)


class Day(World):
    """One day."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wrong: list[Breach] = []
        drawn = self.rng.sample(QUIET, len(self.workers))
        self.owned = [Owned(worker, quiet) for worker, quiet in zip(self.workers, drawn, strict=True)]

    # -- participants ---------------------------------------------------------------------------------------------------------

    def _add_worker(self, n: int, broken: set[str]) -> None:
        name = peer_name(f"w{n + 1}")
        worker = SimWorker(
            self.kernel, self.air, name, random.Random(self.rng.random()), self.tell,
            runs=Runs(seconds=(60.0, 550.0), steps=4), slots=1, permit=self.permit, advert=partial(self._advert, name),
        )  # fmt: skip
        self.history.slots[name] = 1
        self.workers.append(worker)

    def _add_scheduler(self, n: int, left: int, broken: set[str]) -> int:
        name = peer_name(f"s{n + 1}")
        scheduler = DayScheduler(*self.given(name), **self.named(name))
        self.schedulers.append(scheduler)
        campaign = f"c-{n + 1}a"
        tasks = [self._long(name, campaign, number) for number in range(1, TASKS + 1)]
        self.coming += 1
        self.kernel.at(
            n * 9 * HOUR_S + self.rng.uniform(0.0, HOUR_S),
            partial(self._submit, scheduler, campaign, tasks, 50, wait_s=60.0),
        )
        return 0

    def _long(self, scheduler: str, campaign: str, n: int) -> Task:
        task = self._task(scheduler, campaign, n, f"{self.rng.getrandbits(64):064x}")
        limits = task.timeouts.model_copy(
            update={"queue_s": 12 * HOUR_S, "run_s": HOUR_S, "fetch_s": HOUR_S, "load_s": HOUR_S}
        )
        return task.model_copy(update={"timeouts": limits})

    # -- events -----------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until the campaigns have ended, two days at most."""
        self.begin()
        for owned in self.owned:
            self.kernel.at(3.0, partial(self._keep_rules, owned))
            for _ in range(self.rng.randint(1, 4)):
                self.kernel.at(self.rng.uniform(0.0, DAY_S), partial(self._reboot, owned))
            for _ in range(self.rng.randint(0, 2)):
                self.kernel.at(self.rng.uniform(0.0, DAY_S), partial(self._pause_by_owner, owned))
        self.kernel.at(KNOWN_S, self._look_at_reasons)
        self.kernel.run(2 * DAY_S, self._over)
        self._look()

    def _keep_rules(self, owned: Owned) -> None:
        """Apply the rules, as `OwnerControl` does."""
        self._see(owned)
        self.kernel.after(CHECK_S, partial(self._keep_rules, owned))

    def _see(self, owned: Owned) -> None:
        away = owned.away(self.kernel.now)
        if away != owned.said:
            owned.said, owned.since = away, self.kernel.now
            self.faults[away.split(" until")[0] or "serves"] += 1
        if owned.worker.process.alive:
            owned.worker.hold(away)

    def _reboot(self, owned: Owned) -> None:
        """The device loses power and comes back after a while. The owner's rules hold from its first moment."""
        if owned.worker.process.alive:
            self._injected("rebooted", owned.worker.name)
            owned.worker.crash(silent=self.rng.random() < 0.5)
            self.kernel.after(self.rng.choice((40.0, 200.0, 1800.0, 3 * HOUR_S)), partial(self._boot, owned))

    def _boot(self, owned: Owned) -> None:
        self._start_worker(owned.worker)
        self._see(owned)

    def _pause_by_owner(self, owned: Owned) -> None:
        owned.paused = True
        self.kernel.after(
            self.rng.choice((120.0, HOUR_S, 5 * HOUR_S)), partial(setattr, owned, "paused", False)
        )

    # -- checks -------------------------------------------------------------------------------------------------------------------

    def tell(self, kind: Kind, **what: object) -> None:
        """Add an event to the history. Nothing may begin where the owner's rules forbid it."""
        super().tell(kind, **what)
        if kind in (Kind.TAKEN, Kind.BEGAN):
            (owned,) = [owned for owned in self.owned if owned.worker.name == what["worker"]]
            if owned.said and self.kernel.now - owned.since > CHECK_S:
                self._breach(
                    "nothing_begins_when_held", f"{what['task']}: {kind} on {what['worker']}: {owned.said}"
                )

    def _look_at_reasons(self) -> None:
        """Compare the reasons that waiting tasks give with the state of their devices, unless that state changed just now."""
        now = self.kernel.now
        self.kernel.after(KNOWN_S, self._look_at_reasons)
        for scheduler in self.schedulers:
            for group in scheduler.core.state.groups.values():
                if group.pending:
                    for owned in self.owned:
                        self._look_at_reason(owned, group.wait_reason, now)

    def _look_at_reason(self, owned: Owned, words: str, now: float) -> None:
        if now - owned.since < KNOWN_S:
            return
        name, everybody = (
            owned.worker.name[-2:],
            all(one.said and now - one.since > KNOWN_S for one in self.owned),
        )
        if owned.said == "gone":
            true = not everybody or f"{name} is gone" in words or (name in words and "are gone" in words)
        elif owned.said:
            true = not everybody or f"{name}: {owned.said}" in words
        else:
            true = name not in words
        if not true:
            self._breach(
                "reasons_are_true",
                f"{name} is {owned.said or 'serving'}, and the tasks wait because: {words or 'nothing'}",
            )

    def _breach(self, name: str, what: str) -> None:
        self.wrong.append(Breach(name, what, self.kernel.now))


def run_day(seed: int) -> Outcome:
    """One day. The same seed makes the same history."""
    world, error = Day(seed, FAITHFUL), ""
    try:
        world.run()
    except (AssertionError, LocalProtocolError, KeyError, ValueError) as exc:
        error = f"{type(exc).__name__}: {exc}"
    breaches = [*world.wrong, *check(world.history)]
    world.close()
    if error:
        breaches.insert(0, Breach("no_rule_is_broken", error, world.kernel.now))
    final = world.history.final or {}
    breaches += [
        Breach("everything_is_measured", f"{task} is {state}")
        for task, state in final.items()
        if state != "succeeded"
    ]
    recorded = sum(1 for event in world.history.of(Kind.RECORDED) if event.word == TaskState.SUCCEEDED)
    began = sum(1 for _ in world.history.of(Kind.BEGAN))
    return Outcome(
        seed,
        world.history,
        breaches,
        Counter(world.faults),
        world.kernel.now,
        wasted=began - recorded,
        began=began,
        error=error,
    )

"""Experiments: saving versions, setting schedules, beginning runs by hand and when due, judging, accepting and removing them."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from scheduler.experiments.judge import judge_ended
from scheduler.experiments.service import begin, begin_due
from scheduler.store.store import Store, open_store
from swarm.base.home import Home
from swarm.base.units import DAY_S
from tests.durability.campaign_run import campaign_file
from tests.durability.commands import Typed, promised
from tests.durability.facts import SCHEDULER
from tests.durability.promises import EVERY, Promises


class Experimenter:
    """Ann types commands, and each day her process begins the runs that are due."""

    def __init__(self, home: Home, promises: Promises, rng: random.Random) -> None:
        self.home, self.promises, self.rng = home, promises, rng
        self.typed = Typed(home.data.parent, promises)
        self.now = time.time()

    def experiment(self, file: Path, name: str) -> None:
        self.save(file, name)
        self.typed("experiment", "schedule", name, "--every", "1d", kind="schedule", key=name, value=DAY_S)
        with open_store(self.home) as store:
            self.due(store, name)
            for day in range(3):
                self.day(store, file, name, day)
        self.promises.end(SCHEDULER, "due", name)
        self.typed("experiment", "schedule", name, "--off", kind="schedule", key=name, value=None)
        if self.rng.random() < 0.5:
            for key in [f"{name}@{number}" for number in (1, 2, 3)]:
                self.promises.end(SCHEDULER, "version", key)
            for kind in ("run", "finding", "accepted", "schedule"):  # of earlier experiments, too
                self.promises.end(SCHEDULER, kind, EVERY)
            self.typed("experiment", "remove", name, kind="experiment", key=name, value=False)

    def save(self, file: Path, name: str) -> None:
        said = json.loads(self.typed("experiment", "save", file, "--name", name, "--json"))
        with open_store(self.home) as store:
            version = store.experiments.versions(name)[-1]
        assert said["version"] == version.version
        self.promises.make(SCHEDULER, "experiment", name, True)
        self.promises.make(SCHEDULER, "version", version.title, version.digest)

    def day(self, store: Store, file: Path, name: str, day: int) -> None:
        if day == 1:
            model = file.parent / "m1.json"
            model.write_text(json.dumps({"latencies_ms": [1.0 + self.rng.random()]}), "utf-8")
            self.save(file, name)
        started = begin_due(self.home, store, now=self.now)
        if not day:
            begun = begin(self.home, store, name)
            assert begun is not None
            started.append(begun[0])
        for campaign in started:
            run = store.experiments.run(campaign)
            assert run is not None
            self.promises.make(SCHEDULER, "run", campaign, f"{run.experiment}@{run.version}")
            hashes = sorted(model.sha256 for model in store.campaigns.models(campaign))
            self.promises.make(SCHEDULER, "campaign", campaign, hashes)
        self.due(store, name)
        self.now += DAY_S
        for campaign in started:
            store.campaigns.end(campaign)
        for judged in judge_ended(store):
            self.promises.make(SCHEDULER, "finding", judged.campaign, judged.finding)
        for campaign in started[:1]:
            with promised(self.promises, "accepted", campaign, True):
                assert store.experiments.accept_run(campaign)

    def due(self, store: Store, name: str) -> None:
        """Promise that a run is not begun twice."""
        row = store.experiments.get(name)
        assert row is not None
        self.promises.make(SCHEDULER, "due", name, row.due)


def make(root: Path, elsewhere: Path, promises: Promises, tasks: int, seed: int) -> None:
    ann = Experimenter(Home.at(root / SCHEDULER), promises, random.Random(seed))
    for n in range(max(1, tasks // 4)):
        ann.experiment(campaign_file(elsewhere / f"{n}", f"number {n}", 2), f"nightly-{n}")

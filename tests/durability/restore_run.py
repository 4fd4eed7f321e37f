"""A backup is made while a campaign runs, and restored after its scheduler has died. Then the campaign continues, and others are
imported.
"""

from __future__ import annotations

from pathlib import Path

import trio

from scheduler.store.store import Store, open_store
from tests.durability.campaign_run import SPEED, Swarm
from tests.durability.commands import Typed
from tests.durability.facts import SCHEDULER, store_facts
from tests.durability.patient_clock import PatientClock
from tests.durability.promises import EVERY, Promises

STORED = ("campaign", "epoch", "cancel", "intent", "started", "result")


class Restores(Swarm):
    """Ann's home, backed up and restored by the commands she types."""

    async def serve(self, tasks: int) -> None:
        typed = Typed(self.ann.home.data.parent, self.promises)
        backup, copy = self.ann.home.data.parent / "backup.db", self.elsewhere / "copy.db"
        async with self.up():
            self.ann.submit(1, tasks // 2)
            self.nursery.start_soon(self.ann.schedule)
            await self.until(self.ann, lambda: self.ann.recorded() >= 1)
            typed("db", "backup", backup, kind="backup", key=backup.name, value=1)
            self.ann.submit(2, tasks // 2)
            await self.until(self.ann, lambda: self.ann.recorded() >= tasks // 2)
            typed("db", "export", copy)
            self.ann.kill()
            await trio.sleep(0.5)
            self.restore(typed, backup)
            self.nursery.start_soon(self.ann.schedule)
            await self.until(self.ann, self.ann.done)
            self.ann.kill()
            await trio.sleep(0.5)
            typed("db", "import", copy, "--open")
            self.hold()
            self.nursery.start_soon(self.ann.schedule)
            await self.until(self.ann, self.ann.done)

    def restore(self, typed: Typed, backup: Path) -> None:
        """Restore a backup, which gives up what came after it. Until the restore is done, the store is the old one or the new one."""
        with open_store(self.ann.home) as store, Store(backup) as source:
            states = [
                sorted(row.campaign.id for row in each.campaigns.summaries()) for each in (store, source)
            ]
        for kind in STORED:
            self.promises.end(SCHEDULER, kind, EVERY)
        self.promises.make(SCHEDULER, "contents", "", states)
        typed("db", "restore", backup, "--replace")
        self.promises.make(SCHEDULER, "contents", "", states[1:])
        self.hold()
        self.promises.end(SCHEDULER, "contents", "")

    def hold(self) -> None:
        """Promise everything that is in the store now, on behalf of the command that put it there."""
        for kind, values in store_facts(self.ann.home).items():
            for key, value in values.items() if kind in STORED else ():
                self.promises.make(SCHEDULER, kind, key, value)


def make(root: Path, elsewhere: Path, promises: Promises, tasks: int, seed: int) -> None:
    run = Restores(root, elsewhere, promises, seed)
    trio.run(run.serve, tasks, clock=PatientClock(SPEED))

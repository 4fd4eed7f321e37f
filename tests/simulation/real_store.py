"""The product's store beside the double: every write goes to both, and both have to answer alike and hold the same data.

The double tells the history what happened; a restart restores from the real store. It is SQLite, in memory while a process lives; a
restart, a backup and a copy of a home each begin with a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

from protocol.errors import LocalProtocolError
from protocol.values.task import Task, read_task
from scheduler.core.entries import TaskEntry
from scheduler.core.stops import OwedStop
from scheduler.run.restore import entries_of, owed_stops
from scheduler.store.rows import NewCampaign, WorkerTask
from scheduler.store.store import Store
from tests.simulation.sim_store import SimCampaign, SimStore, StoreImage, Tell, tasks_in

MEMORY: Final = Path("/dev/shm")
BOTH: Final = (
    "begin",
    "record_grant",
    "switch",
    "end_hedge",
    "end",
    "end_stop",
    "end_pending",
    "record_result",
    "known_result",
    "set_progress",
    "set_positions",
)
"""Methods of attempts that both stores run."""
COLUMNS: Final = ("state", "attempt", "tries", "worker", "lease", "fence", "preempted")


class RealStore(SimStore):
    """`SimStore` with `scheduler.store.store.Store` beside it."""

    def __init__(self, owner: str, tell: Tell, wall: Callable[[], float]) -> None:
        super().__init__(owner, tell, wall)
        self._folder = TemporaryDirectory(prefix="sark-sim-", dir=MEMORY if MEMORY.is_dir() else None)
        self._files = 0
        self._touched: dict[str, None] = {}
        self._open_real(None)

    def _open_real(self, source: Path | None) -> None:
        """Open a new file, with the content of `source`."""
        self._files += 1
        self.path = Path(self._folder.name) / f"{self._files}.db"
        if source is not None:
            self.path.write_bytes(source.read_bytes())
        self.real = Store(self.path, wall=self.wall)

    def _copy(self) -> Path:
        """Copy what is on disk. Another connection to the file does not see uncommitted changes."""
        target = Path(self._folder.name) / f"image-{self._files}-{self._images}.db"
        with closing(Store(self.path, wall=self.wall)) as on_disk:
            on_disk.copy_to(target)
        return target

    def close(self) -> None:
        """Close the store at the end of the run."""
        self.real.close()
        self._folder.cleanup()

    # -- like the double ----------------------------------------------------------------------------------------------------------------

    def create(self, folder: SimCampaign, tasks: Sequence[Task]) -> None:
        self.commit()
        super().create(folder, tasks)
        self.real.campaigns.create(_new(folder, tasks[0].scheduler), [], tasks)

    def take_over(
        self, folder: SimCampaign, bodies: Mapping[str, bytes], found: Mapping[str, WorkerTask], *, epoch: int
    ) -> None:
        self.commit()
        super().take_over(folder, bodies, found, epoch=epoch)
        tasks = [(read_task(body), body) for body in bodies.values()]
        new = _new(folder, tasks[0][0].scheduler)
        self.real.campaigns.take_over(new, [], tasks, found, epoch=epoch, created=0.0)
        self.compare(folder.tasks)

    def request_cancel(self, tasks: Iterable[str]) -> None:
        chosen = list(tasks)
        self.commit()
        super().request_cancel(chosen)
        for task in chosen:
            self.real.campaigns.request_cancel(task)

    def crashed(self) -> None:
        """The next process opens the file as it is now."""
        super().crashed()
        self._touched = {}
        self.real.write_through()
        self.real.close()
        self.real = Store(self.path, wall=self.wall)
        self.compare(self.tasks)

    def image(self) -> StoreImage:
        image = super().image()
        return *image[:-1], self._copy()

    def become(self, image: StoreImage) -> None:
        super().become(image)
        self.real.close()
        self._open_real(image[-1])
        self.compare(self.tasks)

    def next_epoch(self, campaign: str, *, above: int = 0, step: int = 1) -> int:
        epoch = super().next_epoch(campaign, above=above, step=step)
        _same(epoch, self.real.campaigns.next_epoch(campaign, above=above, step=step), campaign)
        return epoch

    def end_campaign(self, campaign: str, **words: Any) -> None:
        super().end_campaign(campaign, **words)
        self.real.campaigns.end(campaign, **words)

    def cancel_requests(self, campaign: str = "") -> list[str]:
        self.commit()
        requests = super().cancel_requests(campaign)
        _same(sorted(requests), sorted(self.real.tasks.cancel_requests(campaign)), "requests to cancel")
        return requests

    def owed_stops(self, now: float) -> list[OwedStop]:
        self.commit()
        ours, theirs = super().owed_stops(now), owed_stops(self.real, now, self.wall())
        by_task = attrgetter("task", "attempt")
        _same(sorted(ours, key=by_task), sorted(theirs, key=by_task), "owed stops")
        return theirs

    def restored(self, campaign: str) -> list[TaskEntry]:
        self.commit()
        unfinished = sorted(row.id for row in self.real.campaigns.unfinished())
        _same(sorted(row.id for row in self.unfinished()), unfinished, "unfinished campaigns")
        return entries_of(self.real, campaign, self.real.tasks.bodies(campaign))

    def face(self) -> Any:
        double = super().face()
        attempts = {name: self._both(name, getattr(double.attempts, name)) for name in BOTH}
        double.attempts = SimpleNamespace(**attempts)
        double.tasks.set_wait_reason = self._committed(self.real.tasks.set_wait_reason)
        double.tasks.set_wait_until = self._committed(self.real.tasks.set_wait_until)
        double.tasks.set_notes = self._committed(self.real.tasks.set_notes)
        double.events.add = self._committed(self.real.events.add)
        return double

    def _both(self, name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
        def both(*args: Any, **named: Any) -> Any:
            if name == "known_result":
                self.commit()  # the real store commits before it reads
            self._open()
            answer = ours(*args, **named)
            theirs = getattr(self.real.attempts, name)(*args, **named)
            if name in ("record_result", "known_result"):
                _same(answer, theirs, f"{name} of {named['task']}")
            self._touched |= dict.fromkeys(tasks_in(args, named))
            if not self.uncommitted:
                self._compare_touched()
            return answer

        return both

    def _committed(self, write: Callable[..., None]) -> Callable[..., None]:
        """`write`, with pending changes committed first, as in the real store."""

        def committed(*args: Any, **named: Any) -> None:
            self.commit()
            write(*args, **named)

        return committed

    def gather(self, gathered: Callable[[], None]) -> None:
        super().gather(gathered)
        self.real.gather(lambda: None)

    def commit(self) -> None:
        super().commit()
        self.real.commit()
        self._compare_touched()

    def _compare_touched(self) -> None:
        touched, self._touched = self._touched, {}
        self.compare(touched)

    def compare(self, tasks: Iterable[str]) -> None:
        """Raises `LocalProtocolError` where the two stores differ in these tasks."""
        for task in tasks:
            ours, theirs = self.tasks.get(task), self.real.tasks.get(task)
            if ours is None or theirs is None:
                _same(ours, theirs, task)
                continue
            for column in COLUMNS:
                _same(getattr(ours, column), getattr(theirs, column), f"{column} of {task}")
            known = {one.attempt: (one.worker, one.state) for one in self.tries(task)}
            stored = {one.attempt: (one.worker, one.state) for one in self.real.attempts.of_task(task)}
            _same(known, stored, f"attempts of {task}")


def _same(ours: object, theirs: object, what: str) -> None:
    if ours != theirs:
        raise LocalProtocolError(f"{what}: {ours} in the double, {theirs} in the store")


def _new(folder: SimCampaign, scheduler: str) -> NewCampaign:
    return NewCampaign(
        folder.id,
        folder.id,
        scheduler,
        "{}",
        attempts=folder.attempts,
        backoff_s=folder.backoff_s,
        wait_s=folder.wait_s,
        priority=folder.priority,
    )

"""Adoption in the model: another machine adopts a campaign while its former scheduler lives, is paused, or is dead and comes back.

Mirrors `scheduler.adoption` and `scheduler.store.campaigns`: asks all workers until no new one answers, recovers where the tasks are (with
the real `Recovery`), raises the epoch by the leap, and fills the store as if this machine had always had the campaign. Then it starts as
usual. The adopter has either a copy of the owner's key, and so the same peer id, or a token from the owner and a peer id of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.errors import Unreachable
from protocol.messages.work import AdoptReply, ListLeases
from scheduler.adoption.adopt import epoch_after
from scheduler.adoption.recovery import MAX_WAIT_S, PATIENT_ROUNDS, ROUND_S, ROUNDS, Recovery, WorkerReport
from scheduler.conversation.effects import drive
from scheduler.store.rows import WorkerTask
from tests.simulation.history import Kind
from tests.simulation.sim_scheduler import SimScheduler
from tests.simulation.sim_store import SimCampaign
from tests.simulation.wire import End


class SimAdopter(SimScheduler):
    """A scheduler whose first action is an adoption."""

    def __init__(
        self,
        *given: Any,
        manifest: SimCampaign,
        bodies: dict[str, bytes],
        taken: Callable[[SimAdopter], None],
        honest: Callable[[str], bool],
        linked: bool,
        **named: Any,
    ) -> None:
        """`manifest` and `bodies`: the campaign manifest, once a worker has it. `taken`: called when the adoption is complete.

        `honest`: whether a worker is honest. `linked`: the scheduler that continues already has links to the workers, because it has other
        campaigns.
        """
        super().__init__(*given, **named)
        self.manifest = manifest
        self._manifest_bodies = bodies
        self._taken = taken
        self._honest = honest
        self._linked = linked
        self.gave_up = False

    @property
    def adopting(self) -> bool:
        """Whether the adoption is not complete and not given up."""
        return not self.gave_up and self.manifest.id not in self.store.campaigns

    async def _live(self) -> None:
        if self.adopting and not await self._gather():
            self.gave_up = True
        if not self.gave_up:
            await self._beat()

    async def _gather(self) -> bool:
        recovery, known = Recovery(), 0
        links: dict[str, End] = {}
        for number in range(ROUNDS):
            for advert in self._adverts():
                if advert.peer not in recovery.reports:
                    await self._look(advert, recovery, links)
            stable = number > 0 and known == len(recovery.reports)
            known = len(recovery.reports)
            if stable and (not recovery.silent or number + 1 >= PATIENT_ROUNDS):
                break
            await self.process.sleep(ROUND_S)
        for link in () if self._linked else links.values():  # the scheduler that continues is a new process
            link.drop()
        if not any(each.manifest is not None for each in recovery.reports.values()):
            return False
        by_key = {task: at for task, at in recovery.places().items() if task in self._manifest_bodies}
        for at in by_key.values():
            self._found(at)
        if "ignores-settled" in self._mutant:
            by_key = {task: at for task, at in by_key.items() if not at.ended}
        folder = SimCampaign(
            self.manifest.id,
            self.manifest.attempts,
            self.manifest.backoff_s,
            self.manifest.wait_s,
            self.manifest.priority,
        )
        epoch = recovery.epoch if "no-leap" in self._mutant else epoch_after(recovery.epoch, self._rng)
        self.store.take_over(folder, self._manifest_bodies, by_key, epoch=epoch)
        self._taken(self)
        return True

    async def _open(self, peer: str) -> End:
        if not self._linked:
            return await self._air.open(self.station, peer, MAX_WAIT_S)
        link: Any = await drive(self.conversation.links.connect(peer), self.perform)
        return link

    async def _look(self, advert: Any, recovery: Recovery, links: dict[str, End]) -> None:
        peer = advert.peer
        try:
            if peer not in links or links[peer].closed.is_set:
                links[peer] = await self._open(peer)
            page = await links[peer].call(ListLeases(campaign=self.manifest.id), MAX_WAIT_S)
        except Unreachable as exc:
            recovery.silent[advert.name] = exc.what
            if peer in links:
                links.pop(peer).drop()
            return
        if not isinstance(page, AdoptReply):
            recovery.silent[advert.name] = "denied"
            return
        recovery.silent.pop(advert.name, None)
        recovery.reports[advert.peer] = WorkerReport(advert, page.leases, page.epoch, page.manifest)

    def _found(self, at: WorkerTask) -> None:
        if self._honest(at.worker):
            self._tell(
                Kind.FOUND,
                who=self.name,
                campaign=self.manifest.id,
                task=at.task,
                attempt=at.attempt,
                worker=at.worker,
                lease=at.lease,
                word="over" if at.ended else "queued" if at.queued else "running",
            )

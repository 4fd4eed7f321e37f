"""Asks the workers of a campaign what they hold of it, without changing anything there. For `adopt`, and for watching from elsewhere.

index.campaign(C) ─▶ ListLeases to each, all pages ─▶ round after round, until no new one turns up ─▶ campaign manifest, models
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.errors import (
    CampaignError,
    ProtocolError,
    Refused,
    RemoteProtocolError,
    Unreachable,
)
from protocol.messages.work import AdoptReply, Denied, ListLeases, LiveLease
from protocol.values.advert import Advert
from protocol.values.campaign_manifest import MAX_MANIFEST, OpenedManifest, open_manifest, read_cover
from protocol.values.task import Model
from scheduler.models.spool import receive
from scheduler.run.epochs import proven_epoch
from scheduler.store.rows import WorkerTask
from swarm.base.threads import COMPUTING
from swarm.blobs.client import fetch_blob
from swarm.index.index import Index
from swarm.net.addresses import Address
from swarm.net.identity import verify
from swarm.net.link import Link
from swarm.net.links import Links
from swarm.net.network import Network

ROUNDS: Final = 8
PATIENT_ROUNDS: Final = 3
"""Rounds in which a worker that does not answer is asked again."""
ROUND_S: Final = 1.0
"""Seconds between two searches of the index: a worker may just be announcing the campaign to it."""
LIMIT: Final = 256
AT_ONCE: Final = 32
MAX_PAGES: Final = 256
MAX_WAIT_S: Final = 5.0
NEXT_S: Final = 2.0
"""Seconds after which the next holder of the campaign manifest is asked too, if one has not sent it."""
MANIFEST_S: Final = 30.0
"""Seconds after which a holder that has not sent the manifest is given up."""
SLOWEST: Final = 32 * 1024
"""Bytes per second; a holder that sends a model more slowly over `PACE_S` seconds is given up for another."""
PACE_S: Final = 30.0
PIECE: Final = 512 * 1024
"""Bytes of one piece of a model: a model is sent in pieces, so that its pace can be measured."""
UNPROVEN: Final = 1_000
"""Highest epoch that is believed without a proof: a scheduler proves every epoch but its first."""
HIGHEST: Final = 500
"""Highest attempt number believed; attempts are numbered up to 1,000 in all."""

log = structlog.get_logger("sark.adopt")


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker's report on the campaign. `proof`: proof that a scheduler leads the campaign under `epoch`."""

    advert: Advert
    leases: tuple[LiveLease, ...] = ()
    epoch: int = 0
    manifest: str | None = None
    manifest_size: int = 0
    proof: bytes | None = None


@dataclass(slots=True)
class Recovery:
    """The reports of all workers of a campaign."""

    reports: dict[str, WorkerReport] = field(default_factory=dict)
    """Reports by the worker's peer id."""
    silent: dict[str, str] = field(default_factory=dict)
    """By peer: its name and why it gave no report, for people; only peers that the index lists under the campaign."""

    @property
    def epoch(self) -> int:
        """The highest epoch in any report."""
        return max((report.epoch for report in self.reports.values()), default=0)

    @property
    def has_manifest(self) -> bool:
        """Whether a worker has the campaign's manifest."""
        return any(report.manifest is not None for report in self.reports.values())

    def believed(self, campaign: str, owner: str) -> int:
        """The highest epoch proven for a scheduler of the owner's. Unproven epochs count up to `UNPROVEN`."""
        proven = (proven_epoch(report.proof, campaign, {owner}) or 0 for report in self.reports.values())
        return max(min(self.epoch, UNPROVEN), *proven)

    def places(self, manifest: str | None = None) -> dict[str, WorkerTask]:
        """Where each task is: at the highest attempt that got beyond a queue, else at the highest queued lease.

        An attempt beyond a queue was begun only because any lower one had failed; that is not true of a queued lease. Of two runs of one
        attempt, the later fence belongs to a scheduler that took the earlier run for lost. Attempts above `HIGHEST` are ignored, so that
        numbers remain for later attempts. If `manifest` is given, workers that know it take precedence: workers got it with their tasks,
        and strangers did not.
        """
        best: dict[str, tuple[tuple[bool, bool, int, tuple[int, int]], str, LiveLease]] = {}
        highest: dict[str, int] = {}
        for peer, report in self.reports.items():
            for lease in report.leases:
                if lease.attempt > HIGHEST:
                    log.warning("look.attempt", peer=peer, task=lease.task, attempt=lease.attempt)
                    continue
                highest[lease.task] = max(highest.get(lease.task, 0), lease.attempt)
                known = manifest in (None, report.manifest)
                rank = (known, not lease.queued, lease.attempt, lease.fence.key())
                if lease.task not in best or best[lease.task][0] < rank:
                    best[lease.task] = (rank, peer, lease)
        return {
            task: WorkerTask(
                task=task,
                attempt=lease.attempt,
                worker=peer,
                device=self.reports[peer].advert.name,
                lease=lease.lease,
                fence=lease.fence,
                queued=lease.queued,
                ended=lease.reporting or lease.settled,
                highest=highest[task],
            )
            for task, (_, peer, lease) in best.items()
        }


@dataclass(slots=True)
class RecoveryScan:
    """Queries the workers of one campaign over kept links."""

    network: Network
    index: Index
    links: Links
    introduce: Callable[[Link], Awaitable[object]]
    """Shows a worker our credentials, before any other message."""
    campaign: str
    announce: Callable[[Iterable[Address]], Awaitable[None]] | None = None
    """Announces a visitor to the gates on the way to these addresses."""
    round_s: float = ROUND_S
    next_s: float = NEXT_S
    pace_s: float = PACE_S
    adverts: dict[str, Advert] = field(default_factory=dict)
    """Every worker found so far."""
    _listed: set[str] = field(default_factory=set)
    """The workers among them that the index lists under this campaign."""

    async def recover(self, owner: str) -> tuple[Recovery, bytes, OpenedManifest]:
        """The workers' reports, and the campaign's manifest. Raises `CampaignError`, `Unreachable`."""
        recovery = await self.gather()
        if not recovery.has_manifest:
            await self.widen(recovery)
        return recovery, *await self.manifest(recovery, owner)

    async def gather(self) -> Recovery:
        """Ask all workers of the campaign, until two consecutive searches of the index find no new ones and each has answered or is given
        up.
        """
        recovery = Recovery()
        for number in range(ROUNDS):
            before = set(self.adverts)
            await self.find()
            fresh = [peer for peer in self.adverts if peer not in recovery.reports]
            await self.look(fresh, recovery)
            stable = number > 0 and set(self.adverts) == before
            if stable and (not recovery.silent or number + 1 >= PATIENT_ROUNDS):
                break
            await trio.sleep(self.round_s)
        return recovery

    async def widen(self, recovery: Recovery) -> None:
        """Ask all devices of the swarm that can be found: a worker that has just finished its part may no longer be listed."""
        await self.find(everybody=True)
        await self.look([peer for peer in self.adverts if peer not in recovery.reports], recovery)

    async def find(self, *, everybody: bool = False) -> None:
        """Search the index. Raises `Unreachable` when it cannot be read."""
        index = self.index
        result = await (index.everybody(LIMIT) if everybody else index.campaign(self.campaign, LIMIT))
        for sighting in result.devices:
            if not sighting.advert.gone:
                self.adverts[sighting.advert.peer] = sighting.advert
                if not everybody:
                    self._listed.add(sighting.advert.peer)

    async def look(self, peers: Iterable[str], recovery: Recovery) -> None:
        """Ask these workers, at most `AT_ONCE` at a time, and add their reports."""
        slots = trio.CapacityLimiter(AT_ONCE)
        peers = tuple(peers)
        if self.announce is not None:
            await self.announce(address for peer in peers for address in self.adverts[peer].addresses)

        async def ask(advert: Advert) -> None:
            async with slots:
                try:
                    recovery.reports[advert.peer] = await self._look(advert)
                    recovery.silent.pop(advert.peer, None)
                except (Unreachable, Refused, ProtocolError) as exc:
                    log.info("look.unanswered", peer=advert.peer, why=exc.what)
                    if advert.peer in self._listed:  # others hold nothing of it, and need not answer
                        does = "refuses" if isinstance(exc, Refused) else "does not answer"
                        recovery.silent[advert.peer] = f"{advert.name} {does} ({exc.what})"
                    await self.links.drop(advert.peer)

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, self.adverts[peer])

    async def _look(self, advert: Advert) -> WorkerReport:
        link = await self.links.get(advert.peer, advert.addresses, max_wait_s=MAX_WAIT_S)
        await self.introduce(link)
        leases: dict[tuple[str, int], LiveLease] = {}
        cursor = 0
        for _ in range(MAX_PAGES):
            answer = await link.call(ListLeases(campaign=self.campaign, cursor=cursor))
            if isinstance(answer, Denied):
                raise Refused(answer.detail or str(answer.reason), reason=answer.reason)
            if not isinstance(answer, AdoptReply):
                raise RemoteProtocolError(f"{advert.peer} answered ListLeases with {type(answer).__name__}")
            leases |= {(lease.task, lease.attempt): lease for lease in answer.leases}
            if answer.cursor is None:
                lines = tuple(leases.values())
                return WorkerReport(
                    advert, lines, answer.epoch, answer.manifest, answer.manifest_size, answer.proof
                )
            if answer.cursor <= cursor:
                break
            cursor = answer.cursor
        raise RemoteProtocolError(f"{advert.peer} sent lease pages that never end")

    # -- what belongs to the campaign --------------------------------------------------------------------------------------

    async def manifest(self, recovery: Recovery, owner: str) -> tuple[bytes, OpenedManifest]:
        """The campaign manifest under its owner's signature, from any of its workers. Raises `CampaignError` when none has a valid one."""
        reports = recovery.reports.values()
        alike = Counter(report.manifest for report in reports)
        holders = [report for report in reports if report.manifest and report.manifest_size <= MAX_MANIFEST]
        holders.sort(key=lambda report: -alike[report.manifest])  # the most often named first
        why = "no device that answers has it"
        matches: list[tuple[bytes, OpenedManifest]] = []

        async def ask(each: WorkerReport, ended: trio.Event) -> None:
            nonlocal why
            try:
                matches.append(await self._manifest_of(each, owner))
                nursery.cancel_scope.cancel()
            except (Unreachable, Refused, ProtocolError) as exc:
                why = f"{each.advert.name}: {exc.what}"
                log.warning("manifest.unusable", peer=each.advert.peer, why=exc.what)
            ended.set()

        async with trio.open_nursery() as nursery:
            for each in holders:
                ended = trio.Event()
                nursery.start_soon(ask, each, ended)
                with trio.move_on_after(self.next_s):
                    await ended.wait()
        if matches:
            return matches[0]
        raise CampaignError(
            f"no device has a usable campaign manifest of {self.campaign}: {why}",
            hint="a campaign can be adopted once a device has taken one of its tasks, and for a day after its last task;\n"
            "before that, only the machine that submitted the campaign has it: run it there with sark-node watch, or move its home folder",
        )

    async def _manifest_of(self, each: WorkerReport, owner: str) -> tuple[bytes, OpenedManifest]:
        assert each.manifest is not None
        data = await self._read_manifest(each.advert, each.manifest, each.manifest_size)
        cover = read_cover(data)
        if cover.campaign != self.campaign or cover.owner != owner:
            raise RemoteProtocolError("it belongs to another campaign or owner")
        if not verify(owner, cover.message, cover.signature):
            raise RemoteProtocolError("its signature is not the owner's")
        return data, await COMPUTING.run(open_manifest, cover)

    async def _read_manifest(self, advert: Advert, sha256: str, size: int) -> bytes:
        data = bytearray()
        with trio.move_on_after(MANIFEST_S) as limit:
            await fetch_blob(self.network, advert.peer, advert.addresses, sha256, sink=data.extend, size=size)
        if limit.cancelled_caught:
            raise Unreachable(f"{advert.name} is too slow")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise RemoteProtocolError("its content does not match its hash")
        return bytes(data)

    async def model(self, model: Model, spool: Path, first: Sequence[str]) -> bool:
        """Fetch a model into the spool from any worker that has it. `first`: those most likely to have it. Raises `ResourceError`."""
        peers = dict.fromkeys([*first, *self.adverts])
        for advert in (self.adverts[peer] for peer in peers if peer in self.adverts):
            try:
                await receive(model, spool, partial(self._fetch_model, advert, model))
                return True
            except (Unreachable, Refused, ProtocolError) as exc:
                log.info("model.not_here", peer=advert.peer, why=exc.what)
        return False

    async def _fetch_model(self, advert: Advert, model: Model, sink: Callable[[bytearray], object]) -> None:
        step = due = self.pace_s * SLOWEST
        with trio.move_on_after(self.pace_s) as pace:

            def came(done: int, total: int) -> None:
                nonlocal due
                if done >= due:
                    due = done + step
                    pace.deadline = trio.current_time() + self.pace_s

            await fetch_blob(
                self.network,
                advert.peer,
                advert.addresses,
                model.sha256,
                sink=sink,
                size=model.size,
                progress=came,
                piece=PIECE,
            )
        if pace.cancelled_caught:
            raise Unreachable(f"{advert.name} sends it too slowly")

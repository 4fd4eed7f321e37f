"""Asking the workers of a campaign what they have of it, without changing anything there. For `adopt`, and for watching from elsewhere.

index.campaign(C) ─▶ Look at each, all pages ─▶ round after round, until no new one turns up ─▶ campaign manifest, models
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import structlog
import trio

from protocol.errors import (
    CampaignError,
    ProtocolError,
    Refused,
    RemoteProtocolError,
    ResourceError,
    Unreachable,
)
from protocol.messages.work import AdoptReply, Denied, ListLeases, LiveLease
from protocol.signed.campaign_manifest import MAX_MANIFEST, OpenedManifest, open_manifest, read_cover
from protocol.values.advert import Advert
from scheduler.run.epochs import proven_epoch
from scheduler.store.rows import WorkerTask
from swarm.blobs.client import fetch_blob
from swarm.index.query import QueryResult
from swarm.net.addresses import Address
from swarm.net.identity import verify
from swarm.net.link import Link, Links
from swarm.net.network import Network

ROUNDS: Final = 8
PATIENT_ROUNDS: Final = 3
"""A worker that does not answer is asked so often."""
ROUND_S: Final = 1.0
"""Between two looks at the index: a worker may just be telling it of the campaign."""
LIMIT: Final = 256
AT_ONCE: Final = 32
MAX_PAGES: Final = 256
PATIENCE_S: Final = 5.0
NEXT_S: Final = 2.0
"""When a holder of the campaign manifest has not sent it by then, the next one is asked beside it."""
MANIFEST_S: Final = 30.0
"""A holder that has not sent it by then is given up."""
SLOWEST: Final = 32 * 1024
"""Bytes a second: who sends a model more slowly over `PACE_S` is given up for another holder."""
PACE_S: Final = 30.0
PIECE: Final = 512 * 1024
"""A model comes in pieces of so many bytes, so that its pace is seen."""
UNPROVEN: Final = 1_000
"""A scheduler proves every epoch but its first; one that is only said is believed so far."""
HIGHEST: Final = 500
"""Attempts are numbered up to 1,000 in all."""

log = structlog.get_logger("sark.adopt")


class RecoveryDirectory(Protocol):
    """What is used of `swarm.index.index.Index`."""

    async def campaign(self, campaign: str, limit: int = 256) -> QueryResult: ...

    async def everybody(self, limit: int = 256) -> QueryResult: ...


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one worker told. `proof`: of the epoch."""

    advert: Advert
    leases: tuple[LiveLease, ...] = ()
    epoch: int = 0
    manifest: str | None = None
    manifest_size: int = 0
    proof: bytes | None = None


@dataclass(slots=True)
class Recovery:
    """What all of them told."""

    heard: dict[str, WorkerReport] = field(default_factory=dict)
    """By peer."""
    silent: dict[str, str] = field(default_factory=dict)
    """Peer → its name and why it told nothing, for people; of those only that the index lists under the campaign."""

    @property
    def epoch(self) -> int:
        """The highest that any of them says it heard."""
        return max((each.epoch for each in self.heard.values()), default=0)

    def believed(self, campaign: str, owner: str) -> int:
        """The highest that one of the owner's is proven to have spoken under. What is only said counts up to `UNPROVEN`."""
        text = min(self.epoch, UNPROVEN)
        proven = (proven_epoch(each.proof, campaign, {owner}) or 0 for each in self.heard.values())
        return max(text, *proven)

    def places(self, manifest: str | None = None) -> dict[str, WorkerTask]:
        """Where each task is: by the highest attempt that got further than a queue, else by the highest ticket.

        An attempt above another one was only begun, or done, because that one had failed; a ticket above it need not have been.
        Attempts above `HIGHEST` are nobody's: numbers must be left for those that follow. Before all others go those that know the
        `manifest`, where it is given: workers were told it with what they were asked to take, and strangers were not.
        """
        best: dict[str, tuple[tuple[bool, bool, int], WorkerTask]] = {}
        highest: dict[str, int] = {}
        for peer, each in self.heard.items():
            for lease in each.leases:
                if lease.attempt > HIGHEST:
                    log.warning("look.attempt", peer=peer, task=lease.task, attempt=lease.attempt)
                    continue
                worker_task = WorkerTask(
                    task=lease.task,
                    attempt=lease.attempt,
                    worker=peer,
                    device=each.advert.name,
                    lease=lease.lease,
                    fence=lease.fence,
                    queued=lease.queued,
                    ended=lease.reporting or lease.settled,
                )
                highest[lease.task] = max(highest.get(lease.task, 0), lease.attempt)
                rank = (manifest in (None, each.manifest), not lease.queued, lease.attempt)
                if lease.task not in best or best[lease.task][0] < rank:
                    best[lease.task] = (rank, worker_task)
        return {task: replace(worker_task, highest=highest[task]) for task, (_, worker_task) in best.items()}


Introduce = Callable[[Link, Advert], Awaitable[object]]
"""Shows a worker what permission we have, before anything else is said."""


class RecoveryScan:
    """Looks at the workers of one campaign over kept links."""

    def __init__(
        self,
        network: Network,
        index: RecoveryDirectory,
        links: Links,
        introduce: Introduce,
        campaign: str,
        *,
        round_s: float = ROUND_S,
        next_s: float = NEXT_S,
        pace_s: float = PACE_S,
        announce: Callable[[Iterable[Address]], Awaitable[None]] | None = None,
    ) -> None:
        """`announce`: makes a visitor known at the gates on the way to these addresses."""
        self._network = network
        self._index = index
        self._links = links
        self._introduce = introduce
        self._announce = announce
        self._campaign = campaign
        self._round_s, self._next_s, self._pace_s = round_s, next_s, pace_s
        self.adverts: dict[str, Advert] = {}
        """Every worker that was found so far."""
        self._listed: set[str] = set()
        """Those of them that the index named as this campaign's."""

    async def gather(self) -> Recovery:
        """Ask all workers of the campaign, until two looks at the index in a row found nobody new and everybody answered, or never will."""
        gathered = Recovery()
        for number in range(ROUNDS):
            known = set(self.adverts)
            await self.find()
            fresh = [peer for peer in self.adverts if peer not in gathered.heard]
            await self.look(fresh, gathered)
            stable = number > 0 and set(self.adverts) == known
            if stable and (not gathered.silent or number + 1 >= PATIENT_ROUNDS):
                break
            await trio.sleep(self._round_s)
        return gathered

    async def widen(self, gathered: Recovery) -> None:
        """Ask all devices of the swarm that can be found: one that has just ended its part may not be listed any more."""
        await self.find(everybody=True)
        await self.look([peer for peer in self.adverts if peer not in gathered.heard], gathered)

    async def find(self, *, everybody: bool = False) -> None:
        """Look into the index. Raises `Unreachable` when it cannot be read."""
        index = self._index
        result = await (index.everybody(LIMIT) if everybody else index.campaign(self._campaign, LIMIT))
        for sighting in result.devices:
            if not sighting.advert.gone:
                self.adverts[sighting.advert.peer] = sighting.advert
                if not everybody:
                    self._listed.add(sighting.advert.peer)

    async def look(self, peers: Iterable[str], gathered: Recovery) -> None:
        """Ask these, beside each other, and keep what they tell."""
        slots = trio.CapacityLimiter(AT_ONCE)
        peers = tuple(peers)
        if self._announce is not None:
            await self._announce(address for peer in peers for address in self.adverts[peer].addresses)

        async def ask(advert: Advert) -> None:
            async with slots:
                try:
                    gathered.heard[advert.peer] = await self._look(advert)
                    gathered.silent.pop(advert.peer, None)
                except (Unreachable, Refused, ProtocolError) as exc:
                    log.info("look.unanswered", peer=advert.peer, why=exc.what)
                    if advert.peer in self._listed:  # a stranger has nothing of it, and need not tell us so
                        does = "refuses" if isinstance(exc, Refused) else "does not answer"
                        gathered.silent[advert.peer] = f"{advert.name} {does} ({exc.what})"
                    await self._links.drop(advert.peer)

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, self.adverts[peer])

    async def _look(self, advert: Advert) -> WorkerReport:
        link = await self._links.get(advert.peer, advert.addresses, max_wait_s=PATIENCE_S)
        await self._introduce(link, advert)
        leases: dict[tuple[str, int], LiveLease] = {}
        cursor = 0
        for _ in range(MAX_PAGES):
            answer = await link.call(ListLeases(campaign=self._campaign, cursor=cursor))
            if isinstance(answer, Denied):
                raise Refused(answer.detail or str(answer.reason), reason=answer.reason)
            if not isinstance(answer, AdoptReply):
                raise RemoteProtocolError(f"{advert.peer} answered Look with {type(answer).__name__}")
            leases |= {(lease.task, lease.attempt): lease for lease in answer.leases}
            if answer.cursor is None:
                lines = tuple(leases.values())
                return WorkerReport(
                    advert, lines, answer.epoch, answer.manifest, answer.manifest_size, answer.proof
                )
            if answer.cursor <= cursor:
                break
            cursor = answer.cursor
        raise RemoteProtocolError(f"{advert.peer} does not come to an end of what it holds")

    # -- what belongs to the campaign --------------------------------------------------------------------------------------

    async def manifest(self, gathered: Recovery, owner: str) -> tuple[bytes, OpenedManifest]:
        """The campaign manifest under its owner's signature, from any of its workers. Raises `CampaignError` when none has a good one."""
        alike = Counter(each.manifest for each in gathered.heard.values())
        holders = [
            each for each in gathered.heard.values() if each.manifest and each.manifest_size <= MAX_MANIFEST
        ]
        holders.sort(key=lambda each: -alike[each.manifest])  # what many name is more likely to be good
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
                with trio.move_on_after(self._next_s):
                    await ended.wait()
        if matches:
            return matches[0]
        raise CampaignError(
            f"the campaign manifest of {self._campaign}, its description that its devices keep, cannot be had: {why}",
            hint="a campaign can be adopted once a device has begun a task of it, and for a day after its last one",
        )

    async def _manifest_of(self, each: WorkerReport, owner: str) -> tuple[bytes, OpenedManifest]:
        assert each.manifest is not None
        data = await self._take(each.advert, each.manifest, each.manifest_size)
        cover = read_cover(data)
        if cover.campaign != self._campaign or cover.owner != owner:
            raise RemoteProtocolError("it is of another campaign or owner")
        if not verify(owner, cover.message, cover.signature):
            raise RemoteProtocolError("its signature is not the owner's")
        return data, await trio.to_thread.run_sync(open_manifest, cover)

    async def _take(self, advert: Advert, sha256: str, size: int) -> bytes:
        data = bytearray()
        with trio.move_on_after(MANIFEST_S) as patience:
            await fetch_blob(
                self._network, advert.peer, advert.addresses, sha256, sink=data.extend, size=size
            )
        if patience.cancelled_caught:
            raise Unreachable(f"{advert.name} is too slow")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise RemoteProtocolError("it is not what its name says")
        return bytes(data)

    async def model(self, sha256: str, size: int, target: Path, first: Sequence[str]) -> bool:
        """Bring a model from whichever worker has it to `target`, its hash checked. `first`: those most likely to have it.

        Raises `ResourceError` when it cannot be written.
        """
        peers = dict.fromkeys([*first, *self.adverts])
        for advert in (self.adverts[peer] for peer in peers if peer in self.adverts):
            try:
                await self._model_of(advert, sha256, size, target)
                return True
            except (Unreachable, Refused, ProtocolError) as exc:
                log.info("model.not_here", peer=advert.peer, why=exc.what)
            except OSError as exc:
                raise ResourceError(
                    f"cannot write a model to {target.parent}: {exc.strerror or exc}",
                    hint="make room there, or check its rights; then adopt again",
                ) from None
        return False

    async def _model_of(self, advert: Advert, sha256: str, size: int, target: Path) -> None:
        fresh = target.with_name(f".{target.name}.adopted")
        digest = hashlib.sha256()
        step = self._pace_s * SLOWEST
        due = step
        try:
            file = await trio.to_thread.run_sync(fresh.open, "wb")
            with file, trio.move_on_after(self._pace_s) as pace:

                def store(data: bytearray) -> None:
                    digest.update(data)
                    file.write(data)

                def came(done: int, total: int) -> None:
                    nonlocal due
                    if done >= due:
                        due = done + step
                        pace.deadline = trio.current_time() + self._pace_s

                await fetch_blob(
                    self._network,
                    advert.peer,
                    advert.addresses,
                    sha256,
                    sink=store,
                    size=size,
                    progress=came,
                    piece=PIECE,
                )
            if pace.cancelled_caught:
                raise Unreachable(f"{advert.name} sends it too slowly")
            if digest.hexdigest() != sha256:
                raise RemoteProtocolError("it is not what its name says")
            await trio.to_thread.run_sync(fresh.replace, target)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_remove, fresh)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)

"""The manifests of campaigns with leases or results on this worker, so that another scheduler can carry the campaigns on.

    commit ─▶ note        the scheduler named a manifest          run ─▶ fetch      with the model, while nothing is measured
    Look, Adopt ─▶ of     which manifest there is                 blob ─▶ find      its bytes, for a peer that may speak for the campaign

A manifest is two files named by its sha256: `.manifest` holds its bytes; `.card`, written last, says which campaign it belongs to. A
manifest that is missing or invalid does not prevent a run: the campaign then cannot be adopted from this worker.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Annotated, Final

import structlog
import trio
from pydantic import Field

from node.capacity.allocations import RecentDict, gives_way
from node.store.files import FileFolder
from protocol.errors import ProtocolError, Refused, RemoteProtocolError, ResourceError, Unreachable
from protocol.values.campaign_manifest import MAX_MANIFEST, CampaignId, open_manifest, read_cover
from protocol.wire.base import Count, Message, PeerName, Sha256
from protocol.wire.codec import pack, read_value
from swarm.base.threads import COMPUTING, DISK
from swarm.net.identity import verify

MAX_MANIFESTS: Final = 64
MAX_BYTES: Final = 64 * 1024**2
QUICK_S: Final = 1.0
"""A campaign's first run here does not wait for the manifest if the run is expected to be shorter than this. The next run fetches it."""
FETCH_S: Final = 10.0
"""The longest that a run waits for a manifest, which is small."""
RETRY_S: Final = 30.0
"""Seconds before the worker asks a peer that failed to send a manifest again, doubled after each further failure: a run waits for each
request."""
MAX_RETRY_S: Final = 3600.0
_CARD_ELEMENTS: Final = 2_048

log = structlog.get_logger("sark.manifests")

Take = Callable[[str, str, int, Callable[[bytearray], object]], Awaitable[object]]
"""Fetches a blob from a peer into a sink: (peer, sha256, size, sink)."""


class ManifestCard(Message):
    """The campaign to which a stored manifest belongs."""

    campaign: CampaignId
    owner: PeerName
    sha256: Sha256
    size: Count
    models: Annotated[tuple[Sha256, ...], Field(max_length=1_000)] = ()
    """Models that the manifest names."""
    number: Count
    """Rises with each stored manifest."""


class ManifestStore:
    """One folder of manifests, used by one process at a time."""

    def __init__(self, folder: Path, take: Take, now: Callable[[], float] = trio.current_time) -> None:
        """Open the folder and load its cards (blocking, quick). Raises `ResourceError`."""
        self._take = take
        self._now = now
        self._cards: dict[tuple[str, str], ManifestCard] = {}
        """By owner and campaign."""
        self._noted: dict[tuple[str, str], tuple[str, str, int]] = {}
        """(owner, campaign) → (peer, sha256, size) of manifests that a scheduler named and that are not fetched yet."""
        self._put_off: RecentDict[tuple[str, str], bool] = RecentDict(MAX_MANIFESTS)
        """(owner, campaign) whose first run here was too short to wait for the manifest."""
        self._failed: RecentDict[str, tuple[float, float]] = RecentDict(MAX_MANIFESTS)
        """Peer → when the worker may ask it again, and the length of that wait."""
        self._files = FileFolder(folder)
        with self._files.usable():
            for name in self._files.names():
                if name.endswith(".card"):
                    self._load(name)
            stored = {f"{card.sha256}.manifest" for card in self._cards.values()}
            for name in self._files.names():  # left incomplete by a kill
                if name.endswith(".manifest") and name not in stored:
                    self._files.remove(name)

    def __len__(self) -> int:
        return len(self._cards)

    def of(self, campaign: str, owner: str) -> ManifestCard | None:
        """The manifest of a campaign, if it is stored here."""
        return self._cards.get((owner, campaign))

    def find(self, sha256: str) -> tuple[ManifestCard, Path] | None:
        """A manifest by its hash: its card, from which the caller can tell who may read it, and its path."""
        card = next((card for card in self._cards.values() if card.sha256 == sha256), None)
        return None if card is None else (card, self._files.folder / f"{sha256}.manifest")

    def naming(self, model: str) -> tuple[ManifestCard, ...]:
        """The manifests that name a model."""
        return tuple(card for card in self._cards.values() if model in card.models)

    def note(self, campaign: str, owner: str, peer: str, sha256: str, size: int) -> None:
        """A scheduler named a manifest: remember to fetch it while nothing is measured."""
        card = self.of(campaign, owner)
        if (card is not None and card.sha256 == sha256) or not 0 < size <= MAX_MANIFEST:
            return
        self._noted.pop((owner, campaign), None)
        self._noted[owner, campaign] = (peer, sha256, size)
        for old in gives_way(self._noted, lambda key: key[0], lambda key: 0, number=MAX_MANIFESTS, room=0):
            del self._noted[old]

    async def fetch(
        self, campaign: str, owner: str, needed: Collection[str], run_s: float | None = None
    ) -> None:
        """Fetch the noted manifest, if there is one. `needed`: campaigns whose manifests must stay; `run_s`: the expected duration of the
        run that waits, if known.

        Errors are logged, and a later run tries again.
        """
        noted = self._noted.get((owner, campaign))
        if noted is None:
            return
        if run_s is not None and run_s < QUICK_S and self._put_off.get((owner, campaign)) is None:
            self._put_off.put((owner, campaign), True)
            return
        peer, sha256, size = noted
        again, waited = self._failed.get(peer) or (0.0, 0.0)
        if self._now() < again:
            return
        waits = min(MAX_RETRY_S, max(RETRY_S, 2 * waited))
        data = bytearray()
        try:
            with trio.fail_after(FETCH_S):
                await self._take(peer, sha256, size, data.extend)
                card = await COMPUTING.run(self._read, bytes(data), sha256, campaign, owner)
                await DISK.run(self._store, card, bytes(data))
                waits = 0.0
                replaced = self._cards.get((owner, campaign))
                self._cards[owner, campaign] = card
                self._noted.pop((owner, campaign), None)
                excess = self._make_room({campaign, *needed})
                if replaced is not None and replaced.sha256 != sha256:
                    excess.append(replaced)
                await DISK.run(self._remove, excess)
        except trio.TooSlowError:
            log.info(
                "manifest.not_fetched",
                campaign=campaign,
                why=f"the manifest did not arrive within {FETCH_S:g} s",
            )
        except (Unreachable, Refused, ProtocolError, ResourceError) as exc:
            log.info("manifest.not_fetched", campaign=campaign, why=exc.what)
        self._failed.put(peer, (self._now() + waits, waits))

    async def forget(self, campaign: str, owner: str) -> None:
        """Remove the manifest of a campaign."""
        self._noted.pop((owner, campaign), None)
        card = self._cards.pop((owner, campaign), None)
        if card is not None:
            await DISK.run(self._remove, [card])

    def _read(self, data: bytes, sha256: str, campaign: str, owner: str) -> ManifestCard:
        """Raises `RemoteProtocolError` for a manifest that is not the owner's, or not of this campaign."""
        if hashlib.sha256(data).hexdigest() != sha256:
            raise RemoteProtocolError("the manifest does not have the hash that names it")
        cover = read_cover(data)
        if (cover.campaign, cover.owner) != (campaign, owner) or not verify(
            owner, cover.message, cover.signature
        ):
            raise RemoteProtocolError("the manifest is not signed by the campaign's owner")
        manifest = open_manifest(cover).manifest
        number = 1 + max((card.number for card in self._cards.values()), default=0)
        models = tuple(dict.fromkeys(model.sha256 for model in manifest.models))
        return ManifestCard(
            campaign=campaign, owner=owner, sha256=sha256, size=len(data), models=models, number=number
        )

    def _make_room(self, needed: Collection[str]) -> list[ManifestCard]:
        """Drop the manifests beyond the limits: first those that are not needed here, then the oldest."""
        least_first = sorted(self._cards.values(), key=lambda card: (card.campaign in needed, card.number))
        excess = gives_way(
            least_first, lambda card: card.owner, lambda card: card.size, number=MAX_MANIFESTS, room=MAX_BYTES
        )
        for card in excess:
            del self._cards[card.owner, card.campaign]
        return excess

    def _store(self, card: ManifestCard, data: bytes) -> None:
        self._files.write(f"{card.sha256}.manifest", data)
        self._files.write(f"{card.sha256}.card", pack(card.to_wire()))

    def _remove(self, cards: list[ManifestCard]) -> None:
        for card in cards:
            with contextlib.suppress(OSError):
                self._files.remove(f"{card.sha256}.card")
                self._files.remove(f"{card.sha256}.manifest")

    def _load(self, name: str) -> None:
        try:
            card = read_value(ManifestCard, self._files.read(name), max_elements=_CARD_ELEMENTS)
            size = self._files.size(f"{card.sha256}.manifest")
            if (f"{card.sha256}.card", card.size) != (name, size):
                raise RemoteProtocolError("card and manifest do not belong together")
        except (RemoteProtocolError, FileNotFoundError) as exc:
            log.warning("manifest.broken", file=name, why=str(exc).splitlines()[0])
            self._files.remove(name)
            return
        before = self._cards.get((card.owner, card.campaign))
        if before is None or before.number < card.number:
            self._cards[card.owner, card.campaign] = card

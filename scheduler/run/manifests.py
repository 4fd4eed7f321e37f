"""The manifests of this home's campaigns: made when the scheduler starts to lead a campaign, kept until it ends, served to its workers."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from protocol.errors import ResourceError
from protocol.values.campaign_manifest import (
    MAX_MANIFEST_TASKS,
    CampaignManifest,
    ManifestModel,
    make_manifest,
)
from scheduler.campaign.text import spec_for_devices
from scheduler.store.rows import CampaignRow, NewModel
from swarm.base.durable import write_durably
from swarm.net.identity import Identity

log = structlog.get_logger("sark.scheduler")


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest on this disk."""

    sha256: str
    size: int
    path: Path


class CampaignManifests:
    """The manifests in a folder of the spool, one file for each campaign."""

    def __init__(self, spool: Path) -> None:
        self._folder = spool / "manifests"
        self._stored: dict[str, StoredManifest] = {}

    def of(self, campaign: str) -> tuple[str, int] | None:
        """Hash and size of a campaign's stored manifest, if it has one."""
        stored = self._stored.get(campaign)
        return None if stored is None else (stored.sha256, stored.size)

    def find(self, sha256: str, campaigns: Collection[str]) -> Path | None:
        """A manifest by its hash, if it belongs to one of these campaigns."""
        manifests = (self._stored.get(campaign) for campaign in campaigns)
        return next((each.path for each in manifests if each is not None and each.sha256 == sha256), None)

    def keep(self, campaign: str, data: bytes) -> StoredManifest:
        """Store a manifest. Raises `ResourceError`."""
        path = self._path(campaign)
        write_durably(path, data)
        return self._remember(campaign, path, data)

    def take_up(
        self,
        row: CampaignRow,
        models: Sequence[NewModel],
        bodies: Mapping[str, bytes],
        identity: Identity,
    ) -> StoredManifest | None:
        """The stored manifest of a campaign, else a new one if the campaign is `identity`'s own.

        A campaign without a manifest runs normally, but cannot be adopted from another machine.
        """
        path = self._path(row.id)
        with contextlib.suppress(OSError):
            return self._remember(row.id, path, path.read_bytes())
        if row.scheduler != identity.peer_id:
            return None
        why = "it is too large"
        try:
            if len(bodies) <= MAX_MANIFEST_TASKS:
                made = make_manifest(_manifest(row, models, bodies), identity.sign)
                if made is not None:
                    return self.keep(row.id, made)
        except (ValueError, ResourceError) as exc:  # a field that no manifest can hold, or a full disk
            why = str(exc).splitlines()[0]
        log.warning("campaign.without-manifest", campaign=row.id, why=why)
        return None

    def forget(self, campaign: str) -> None:
        """The campaign has ended."""
        self._stored.pop(campaign, None)
        with contextlib.suppress(OSError):
            self._path(campaign).unlink()

    def tidy(self, unfinished: Collection[str]) -> None:
        """Remove the manifests of campaigns that ended while no scheduler ran."""
        names = {self._path(campaign).name for campaign in unfinished}
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in names:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _path(self, campaign: str) -> Path:
        """The file of a campaign's manifest. Ids may hold characters that file names cannot."""
        return self._folder / hashlib.sha256(campaign.encode()).hexdigest()[:32]

    def _remember(self, campaign: str, path: Path, data: bytes) -> StoredManifest:
        stored = self._stored[campaign] = StoredManifest(hashlib.sha256(data).hexdigest(), len(data), path)
        return stored


def _manifest(row: CampaignRow, models: Sequence[NewModel], bodies: Mapping[str, bytes]) -> CampaignManifest:
    return CampaignManifest(
        campaign=row.id,
        name=row.name,
        owner=row.scheduler,
        spec=spec_for_devices(row.spec),
        attempts=row.attempts,
        backoff_s=row.backoff_s,
        wait_s=row.wait_s,
        limit_s=row.limit_s,
        created=max(0, int(row.created)),
        priority=row.priority,
        models=tuple(
            ManifestModel(name=model.name, sha256=model.sha256, size=model.size, facts=model.facts)
            for model in models
        ),
        tasks=tuple(bodies.values()),
    )

"""Models sent to this home over HTTP: each is a file under its sha256, with its name in a note, until somebody removes it.

A campaign names an upload as `sha256:…`. The models that it needs are copied to the spool at submission, so an upload may be removed at any
time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final
from uuid import uuid4

from pydantic import StringConstraints, ValidationError

from protocol.errors import CampaignError, Refused, ResourceError
from protocol.wire.base import Sha256
from results.row.form import JsonModel, utc
from scheduler.campaign.model import Campaign, ModelEntry
from scheduler.models.describe import package_spec
from swarm.base.durable import make_folder, sync_folder, write_durably
from swarm.base.home import Home
from swarm.base.text import safe_text
from swarm.download.urls import OTHERS_URL_REACH, read_url, scheme_of

SCHEME: Final = "sha256:"
LEFT_FREE: Final = 1024**3
"""Bytes of the disk that uploads leave free."""
STALE_S: Final = 86_400.0
"""Seconds after which an interrupted upload is removed."""
_SEND: Final = "send the model with POST /api/v1/models?name=FILE"
_HASH: Final = re.compile(r"[0-9a-f]{64}")

ModelName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f/\\]+$", min_length=1, max_length=100)]


class Upload(JsonModel):
    """A model that was uploaded to this server."""

    sha256: Sha256
    name: ModelName
    """Name of the model in the results. Its suffix selects the driver."""
    size: int
    added: str


@contextlib.contextmanager
def _storing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ResourceError(
            f"cannot keep models in {folder}: {exc.strerror or exc}",
            hint="free some space, or check the folder's permissions",
        ) from None


class Incoming:
    """A model that is being uploaded. Always end with `keep` or `drop`. Blocking."""

    def __init__(self, folder: Path, name: str, wall: Callable[[], float]) -> None:
        self._folder, self._name, self._wall = folder, name, wall
        self._digest, self.size = hashlib.sha256(), 0
        with _storing(folder):
            make_folder(folder)
            self._part = folder / f".part-{uuid4().hex}"
            self._file = self._part.open("xb")

    def room(self) -> int:
        """Number of bytes that may still come."""
        return max(0, shutil.disk_usage(self._folder).free - LEFT_FREE)

    def write(self, data: bytes) -> None:
        """Write the next bytes. Raises `ResourceError`."""
        self._digest.update(data)
        self.size += len(data)
        with _storing(self._folder):
            self._file.write(data)

    def keep(self) -> Upload:
        """Keep the upload, of which every byte has arrived. Raises `ResourceError`."""
        upload = Upload(
            sha256=self._digest.hexdigest(), name=self._name, size=self.size, added=utc(self._wall()) or ""
        )
        with _storing(self._folder):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            write_durably(self._folder / f"{upload.sha256}.json", upload.model_dump_json().encode())
            self._part.replace(self._folder / upload.sha256)
            sync_folder(self._folder)
        return upload

    def drop(self) -> None:
        """Remove everything of it, unless it was kept."""
        with contextlib.suppress(OSError):  # on a full disk it cannot flush its buffer
            self._file.close()
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)


def uploads_folder(home: Home) -> Path:
    return home.folder("scheduler") / "uploads"


def as_sent(campaign: Campaign, folder: str, uploads: Path | None) -> Campaign:
    """`campaign` with its uploads named by hash, as its sender names them, if its paths start in the uploads folder."""
    if not folder or uploads is None or Path(folder) != uploads:
        return campaign
    models = tuple(
        entry.model_copy(update={"path": SCHEME + entry.path})
        if entry.path is not None and entry.package is None and not Path(entry.path).is_absolute()
        else entry
        for entry in campaign.models
    )
    return campaign.model_copy(update={"models": models})


class Uploads:
    """The uploads of one home. Blocking."""

    def __init__(self, home: Home, *, wall: Callable[[], float] = time.time) -> None:
        self.folder, self._wall = uploads_folder(home), wall

    def begin(self, name: str) -> Incoming:
        """Start a new upload with this `name`. Raises `ResourceError`."""
        self._tidy()
        return Incoming(self.folder, name, self._wall)

    def all(self) -> list[Upload]:
        """All uploads, sorted by hash."""
        names = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        matches = (self.find(name) for name in names if _HASH.fullmatch(name))
        return [upload for upload in matches if upload is not None]

    def find(self, sha256: str) -> Upload | None:
        """The upload with this hash."""
        if not _HASH.fullmatch(sha256) or not (self.folder / sha256).is_file():
            return None
        try:
            return Upload.model_validate_json((self.folder / f"{sha256}.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def remove(self, sha256: str) -> bool:
        """Remove the upload with this hash; False: there is none. Raises `ResourceError`."""
        if self.find(sha256) is None:
            return False
        with _storing(self.folder):
            (self.folder / f"{sha256}.json").unlink(missing_ok=True)
            (self.folder / sha256).unlink(missing_ok=True)
            sync_folder(self.folder)
        return True

    def _tidy(self) -> None:
        for part in self.folder.glob(".part-*"):
            with contextlib.suppress(OSError):
                if self._wall() - part.stat().st_mtime > STALE_S:
                    part.unlink()


def placed(campaign: Campaign, uploads: Uploads, *, allow_paths: bool) -> Campaign:
    """`campaign` with its uploads named by their places in the folder of `uploads`, from which its paths are to be read.

    Raises `CampaignError` for an upload that is not here, and for sources that a campaign from a network may not name unless `allow_paths`:
    files of this machine, and URLs of its own networks, including those that its devices would fetch.
    """
    if campaign.results is not None and not allow_paths:
        raise CampaignError(
            "results: a URL cannot be set over HTTP, since this machine would write there with its own keys",
            hint="submit it on the server: sark-node submit FILE; or start the server with --allow-paths",
        )
    models = tuple(_placed(entry, uploads, allow_paths=allow_paths) for entry in campaign.models)
    keys = [entry.key for entry in models]
    for entry in models:
        if keys.count(entry.key) > 1:
            raise entry.error(
                f"two models are called {safe_text(entry.label, 60)!r}", "give each a name: of its own"
            )
    return campaign.model_copy(update={"models": models})


def _placed(entry: ModelEntry, uploads: Uploads, *, allow_paths: bool) -> ModelEntry:
    path = entry.path or ""
    if not allow_paths:
        _refuse_inside(entry)
    data = None if entry.evaluate is None else entry.evaluate.data
    if data is not None and not (allow_paths and Path(data).is_absolute()):
        raise entry.error(
            f"{entry.title}: a campaign sent over HTTP cannot name a file on the server in evaluate.data",
            "submit it on the server: sark-node submit FILE; or start the server with --allow-paths, and write the absolute path",
        )
    if entry.package is not None:
        return entry
    if path.startswith(SCHEME):
        digest = path.removeprefix(SCHEME)
        upload = uploads.find(digest)
        if upload is None:
            raise entry.error(
                f"no model {safe_text(path, 80)} was uploaded here",
                "upload it: POST /api/v1/models?name=FILE; list the uploads: GET /api/v1/models",
            )
        return entry.model_copy(
            update={"path": digest, "sha256": entry.sha256 or digest, "name": entry.name or upload.name}
        )
    if not allow_paths and (path or (entry.url or "").lower().startswith("file:")):
        raise entry.error(
            f"{entry.title}: a campaign sent over HTTP cannot name files on the server",
            f"{_SEND}, and name it by its sha256:…; or give its https:// URL; or start the server with --allow-paths",
        )
    if path and not Path(path).is_absolute():
        raise entry.error(
            f"{entry.title}: the path is relative, but there is no campaign file that it is relative to",
            "write the absolute path",
        )
    return entry


def _refuse_inside(entry: ModelEntry) -> None:
    """Raise `CampaignError` for a URL of this machine's networks, and for a folder that is not a package though Python would find it."""
    if entry.url is not None and scheme_of(entry.url) in ("http", "https"):
        try:
            read_url(entry.url, OTHERS_URL_REACH)
        except Refused as exc:
            hint = exc.hint or f"{_SEND}; or start the server with --allow-paths"
            raise entry.error(f"{entry.title} cannot be fetched: {exc.what}", hint) from None
    if entry.package is not None:
        spec = package_spec(entry.package)
        if spec is not None and spec.origin is None:
            raise entry.error(
                f"{entry.title}: {entry.package} is a folder on the server, not a package",
                f"name an installed package, or {_SEND}",
            )

"""Models that a campaign names by URL: fetched here, once, when it is submitted. From then on each is its sha256, like all others.

    url ──▶ downloads/KEY/{part, note.json} ──▶ downloads/KEY/model ──▶ described, copied to the spool under its hash

What was fetched is kept for a day, so that `validate`, `plan` and `submit` fetch it once together; each time the server is asked whether
it is still the same. A download that was cut off goes on where it was, if the file is still the same one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TextIO

import trio

from protocol.errors import Refused, ResourceError, Unreachable
from protocol.values.requirement import show_size
from scheduler.campaign.model import ModelEntry
from scheduler.models.describe import Fetch
from scheduler.models.huggingface import Hub, from_hub
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.base.text import safe_text
from swarm.download.download import EDGE, MAX_SIZE, Edge, Progress, download
from swarm.download.response import FileChanged, ResponseHead
from swarm.download.urls import FOR_OWNER, UrlReach, read_hf, scheme_of

KEEP_S: Final = 86_400.0
LONGEST_S: Final = 6 * 3600.0
"""One download, however it goes."""
TRIES: Final = 4
AGAIN_S: Final = 2.0
_READ: Final = 4 * 1024**2

Show = Callable[[str, int, int], None]
"""(the model's name, bytes so far, bytes in all; 0: not known)"""


def downloader(
    home: Home,
    show: Show,
    *,
    reach: UrlReach = FOR_OWNER,
    edge: Edge = EDGE,
    hub: Hub = from_hub,
    limit: int = MAX_SIZE,
    again_s: float = AGAIN_S,
    wall: Callable[[], float] = time.time,
) -> Fetch:
    """What brings a campaign's models by URL on this home, each to a file of the cache. `reach`: which hosts they may name.

    It raises `CampaignError`, with the line of the model, where the URL gives none, and `ResourceError` where there is no room.
    Blocking: not for a trio loop.
    """

    def fetch(entry: ModelEntry) -> Path:
        assert entry.url is not None, "only entries with a URL are fetched"
        spooled = home.spool / (entry.sha256 or "-")
        if spooled.is_file():  # an earlier campaign fetched it; whoever describes it hashes it
            return spooled
        label = safe_text(entry.label, 60)
        try:
            if scheme_of(entry.url) == "hf":
                return hub(read_hf(entry.url))
            folder = home.cache / "downloads" / hashlib.sha256(entry.url.encode()).hexdigest()[:32]
            _tidy(folder.parent, folder.name, wall)
            with lock_folder(folder):
                one = _Download(entry, folder, reach, edge, limit, again_s, partial(show, entry.label))
                return trio.run(one.bring)
        except Unreachable as exc:
            raise entry.error(
                f"model {label!r} cannot be fetched now: {exc.what}", "try again; what came already is kept"
            ) from None
        except Refused as exc:
            raise entry.error(
                f"model {label!r} cannot be fetched: {exc.what}",
                exc.hint or "check the URL, or give its path",
            ) from None
        except OSError as exc:
            raise ResourceError(
                f"cannot keep the download of {label!r}: {exc.strerror or exc}", hint=f"look at {home.cache}"
            ) from None

    return fetch


class _Download:
    """One URL's folder, and the way to a whole file in it."""

    def __init__(
        self,
        entry: ModelEntry,
        folder: Path,
        reach: UrlReach,
        edge: Edge,
        limit: int,
        again_s: float,
        show: Progress,
    ) -> None:
        assert entry.url is not None
        self._url, self._sha256 = entry.url, entry.sha256
        self._model, self._part, self._note = folder / "model", folder / "part", folder / "note.json"
        self._reach, self._edge, self._limit = reach, edge, limit
        self._again_s, self._show = again_s, show

    async def bring(self) -> Path:
        with trio.move_on_after(LONGEST_S):
            if await self._still_good():
                return self._model
            self._model.unlink(missing_ok=True)
            for last in (*(False,) * (TRIES - 1), True):
                try:
                    await self._rest()
                    self._part.replace(self._model)
                    return self._model
                except FileChanged:
                    self._part.unlink(missing_ok=True)
                    if last:
                        raise
                except Unreachable:
                    if last:
                        raise
                    await trio.sleep(self._again_s)
        raise Unreachable(f"it was not here after {LONGEST_S / 3600:g} hours")

    async def _still_good(self) -> bool:
        """Whether what was fetched before is what the URL holds now: its last byte is asked for, if it is still the same version."""
        if not self._model.is_file():
            return False
        if self._sha256 is not None:
            return await trio.to_thread.run_sync(_sha256_of, self._model) == self._sha256
        tag, size = self._tag(), self._model.stat().st_size
        if not tag or not size:
            return False
        try:
            await self._from(size - 1, tag, size, lambda data: None, lambda head: None)
        except FileChanged:
            return False
        return True

    async def _rest(self) -> None:
        """What of the file is missing. Of a server that names no versions only a file whose hash is known may go on."""
        tag = self._tag()
        have = self._part.stat().st_size if self._part.is_file() else 0
        if not tag and self._sha256 is None:
            have = 0
        with self._part.open("r+b" if have else "wb") as file:
            file.seek(have)
            file.truncate()

            def heard(head: ResponseHead) -> None:
                self._make_sure_of_room(head, have)
                self._note.write_text(json.dumps({"tag": head.tag}))

            await self._from(have, tag if have else "", None, file.write, heard)

    async def _from(
        self,
        offset: int,
        tag: str,
        size: int | None,
        sink: Callable[[bytearray], object],
        heard: Callable[[ResponseHead], object],
    ) -> None:
        await download(
            self._url,
            self._reach,
            sink=sink,
            offset=offset,
            tag=tag,
            size=size,
            limit=self._limit,
            progress=self._show,
            on_head=heard,
            edge=self._edge,
        )

    def _make_sure_of_room(self, head: ResponseHead, have: int) -> None:
        """For the download, and for the campaign's own copy of it."""
        if head.total is None:
            return
        need, free = 2 * head.total - have, shutil.disk_usage(self._part.parent).free
        if need > free:
            raise ResourceError(
                f"{head.url.shown} holds {head.total:,} bytes; {need:,} are needed on the disk, {free:,} are free",
                hint="free some space, or put the cache elsewhere: --home",
            )

    def _tag(self) -> str:
        try:
            told = json.loads(self._note.read_text())["tag"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return told if isinstance(told, str) else ""


class DownloadProgress:
    """How a download goes, on a stream: on a terminal one line that is written over, else a line now and then."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._every = 0.2 if stream.isatty() else 10.0
        self._next = 0.0

    def __call__(self, name: str, done: int, total: int) -> None:
        over = done == total
        if not over and self._clock() < self._next:
            return
        self._next = self._clock() + self._every
        of = f" of {show_size(total)}, {done * 100 // total} %" if total else ""
        line = f"fetching {safe_text(name, 60)}: {show_size(done)}{of}"
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{line}" + ("\n" if over else ""))
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tidy(folder: Path, but: str, wall: Callable[[], float]) -> None:
    """Downloads that nobody has touched for a day go. One that is in use, or cannot be removed, is left for the next time."""
    for old in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError, ResourceError):
            newest = max((file.stat().st_mtime for file in old.iterdir()), default=0.0)
            if old.name != but and wall() - newest > KEEP_S:
                with lock_folder(old):
                    for name in ("model", "part", "note.json"):
                        (old / name).unlink(missing_ok=True)

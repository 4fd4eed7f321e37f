"""Models named by URL: those of a campaign, fetched once at submission, and those of an adopted campaign that no device has.

    url ──▶ downloads/KEY/{part, note.json} ──▶ downloads/KEY/model ──▶ described, copied to the spool under its hash

A download is kept for a day, so that `validate`, `plan` and `submit` share it; each asks the server whether the file has changed. An
interrupted download resumes if the file has not changed. Files at Hugging Face come through `huggingface_hub`, an extra.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

import structlog
import trio

from protocol.errors import Refused, ResourceError, Unreachable
from protocol.values.requirement import show_size
from protocol.values.task import Model
from protocol.words import Reason
from scheduler.campaign.model import ModelEntry
from scheduler.models.describe import Fetch, sha256_of
from scheduler.models.spool import receive
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.base.text import safe_text
from swarm.base.threads import HASHING
from swarm.download.download import EDGE, MAX_SIZE, Edge, Progress, download
from swarm.download.response import FileChanged, ResponseHead
from swarm.download.urls import OTHERS_URL_REACH, OWNER_URL_REACH, HfFile, UrlReach, read_hf, scheme_of

KEEP_S: Final = 86_400.0
MAX_DOWNLOAD_S: Final = 6 * 3600.0
MAX_ADOPTED_DOWNLOAD_S: Final = 3600.0
TRIES: Final = 4
RETRY_DELAY_S: Final = 2.0
INSTALL: Final = "python -m pip install 'sark-node[hf]', or give the https: URL of the file"

Show = Callable[[str, int, int], None]
"""(name of the model, bytes so far, total bytes; 0: unknown)"""

log = structlog.get_logger("sark.adopt")


def downloader(
    home: Home,
    show: Show,
    *,
    reach: UrlReach = OWNER_URL_REACH,
    limit: int = MAX_SIZE,
    retry_delay_s: float = RETRY_DELAY_S,
    wall: Callable[[], float] = time.time,
) -> Fetch:
    """A `Fetch` that downloads into this home's cache. `reach`: the hosts that URLs may name.

    It raises `CampaignError`, with the line of the model, when the URL provides no model, and `ResourceError` when the disk is full.
    Blocking: not for a trio loop.
    """

    def fetch(entry: ModelEntry) -> Path:
        assert entry.url is not None, "only entries with a URL are fetched"
        spooled = home.spool / (entry.sha256 or "-")
        if spooled.is_file():  # from an earlier campaign; describing it checks the hash
            return spooled
        try:
            url = entry.url
            if scheme_of(url) == "hf":
                if reach == OWNER_URL_REACH:
                    return from_hub(read_hf(url))
                # Not through the library, which uses this user's login and has no limits.
                url = read_hf(url).url
            folder = home.cache / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:32]
            _tidy(folder.parent, folder.name, wall)
            with lock_folder(folder):
                one = _Download(
                    url, entry.sha256, folder, reach, limit, retry_delay_s, partial(show, entry.label)
                )
                return trio.run(one.run)
        except Unreachable as exc:
            raise entry.error(
                f"{entry.title} cannot be fetched now: {exc.what}", "try again: the download resumes"
            ) from None
        except Refused as exc:
            raise entry.error(
                f"{entry.title} cannot be fetched: {exc.what}",
                exc.hint or "check the URL, or give its path",
            ) from None
        except OSError as exc:
            raise ResourceError(
                f"cannot store the download of {entry.title}: {exc.strerror or exc}",
                hint=f"check the disk and {home.cache}",
            ) from None

    return fetch


class _Download:
    """One URL's folder in the cache."""

    def __init__(
        self,
        url: str,
        sha256: str | None,
        folder: Path,
        reach: UrlReach,
        limit: int,
        retry_delay_s: float,
        show: Progress,
    ) -> None:
        self._url, self._sha256 = url, sha256
        self._model, self._part, self._note = folder / "model", folder / "part", folder / "note.json"
        self._retry_delay_s = retry_delay_s
        self._download = partial(download, self._url, reach, limit=limit, progress=show)

    async def run(self) -> Path:
        with trio.move_on_after(MAX_DOWNLOAD_S):
            if await self._is_current():
                return self._model
            self._model.unlink(missing_ok=True)
            for last in (*(False,) * (TRIES - 1), True):
                try:
                    await self._resume()
                    self._part.replace(self._model)
                    return self._model
                except FileChanged:
                    self._part.unlink(missing_ok=True)
                    if last:
                        raise
                except Unreachable:
                    if last:
                        raise
                    await trio.sleep(self._retry_delay_s)
        raise Unreachable(f"the download timed out after {MAX_DOWNLOAD_S / 3600:g} h")

    async def _is_current(self) -> bool:
        """Whether the cached file is still what the URL provides: by its hash, or by requesting the last byte of the same version."""
        if not self._model.is_file():
            return False
        if self._sha256 is not None:
            return await HASHING.run(sha256_of, self._model) == self._sha256
        tag, size = self._tag(), self._model.stat().st_size
        if not tag or not size:
            return False
        try:
            await self._download(sink=lambda data: None, offset=size - 1, tag=tag, size=size)
        except FileChanged:
            return False
        return True

    async def _resume(self) -> None:
        """Fetch the rest of the file. Without a version tag from the server, only a file with a known hash resumes."""
        tag = self._tag()
        offset = self._part.stat().st_size if self._part.is_file() else 0
        if not tag and self._sha256 is None:
            offset = 0
        with self._part.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.truncate()

            def on_head(head: ResponseHead) -> None:
                self._check_space(head, offset)
                self._note.write_text(json.dumps({"tag": head.tag}))

            await self._download(
                sink=file.write, offset=offset, tag=tag if offset else "", size=None, on_head=on_head
            )

    def _check_space(self, head: ResponseHead, have: int) -> None:
        """Check that there is space for the download and for the campaign's copy. Raises `ResourceError`."""
        if head.total is None:
            return
        need, free = 2 * head.total - have, shutil.disk_usage(self._part.parent).free
        if need > free:
            raise ResourceError(
                f"{head.url.shown} is {head.total:,} bytes; {need:,} are needed on the disk, {free:,} are free",
                hint="free some space, or put the cache elsewhere: --home",
            )

    def _tag(self) -> str:
        try:
            tag = json.loads(self._note.read_text())["tag"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return tag if isinstance(tag, str) else ""


class DownloadProgress:
    """Shows a download on a stream: on a terminal as one line that is overwritten, else as a line every 10 s."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._interval_s = 0.2 if stream.isatty() else 10.0
        self._next = 0.0

    def __call__(self, name: str, done: int, total: int) -> None:
        complete = done == total
        if not complete and self._clock() < self._next:
            return
        self._next = self._clock() + self._interval_s
        of = f" of {show_size(total)}, {done * 100 // total} %" if total else ""
        line = f"fetching {safe_text(name, 60)}: {show_size(done)}{of}"
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{line}" + ("\n" if complete else ""))
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()


def _tidy(folder: Path, except_for: str, wall: Callable[[], float]) -> None:
    """Remove downloads older than a day. A download that is in use, or cannot be removed, stays until the next time."""
    for old in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError, ResourceError):
            newest = max((file.stat().st_mtime for file in old.iterdir()), default=0.0)
            if old.name != except_for and wall() - newest > KEEP_S:
                with lock_folder(old):
                    for name in ("model", "part", "note.json"):
                        (old / name).unlink(missing_ok=True)


async def fetch_adopted(url: str, model: Model, folder: Path, edge: Edge = EDGE) -> bool:
    """Fetch the model of an adopted campaign into the spool; False when the URL does not provide it. Raises `ResourceError`.

    Somebody else wrote the URL, so it may only lead to the internet.
    """

    async def fetch(sink: Callable[[bytearray], object]) -> None:
        with trio.move_on_after(MAX_ADOPTED_DOWNLOAD_S):
            await download(url, OTHERS_URL_REACH, sink=sink, size=model.size, edge=edge)

    try:
        await receive(model, folder, fetch)
    except (Unreachable, Refused) as exc:
        log.info("model.not-by-url", model=model.name, why=exc.what)
        return False
    return True


# -- Hugging Face -----------------------------------------------------------------------------------------------------------------


def from_hub(file: HfFile) -> Path:
    """The file, from the library's cache or the network. Blocking. Raises `Refused` with the first line of the library's error."""
    try:
        hub: Any = import_module("huggingface_hub")  # takes half a second
    except ImportError:
        raise Refused(
            "hf:// needs the package huggingface_hub", reason=Reason.UNKNOWN, hint=INSTALL
        ) from None
    try:
        return Path(hub.hf_hub_download(file.repo, file.file, revision=file.revision))
    except (OSError, ValueError, RuntimeError) as exc:  # bases of its errors
        detail = str(exc).strip() or type(exc).__name__
        raise Refused(
            f"{file.repo} at Hugging Face: {detail.splitlines()[0][:300]}",
            reason=Reason.UNKNOWN,
            hint="check organisation, repository, file and revision; for a private repository: hf auth login",
        ) from None

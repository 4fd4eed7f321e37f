"""Models by their sha256, on this device's disk.

    async with cache.using(model, source) as path: …      verified, and not evicted while the block runs

One download serves all runs that want a model at the same time. A download that a crash cut short is resumed. The whole file is verified by
its hash before it gets its name. When space is short, the least recently used models are evicted, except those in use or pinned by the
owner. A file that changed since it was verified is hashed again. `model_files.py` has the folder's other files and the owner's operations.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from node.store import bundles, model_files
from node.store.model_files import ModelAccess
from node.store.model_uses import ModelUses
from node.store.partial import PartialFile, remove_partial
from protocol.errors import ProtocolError, Refused, RemoteProtocolError, RunError, Unreachable
from protocol.values.requirement import show_size
from protocol.values.task import Model
from protocol.words import Reason
from swarm.base.durable import make_folder, unusable, write_atomically
from swarm.base.threads import DISK, HASHING

DEFAULT_CAP: Final = 20 * 1024**3
MARGIN: Final = 64 * 1024**2
"""Bytes of free disk space left for other programs."""
ROOM_AHEAD: Final = 16 * 1024**2
"""Bytes of a download for which room is made ahead of their arrival."""
_HEX: Final = frozenset("0123456789abcdef")

log = structlog.get_logger("sark.cache")

Progress = Callable[[int, int], None]
Source = Callable[[int, PartialFile, Progress], Awaitable[object]]
"""Fetches the missing part of a model: (offset, partial, progress). A plain source calls `partial`, in a worker thread, with the bytes from
`offset` on. A source of pieces puts them into `partial` in any order."""


def default_cap(available: int) -> int:
    """20 GiB, or half of `available` if that is less. `available`: bytes free on the disk, and those that the models here already take."""
    return min(DEFAULT_CAP, available // 2)


@dataclass(frozen=True, slots=True)
class _FileState:
    """A file's state when it was verified, and when it was last used (a counter, not a clock)."""

    size: int
    mtime_ns: int
    ctime_ns: int
    """The only file time that nobody can set: it changes whenever the content or another time changes."""
    inode: int
    used: int


class ModelCache:
    """One folder of models, for one process at a time."""

    def __init__(
        self, folder: Path, cap: int | None = None, *, free: Callable[[Path], int] | None = None
    ) -> None:
        """Open the cache (blocking, quick). `cap`: limit in bytes; `free`: returns the free bytes of the disk. Raises `ResourceError`."""
        self._folder = folder
        self._free = free or (lambda path: shutil.disk_usage(path).free)
        self._locks: dict[str, trio.Lock] = {}
        self._pins: Counter[str] = Counter()
        self._downloads: dict[str, PartialFile] = {}
        self._fetched_for: dict[str, str] = {}
        """For each model downloaded since this process started: the principal for whom all of it was fetched."""
        self.access = ModelAccess(folder / "access.json", self.has)
        self.uses = ModelUses(folder / "uses.json")
        try:
            make_folder(folder)
            if (
                hasattr(os, "geteuid") and os.geteuid() == 0
            ):  # the user `nobody` then runs the models and must reach them; it cannot list them
                folder.chmod(0o711)
            self._states = self._read_index()
            self._cap = cap if cap is not None else default_cap(self._free(folder) + self.used_bytes)
        except OSError as exc:
            raise unusable(folder, exc) from exc

    # -- reading ---------------------------------------------------------------------------------------------------------

    def has(self, sha256: str) -> bool:
        """Whether a model is here, verified and unchanged since. Does not hash."""
        state = self._states.get(sha256)
        return state is not None and _file_state(self._path(sha256), state.used) == state

    def find(self, sha256: str) -> Path | None:
        """The file of a model, for a peer; None unless the cache `has` it. It may be evicted meanwhile; an open file stays readable."""
        return self._path(sha256) if self.has(sha256) else None

    @property
    def fetching(self) -> bool:
        return bool(self._downloads)

    @property
    def in_use(self) -> bool:
        """Whether a run uses models here, including in the gap between two of its launches."""
        return bool(self._pins)

    def download(self, sha256: str) -> PartialFile | None:
        return self._downloads.get(sha256)

    def fetched_for(self, sha256: str) -> str | None:
        """The one principal for whom every piece of a model was fetched since this process started; None: there is none."""
        partial = self._downloads.get(sha256)
        return partial.principal if partial is not None else self._fetched_for.get(sha256)

    def recent(self, count: int) -> tuple[str, ...]:
        """Hashes of stored models, most recently used first."""
        newest = sorted(self._states, key=lambda sha: -self._states[sha].used)
        return tuple(newest[:count])

    @property
    def used_bytes(self) -> int:
        """Bytes of all models, without partial downloads."""
        return sum(map(self._size_of, self._states))

    @contextlib.asynccontextmanager
    async def using(
        self, model: Model, source: Source, progress: Progress = lambda done, total: None
    ) -> AsyncIterator[Path]:
        """The verified file, or the unpacked folder of a bundle: read-only, not to be changed, and not evicted until the block ends.

        Raises `RunError` (disk-full, fetch-failed, wrong-hash, broken-model).
        """
        if len(model.sha256) != 64 or not set(model.sha256) <= _HEX:
            raise ValueError("not a sha256")
        self._pins[model.sha256] += 1
        try:
            lock = self._locks.setdefault(model.sha256, trio.Lock())
            async with lock:  # the next run finds the model ready, or resumes the download that was stopped
                path = await self._provide(model, source, progress)
                with contextlib.ExitStack() as held:
                    with self._disk_errors(model):  # the owner may have removed the model just now
                        held.enter_context(model_files.in_use(path))
                    if await DISK.run(bundles.is_bundle, path):
                        path = await self._unpack(model, path)
                    holding = held.pop_all()
            with holding:
                yield path
        finally:
            self._pins[model.sha256] -= 1
            if not self._pins[model.sha256]:
                del self._pins[model.sha256]
                self._locks.pop(model.sha256, None)

    # -- fetching --------------------------------------------------------------------------------------------------------

    async def _provide(self, model: Model, source: Source, progress: Progress) -> Path:
        path = self._path(model.sha256)
        if self.has(model.sha256) or await HASHING.run(_hash_file, path) == model.sha256:
            self._touch(model.sha256)
            return path
        if self._states.pop(model.sha256, None) is not None:
            log.warning("model.damaged", sha256=model.sha256, action="fetched again")
        with self._disk_errors(model):
            await DISK.run(_unlink, path)
        for last in (False, True):
            if await self._download(model, source, progress):
                self._touch(model.sha256)
                return path
            log.warning("model.wrong_hash", sha256=model.sha256, again=not last)
        why = f"the downloaded file did not have the hash {model.sha256[:12]}…, in two attempts"
        raise _failure(model, Reason.WRONG_HASH, why)

    async def _unpack(self, model: Model, bundle: Path) -> Path:
        """The folder of a bundle. An existing folder is read and hashed again before each use, because anybody may have changed it."""
        folder = self._folder_of(model.sha256)
        try:
            with self._disk_errors(model):
                if not await DISK.run(bundles.is_unpacked, bundle, folder):
                    await DISK.run(bundles.remove, folder)
                    await self._make_room(model, model.size, 0)
                    await HASHING.run(bundles.unpack, bundle, folder)
        except RemoteProtocolError as exc:
            raise RunError(f"{model.name}: {exc.what}", reason=Reason.BROKEN_MODEL, permanent=True) from exc
        return folder

    async def _download(self, model: Model, source: Source, progress: Progress) -> bool:
        """Fetch the missing part and give the file its name. Returns False if the content was wrong and was discarded."""
        path = model_files.file_of(self._folder, model.sha256, "part")
        try:
            with self._disk_errors(model):
                return await self._fetch(model, source, progress, path)
        except RunError as exc:
            if exc.reason is Reason.DISK_FULL and isinstance(exc.__cause__, OSError):
                with trio.CancelScope(shield=True), contextlib.suppress(OSError):
                    await DISK.run(remove_partial, path)
            raise
        except (Unreachable, Refused, ProtocolError) as exc:
            raise _failure(model, Reason.FETCH_FAILED, exc.what) from exc

    async def _fetch(self, model: Model, source: Source, progress: Progress, path: Path) -> bool:
        partial = await DISK.run(PartialFile, path, model.size)
        self._downloads[model.sha256] = partial
        try:
            await self._check_room(model, partial.size)
            await self._make_room(model, partial.size, partial.size)
            if partial.size < model.size:
                await self._bring(model, partial, source, progress)
            if partial.size != model.size:
                why = f"only {partial.size} of {model.size} bytes arrived"
                raise _failure(model, Reason.FETCH_FAILED, why)
            if await HASHING.run(partial.digest) != model.sha256:
                await DISK.run(remove_partial, path)
                return False
            await DISK.run(partial.keep, self._path(model.sha256))
            if partial.principal is not None:
                self._fetched_for[model.sha256] = partial.principal
            await DISK.run(model_files.describe, self._folder, model.sha256, model.name, partial.origin)
            return True
        finally:
            del self._downloads[model.sha256]
            partial.close()

    @contextlib.contextmanager
    def _disk_errors(self, model: Model) -> Iterator[None]:
        """Turns an `OSError` of the block into a `RunError`."""
        try:
            yield
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _failure(model, Reason.DISK_FULL, f"the disk of {self._folder} is full") from exc
            why = f"cannot write to the model cache {self._folder}: {exc.strerror or exc}"
            raise _failure(model, Reason.FETCH_FAILED, why) from exc

    async def _bring(self, model: Model, partial: PartialFile, source: Source, progress: Progress) -> None:
        """Have `source` fetch the missing part. Room is made only as bytes arrive, so that a task that merely claims to have a large model
        evicts nothing.
        """
        granted = 0
        failure: RunError | None = None

        def ensure_room(size: int) -> None:
            nonlocal granted, failure
            if size > granted:
                wanted = min(model.size, size + ROOM_AHEAD)
                try:
                    trio.from_thread.run(self._make_room, model, wanted, partial.size)
                except RunError as exc:
                    failure = exc
                    raise
                granted = wanted

        partial.ensure_room = ensure_room
        try:
            await source(partial.offset, partial, progress)
        except Exception:
            if failure is not None:
                raise failure from None
            raise

    async def _check_room(self, model: Model, stored: int) -> None:
        """Raises `RunError` if there cannot be room for the model. Evicts nothing."""
        if model.size > self._cap:
            why = f"it is larger ({show_size(model.size)}) than the model cache ({show_size(self._cap)})"
            raise _failure(model, Reason.DISK_FULL, why)
        self._rescan()
        await DISK.run(model_files.tidy, self._folder, [model.sha256, *self._pins])
        excess, short = self._lack(model.size, stored)
        idle = sum(map(self._size_of, self._idle()))
        if max(excess, short) > idle:
            raise self._no_room(model, excess > idle, short - idle)

    async def _make_room(self, model: Model, wanted: int, stored: int) -> None:
        """Evict the least recently used models until `wanted` bytes of the model fit, of which `stored` are already here."""
        self._rescan()
        while True:
            excess, short = self._lack(wanted, stored)
            if excess <= 0 and short <= 0:
                return
            if not await self._evict_one():
                raise self._no_room(model, excess > 0, short)

    def _lack(self, wanted: int, stored: int) -> tuple[int, int]:
        """Bytes above the cap, and bytes that the disk lacks, for `wanted` bytes of which `stored` are already here."""
        return self.used_bytes + wanted - self._cap, wanted - stored + MARGIN - self._free(self._folder)

    def _no_room(self, model: Model, full: bool, short: int) -> RunError:
        """`full`: the model does not fit under the cap; else the disk lacks `short` bytes."""
        pinned = any(model_files.pinned(self._folder, sha) for sha in self._states)
        why = f"models in use{' or pinned' if pinned else ''} fill the cache"
        if not full:
            why = f"{show_size(short)} more are needed"
        return _failure(model, Reason.DISK_FULL, f"no room in {self._folder}: {why}")

    def _idle(self, but: Collection[str] = ()) -> list[str]:
        """The models that may be evicted."""
        return [
            sha
            for sha in self._states
            if not self._pins[sha] and sha not in but and not model_files.pinned(self._folder, sha)
        ]

    def _size_of(self, sha256: str) -> int:
        """Bytes of a model. An unpacked bundle counts twice."""
        return self._states[sha256].size * (1 + self._folder_of(sha256).exists())

    async def _evict_one(self, but: Collection[str] = ()) -> bool:
        """Evict the least recently used model that nobody needs. Returns False if there is none."""
        idle = self._idle(but)
        if not idle:
            return False
        oldest = min(idle, key=lambda sha: self._states[sha].used)
        log.info("model.evicted", sha256=oldest, bytes=self._states[oldest].size)
        del self._states[oldest]
        await DISK.run(model_files.forget, self._folder, oldest)
        self._write_index()
        return True

    # -- the owner's changes -----------------------------------------------------------------------------------------------

    def changed(self) -> bool:
        """Whether the owner has added a model that is not verified yet. Quick."""
        self._rescan()
        return bool(self._added())

    def _added(self) -> list[str]:
        return [sha for sha, state in self._states.items() if state.inode < 0 and not self._pins[sha]]

    async def verify_added(self) -> None:
        """Verify models that the owner has added, and evict other models if the cache is now too large."""
        added = self._added()
        for sha in added:
            if await HASHING.run(_hash_file, self._path(sha)) == sha:
                self._touch(sha)
                log.info("model.verified", sha256=sha)
            else:
                log.warning("model.damaged", sha256=sha, action="removed")
                self._states.pop(sha, None)
                with contextlib.suppress(OSError):
                    await DISK.run(model_files.forget, self._folder, sha)
        while self.used_bytes > self._cap and await self._evict_one(added):
            pass

    async def forget(self, principal: str, campaign: str) -> tuple[int, int]:
        """Remove the models that only this campaign used, except those that the owner added or pinned. Returns how many, and their bytes.

        Raises `ResourceError`.
        """
        removed, size = 0, 0
        for sha in self.uses.only_of(principal, campaign):
            taken = await DISK.run(model_files.remove_brought, self._folder, sha)
            if taken is not None:
                self._states.pop(sha, None)
                self.access.forget(sha)
                self._write_index()
                log.info("model.forgotten", sha256=sha, campaign=campaign, bytes=taken)
                removed, size = removed + 1, size + taken
        await DISK.run(self.uses.end, principal, campaign)  # last: after a crash the scheduler asks again
        return removed, size

    # -- the index -------------------------------------------------------------------------------------------------------

    def _path(self, sha256: str) -> Path:
        return model_files.file_of(self._folder, sha256)

    def _folder_of(self, sha256: str) -> Path:
        return model_files.file_of(self._folder, sha256, "folder")

    def _touch(self, sha256: str) -> None:
        used = 1 + max((state.used for state in self._states.values()), default=0)
        state = _file_state(self._path(sha256), used)
        if state is not None:
            self._states[sha256] = state
            self._write_index()
            model_files.used(self._folder, sha256)

    def _read_index(self) -> dict[str, _FileState]:
        """The states of models that earlier processes verified. Models whose entries cannot be read are verified again when needed."""
        try:
            index = json.loads((self._folder / "index.json").read_bytes())
            states = {sha: _FileState(**entry) for sha, entry in index.items()}
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            states = {}
        return self._matching_disk(states)

    def _rescan(self) -> None:
        """Notice models that others have added or removed."""
        self._states = self._matching_disk(self._states)

    def _matching_disk(self, states: dict[str, _FileState]) -> dict[str, _FileState]:
        files = {path.stem: path for path in self._folder.glob("*.model") if len(path.stem) == 64}
        for sha, path in files.items():
            if sha not in states:  # counts against the cap; the invalid inode makes the first use hash it
                with contextlib.suppress(FileNotFoundError):
                    states[sha] = _FileState(path.stat().st_size, 0, 0, -1, 0)
        return {sha: entry for sha, entry in states.items() if sha in files}

    def _write_index(self) -> None:
        """Write the index without forcing it to disk: if a crash loses it, models are only hashed again."""
        path = self._folder / "index.json"
        try:
            write_atomically(
                path, json.dumps({sha: asdict(state) for sha, state in self._states.items()}).encode()
            )
        except OSError as exc:
            log.warning("cache.index_not_written", why=exc.strerror or str(exc))


def _file_state(path: Path, used: int) -> _FileState | None:
    try:
        info = path.lstat()
    except OSError:
        return None
    return _FileState(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, used)


def _hash_file(path: Path) -> str:
    """The file's sha256; empty: the file cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if os.name == "nt":
            path.chmod(0o600)
        path.unlink()


def _failure(model: Model, reason: Reason, why: str) -> RunError:
    hint = "free some space on this device" if reason is Reason.DISK_FULL else ""
    return RunError(f"{model.name}: {why}", reason=reason, permanent=False, hint=hint)

"""The files in a folder of models, and the owner's operations on them, which also work while the worker runs.

    HASH.model    the bytes, read-only          HASH.about    its name and origin; the file's time is when the model was last used
    HASH.pin      its owner pinned it           HASH.part     a partial download           HASH.folder    an unpacked bundle

The worker reads these files whenever it needs them. A model in use is locked (shared); it is removed only under an exclusive lock. Nothing
outside the folder is ever changed: added models are copied.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import structlog

from node.store import bundles
from node.store.files import MODEL_FILE
from node.store.partial import remove_partial
from protocol.errors import ResourceError, SettingsError
from protocol.values.requirement import show_size
from swarm.base.durable import (
    make_folder,
    remove_durably,
    sync_folder,
    unusable,
    write_atomically,
    write_durably,
)
from swarm.base.locks import lock_open_file
from swarm.base.text import ascii_line
from swarm.blobs.bundles import contents

POSIX: Final = os.name == "posix"
SHORTEST: Final = 6
"""Digits of a hash that suffice to name a model."""
MAX_ABOUT: Final = 4096
ADDED: Final = "added from "
"""Beginning of the origin of a model that the owner added."""
_HEX: Final = frozenset("0123456789abcdef")


FileKind = Literal["model", "about", "pin", "part", "folder"]


def file_of(folder: Path, sha256: str, kind: FileKind = "model") -> Path:
    """One of a model's files, or the folder of an unpacked bundle."""
    return folder / f"{sha256}.{kind}"


def pinned(folder: Path, sha256: str) -> bool:
    return file_of(folder, sha256, "pin").exists()


def describe(folder: Path, sha256: str, name: str, origin: str) -> None:
    """Store a model's name and origin, for people to read. Raises `OSError`."""
    about = json.dumps({"name": ascii_line(name), "from": ascii_line(origin)})
    write_atomically(file_of(folder, sha256, "about"), about.encode())


def used(folder: Path, sha256: str) -> None:
    """Note that a model is used now. Does nothing for a model without an `.about` file."""
    with contextlib.suppress(OSError):
        os.utime(file_of(folder, sha256, "about"))


@contextlib.contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Lock the file (shared) for the block. Raises `OSError` if it does not exist (any more)."""
    with path.open("rb") as file:
        lock_open_file(file, shared=True)
        path.stat()  # the file may have been removed in between
        yield


def forget(folder: Path, sha256: str) -> None:
    """Remove a model and its files except the pin. Raises `OSError`."""
    path = file_of(folder, sha256)
    with contextlib.suppress(FileNotFoundError):
        if not POSIX:
            path.chmod(0o600)
        path.unlink()
    bundles.remove(file_of(folder, sha256, "folder"))
    file_of(folder, sha256, "about").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One model. `size`: in bytes; `used`: on the wall clock, in seconds, None: unknown."""

    sha256: str
    size: int
    name: str = ""
    origin: str = ""
    used: float | None = None
    pinned: bool = False
    arriving: bool = False
    """It is a partial download; `size` counts the bytes that have arrived."""


def listing(folder: Path) -> tuple[ModelFile, ...]:
    """All models, the most recently used first. Raises `ResourceError`."""
    models: list[ModelFile] = []
    try:
        for path in folder.glob("*.model") if folder.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                models.append(_read_model(folder, path))
        for path in folder.glob("*.part") if folder.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                size = min(info.st_size, info.st_blocks * 512) if POSIX else info.st_size
                models.append(ModelFile(path.stem, size, used=info.st_mtime, arriving=True))
    except OSError as exc:
        raise unusable(folder, exc) from exc
    return tuple(sorted(models, key=lambda each: (-(each.used or 0.0), each.sha256)))


def _read_model(folder: Path, path: Path) -> ModelFile:
    sha256, when = path.stem, None
    about: dict[str, object] = {}
    with contextlib.suppress(OSError, ValueError):
        with file_of(folder, sha256, "about").open("rb") as file:
            when = os.fstat(file.fileno()).st_mtime
            read = json.loads(file.read(MAX_ABOUT))
        about = read if isinstance(read, dict) else {}
    return ModelFile(
        sha256,
        path.stat().st_size,
        ascii_line(str(about.get("name", ""))),
        ascii_line(str(about.get("from", ""))),
        when,
        pinned(folder, sha256),
    )


def find(folder: Path, word: str) -> ModelFile:
    """The one model with this hash, beginning of a hash, or name. Raises `SettingsError` if none or several match."""
    models = [each for each in listing(folder) if not each.arriving]
    plain = word.strip().lower().removesuffix("…")
    by_hash = len(plain) >= SHORTEST and set(plain) <= _HEX
    matches = [each for each in models if (by_hash and each.sha256.startswith(plain)) or each.name == word]
    if len(matches) == 1:
        return matches[0]
    if matches:
        several = ", ".join(f"{each.sha256[:16]}… ({each.name or 'no name'})" for each in matches[:4])
        raise SettingsError(
            f"{word!r} matches {len(matches)} models here: {several}", hint="give more digits of the hash"
        )
    raise SettingsError(
        f"no model {word!r} here",
        hint="list them: sark-node models; give a name, or at least six digits of a hash",
    )


def add(folder: Path, source: Path, *, room: int) -> ModelFile:
    """Copy a model's file or folder in, under its hash. `room`: bytes that it may take. A model that is here already stays unchanged.

    Raises `ResourceError`, or `SettingsError` if `source` is no model. The user's file is only read.
    """
    fresh = folder / f".adding.{os.getpid()}.{secrets.token_hex(4)}"
    digest, size = hashlib.sha256(), 0
    try:
        make_folder(folder)
        with fresh.open("xb") as writer:
            for piece in contents(source):
                size += len(piece)
                if size > room:
                    raise ResourceError(
                        f"{source} does not fit: there is room for {show_size(max(room, 0))}",
                        hint="remove others first: sark-node models remove HASH",
                    )
                digest.update(piece)
                writer.write(piece)
            writer.flush()
            os.fsync(writer.fileno())
        if size == 0:
            raise SettingsError(f"{source} is empty", hint="give a model's file or folder")
        sha256 = digest.hexdigest()
        describe(folder, sha256, source.name, f"{ADDED}{source.resolve()}")
        if not file_of(folder, sha256).exists():
            fresh.chmod(MODEL_FILE)
            fresh.replace(file_of(folder, sha256))
            sync_folder(folder)
        return _read_model(folder, file_of(folder, sha256))
    except ValueError as exc:
        raise SettingsError(f"{source}: {exc}", hint="give a model's file or folder") from None
    except OSError as exc:
        raise ResourceError(
            f"cannot copy {source} to {folder}: {exc.strerror or exc}", hint="check the path, and the disk"
        ) from exc
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def remove(folder: Path, model: ModelFile) -> None:
    """Remove a model. Raises `ResourceError` if a run is using it, or it cannot be removed."""
    try:
        with file_of(folder, model.sha256).open("rb") as file:
            if not lock_open_file(file, shared=False):
                raise ResourceError(
                    f"{model.name or model.sha256[:16]} is in use by a run",
                    hint="try again when it has ended",
                )
            if POSIX:
                forget(folder, model.sha256)
        if not POSIX:  # an open file cannot be removed on Windows, so openness is a lock too
            forget(folder, model.sha256)
        file_of(folder, model.sha256, "pin").unlink(missing_ok=True)
        sync_folder(folder)
    except OSError as exc:
        raise unusable(folder, exc) from exc


def remove_brought(folder: Path, sha256: str) -> int | None:
    """Remove a model, or a partial download of it, that was fetched for a campaign. Returns its bytes; None: there is none, or it stays
    because the owner added or pinned it. Raises `ResourceError`, also while a run is using it.
    """
    try:
        if (part := file_of(folder, sha256, "part")).exists():
            remove_partial(part)
        model = _read_model(folder, file_of(folder, sha256))
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise unusable(folder, exc) from exc
    if model.pinned or model.origin.startswith(ADDED):
        return None
    remove(folder, model)
    return model.size


def set_pin(folder: Path, model: ModelFile, on: bool) -> None:
    """Pin a model, or allow its eviction when space is short. Raises `ResourceError`."""
    path = file_of(folder, model.sha256, "pin")
    try:
        if on:
            write_durably(path, b"")
        else:
            remove_durably(path)
    except OSError as exc:
        raise unusable(folder, exc) from exc


def tidy(folder: Path, keep: Sequence[str]) -> None:
    """Remove partial downloads except those of the models in `keep`, and the files of models that are gone."""
    for part in folder.glob("*.part"):
        if part.stem not in keep:
            remove_partial(part)
    for path in folder.glob("*.pieces"):
        if path.stem not in keep and not file_of(folder, path.stem, "part").exists():
            path.unlink(missing_ok=True)
    for path in (*folder.glob("*.folder"), *folder.glob("*.unpacking")):
        if path.stem not in keep and not file_of(folder, path.stem).exists():
            bundles.remove(path)


MAX_OF_EACH: Final = 64
"""Principals remembered for one model; the earliest are forgotten."""
MAX_MODELS: Final = 1_024
PROOF: Final = 1024**2
"""Bytes at the end of a model by which a peer proves that it has the model."""

log = structlog.get_logger("sark.models")


class ModelAccess:
    """Which principals are known to have each model: one file in the folder of models. If it is lost, each principal must prove again that
    it has a model.
    """

    def __init__(self, path: Path, has: Callable[[str], bool]) -> None:
        """Read the file (blocking, quick). `has`: whether a model is in the cache. An unreadable file counts as empty."""
        self._path = path
        self._has = has
        try:
            document = json.loads(path.read_bytes())
            self._of = {str(sha256): [str(each) for each in peers] for sha256, peers in document.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self._of = {}

    def knows(self, sha256: str, principal: str) -> bool:
        return principal in self._of.get(sha256, ())

    def forget(self, sha256: str) -> None:
        """A model was removed. The file is updated with the next change."""
        self._of.pop(sha256, None)

    def note(self, sha256: str, principal: str) -> None:
        if self.knows(sha256, principal):
            return
        peers = [*self._of.pop(sha256, ()), principal]
        self._of[sha256] = peers[-MAX_OF_EACH:]
        stored = [each for each in self._of if self._has(each)][-MAX_MODELS:]
        self._of = {each: self._of[each] for each in stored}
        try:
            write_atomically(self._path, json.dumps(self._of).encode())
        except OSError as exc:
            log.warning("access.not_written", why=exc.strerror or str(exc))


def is_end_of(path: Path, data: bytes) -> bool:
    """Whether these bytes are the end of that file. Blocking."""
    try:
        with path.open("rb") as file:
            file.seek(proof_offset(path.stat().st_size))
            return file.read() == data
    except OSError:
        return False


def proof_offset(size: int) -> int:
    """The offset at which the end begins that serves as proof."""
    return max(0, size - PROOF)

"""A partial download: a file with holes, and a list of the pieces that it has, so that a kill loses little.

    HASH.part      the bytes; written in order by a plain source, or piece by piece in any order by `swarm.blobs.swarm_download`
    HASH.pieces    only for pieces: for whom they were fetched, then a line for each piece with its sha256; "-": it was trusted, and not
                   hashed on its own

The next process reads and hashes the listed pieces again. The whole file is hashed up to the first gap as pieces arrive, so that little is
left to hash at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from node.store.files import MODEL_FILE
from protocol.messages.blobs import PIECE_SIZE
from swarm.base.durable import sync_folder, write_atomically
from swarm.blobs.pieces import Hashes, count_of, span

READ_SIZE: Final = PIECE_SIZE
LIST: Final = ".pieces"
_UNHASHED: Final = "-"

log = structlog.get_logger("sark.cache")


class PartialFile:
    """Blocking. A plain source calls it with the next bytes; a source of pieces uses `begin`, `know` and `put`."""

    def __init__(self, path: Path, total: int) -> None:
        """Open the file and hash all of it. It begins empty if there is none, or if it is larger than `total`."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        os.close(os.open(path, flags, 0o600))
        self._path, self._list = path, path.with_suffix(LIST)
        self.total = total
        self.size = 0
        self.principal: str | None = None
        """The principal for whom every piece was fetched; None: there are several, or the file does not come in pieces."""
        self.origin = ""
        """Where the file comes from, in words; set by the source."""
        self.ensure_room: Callable[[int], None] = lambda size: None
        """Called before bytes are written, with the size that the file will then have; blocks until there is room."""
        self._fetched_for = ""
        self._lock = threading.Lock()
        self._hash, self._hashed = hashlib.sha256(), 0
        self._digests: dict[int, bytes] = {}
        """Piece → its sha256, if the file comes in pieces; b"": the piece was trusted."""
        self._expected: Hashes = ()
        if path.stat().st_size > total:
            os.truncate(path, 0)
        self._file = path.open("r+b", buffering=0)
        self._journal: int | None = None
        pieces = _read_list(self._list, total)
        self.in_order = pieces is None
        if pieces is None:
            self._take_in_order()
        else:
            self._fetched_for, listed = pieces
            self._take_listed(listed)

    def _take_in_order(self) -> None:
        while data := self._file.read(READ_SIZE):
            self._hash.update(data)
            self.size += len(data)
        self._hashed = self.size

    @property
    def offset(self) -> int:
        """Bytes from the beginning up to the first gap."""
        if self.in_order:
            return self.size
        first = next((i for i in range(count_of(self.total)) if i not in self._digests), None)
        return self.total if first is None else first * PIECE_SIZE

    def __call__(self, data: bytearray) -> None:
        """Write the next bytes after `offset`."""
        if not self.in_order:
            self._to_order()
        self._write(self.size, data)
        self._hash.update(data)
        self.size += len(data)
        self._hashed = self.size

    def _to_order(self) -> None:
        end = self.offset
        self._advance()
        self._close_list()
        self._list.unlink(missing_ok=True)
        os.truncate(self._path, end)
        self._digests.clear()
        self.size, self.in_order, self.principal = end, True, None

    def _take_listed(self, listed: dict[int, bytes]) -> None:
        for index in sorted(listed):
            data = self._read(index)
            digest = hashlib.sha256(data).digest()
            if digest != (listed[index] or digest) or len(data) != span(index, self.total)[1]:
                log.warning("model.piece_damaged", file=self._path.name, piece=index)
                continue
            self._add(index, digest, data)

    def begin(self, principal: str) -> None:
        """Take pieces for `principal` from now on. Earlier bytes stay; the file is shared only if they too were fetched for `principal`."""
        if self.in_order:
            whole = self.size == self.total
            indices = range(count_of(self.total) if whole else self.size // PIECE_SIZE)
            self._hash, self._hashed, self.size = hashlib.sha256(), 0, 0
            self.in_order = False
            for index in indices:
                data = self._read(index)
                self._add(index, hashlib.sha256(data).digest(), data)
        self.principal = principal if not self._digests or self._fetched_for == principal else None
        head = {"v": 1, "size": self.total, "for": self.principal or ""}
        lines = [json.dumps(head), *(_line(i, digest) for i, digest in self._digests.items())]
        self._close_list()
        write_atomically(self._list, ("\n".join(lines) + "\n").encode())
        self._journal = os.open(self._list, os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))

    def missing(self) -> set[int]:
        return set(range(count_of(self.total))).difference(self._digests)

    def know(self, hashes: Hashes) -> set[int]:
        """See `swarm.blobs.swarm_download.PartialStore`."""
        with self._lock:
            self._expected = hashes
            return self._drop_wrong()

    def verify(self) -> set[int]:
        """See `swarm.blobs.swarm_download.PartialStore`."""
        for index in [each for each, digest in dict(self._digests).items() if not digest]:
            with self._lock:  # separately for each piece, because other pieces arrive meanwhile
                self._digests[index] = hashlib.sha256(self._read(index)).digest()
        with self._lock:
            return self._drop_wrong()

    def _drop_wrong(self) -> set[int]:
        """Drop the pieces whose hashes are known and differ from the leader's."""
        wrong = {
            index
            for index, digest in self._digests.items()
            if digest and self._expected and digest != self._expected[index]
        }
        for index in wrong:
            del self._digests[index]
            self.size -= span(index, self.total)[1]
        if wrong:
            log.warning("model.pieces_wrong", file=self._path.name, pieces=len(wrong))
            self._hash, self._hashed = hashlib.sha256(), 0
        return wrong

    def put(self, index: int, data: bytearray, *, trusted: bool) -> bool:
        """See `swarm.blobs.swarm_download.PartialStore`."""
        digest = b"" if trusted else hashlib.sha256(data).digest()
        with self._lock:
            if digest and self._expected and digest != self._expected[index]:
                return False
            if index in self._digests:
                return True
            self._write(index * PIECE_SIZE, data)
            if self._journal is not None:
                os.write(self._journal, f"{_line(index, digest)}\n".encode())
            self._add(index, digest, data)
        return True

    def _add(self, index: int, digest: bytes, data: bytes | bytearray) -> None:
        self._digests[index] = digest
        self.size += len(data)
        self._advance(index, data)

    @property
    def path(self) -> Path:
        return self._path

    def has(self, index: int) -> bool:
        """Whether piece `index` is here and has the hash that the leader states."""
        return bool(self._expected) and bool(self._digests.get(index))

    def held(self) -> frozenset[int]:
        known = dict(self._digests)  # a copy: another thread may be adding pieces
        return (
            frozenset(index for index, digest in known.items() if digest) if self._expected else frozenset()
        )

    def digest(self) -> str:
        """The sha256 of the whole file. Reads the part that was not hashed on arrival."""
        with self._lock:
            self._advance()
            return self._hash.hexdigest()

    def keep(self, path: Path) -> None:
        """Sync the file to disk, make it read-only, then move it to `path`."""
        os.fsync(self._file.fileno())
        self.close()
        self._path.chmod(MODEL_FILE)
        self._path.replace(path)
        self._list.unlink(missing_ok=True)
        sync_folder(path.parent)

    def close(self) -> None:
        """Close the file and leave the partial download on disk."""
        self._close_list()
        self._file.close()

    def _close_list(self) -> None:
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None

    def _advance(self, index: int = -1, data: bytes | bytearray = b"") -> None:
        """Continue the hash up to the first gap. `data`: the bytes of piece `index`, which need not be read again."""
        while not self.in_order and self._hashed < self.total:
            at = self._hashed // PIECE_SIZE
            if at not in self._digests:
                return
            piece = data if at == index else self._read(at)
            self._hash.update(piece)
            self._hashed += len(piece)
            if not piece:
                return

    def _read(self, index: int) -> bytes:
        offset, length = span(index, self.total)
        self._file.seek(offset)
        parts: list[bytes] = []
        while length and (data := self._file.read(length)):
            parts.append(data)
            length -= len(data)
        return b"".join(parts)

    def _write(self, at: int, data: bytearray) -> None:
        self.ensure_room(self.size + len(data))
        self._file.seek(at)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) or 0 :]


def remove_partial(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(LIST).unlink(missing_ok=True)


def _line(index: int, digest: bytes) -> str:
    return f"{index} {digest.hex() or _UNHASHED}"


def _read_list(path: Path, total: int) -> tuple[str, dict[int, bytes]] | None:
    """For whom the pieces were fetched, and the listed pieces with their sha256 (b"": unknown); None: there is no list. Lines that a kill
    cut short, or that cannot be read, are left out.
    """
    try:
        lines = path.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return None
    try:
        head = json.loads(lines[0])
        principal = str(head["for"]) if head["size"] == total else None
    except (IndexError, ValueError, KeyError, TypeError):
        principal = None
    digests: dict[int, bytes] = {}
    for line in lines[1:] if principal is not None else ():
        number, _, digest = line.partition(" ")
        if number.isdecimal() and int(number) < count_of(total):
            if digest == _UNHASHED:
                digests[int(number)] = b""
            elif len(digest) == 64:
                with contextlib.suppress(ValueError):
                    digests[int(number)] = bytes.fromhex(digest)
    return principal or "", digests

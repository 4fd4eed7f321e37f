"""The outbox on disk: signed records, kept until their schedulers have them, and a day longer for an adopter of the campaign.

A record is two files named by its sha256. `.record` holds its bytes (served as a blob if large). `.head` says for whom it is and is written
last, so that a head means a whole record. The head of a settled record is renamed to `.settled`, not rewritten, because a measurement may
be in progress. Files that cannot be read are set aside as `.broken`.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Final

import structlog

from node.conversation.commands import DiskCommand, ReadRecord, SettleRecords, WriteHead, WriteRecord
from node.conversation.outbox import OutboxItem
from node.store.files import FileFolder, Files
from protocol.errors import RemoteProtocolError, ResourceError
from protocol.values.record import MAX_RECORD
from protocol.wire.base import MAX_INLINE
from protocol.wire.codec import pack, read_value

MAX_BROKEN: Final = 16
"""Broken files that are kept."""

log = structlog.get_logger("sark.outbox")


class OutboxFiles:
    """Carries out disk commands in one folder. Blocking."""

    def __init__(self, files: Files) -> None:
        """Load the heads and verify their records. Raises `ResourceError`."""
        self._files = files
        self.folder = files.folder
        self.waiting: list[OutboxItem] = []
        """The records that waited at the start."""
        self.settled: list[OutboxItem] = []
        names = sorted(files.names())
        heads = [name for name in names if name.endswith(".head")]
        for name in heads:
            self._load(name, self.waiting)
        for name in names:
            if name.endswith(".settled"):
                if f"{_sha256(name)}.head" in heads:  # handed over, and killed before `.settled` was removed
                    files.remove(name)
                else:
                    self._load(name, self.settled)
        whole = {item.sha256 for item in (*self.waiting, *self.settled)}
        for name in names:
            if name.endswith(".record") and _sha256(name) not in whole:  # its head was never written
                files.remove(name)
        for name in [name for name in sorted(files.names()) if name.endswith(".broken")][:-MAX_BROKEN]:
            files.remove(name)

    def carry_out(self, command: DiskCommand) -> bytes | None:
        """Carry out a command. Returns the bytes of a record that was read (empty for a large record); None: it is gone. Raises
        `ResourceError`.
        """
        match command:
            case WriteRecord(item, body):
                self._files.write(record_name(item.sha256), body)
                self._write_head(item)
            case WriteHead(item):
                self._write_head(item)
                with contextlib.suppress(OSError):
                    self._files.remove(f"{item.sha256}.settled")
            case SettleRecords(settled, removed):
                for sha256 in settled:
                    with contextlib.suppress(OSError):
                        self._files.rename(f"{sha256}.head", f"{sha256}.settled")
                for sha256 in removed:  # the head first: a record without a head does not count
                    with contextlib.suppress(OSError):
                        for name in (f"{sha256}.head", f"{sha256}.settled", record_name(sha256)):
                            self._files.remove(name)
            case ReadRecord(item):
                return self._read(item)
        return None

    def _read(self, item: OutboxItem) -> bytes | None:
        try:
            if item.size <= MAX_INLINE:
                return self._files.read(record_name(item.sha256))
            self._files.size(record_name(item.sha256))
            return b""
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise ResourceError(f"cannot read a result back: {exc.strerror or exc}") from exc

    def _write_head(self, item: OutboxItem) -> None:
        self._files.write(f"{item.sha256}.head", pack(item.to_wire()))

    def _load(self, name: str, into: list[OutboxItem]) -> None:
        sha256 = _sha256(name)
        try:
            item = read_value(OutboxItem, self._files.read(name))
            body = self._files.read(record_name(sha256))
            if (item.sha256, item.size) != (sha256, len(body)) or item.size > MAX_RECORD:
                raise RemoteProtocolError("head and record do not belong together")
            if hashlib.sha256(body).hexdigest() != sha256:
                raise RemoteProtocolError("the record's bytes have changed")
        except (RemoteProtocolError, FileNotFoundError) as exc:
            self._files.rename(name, f"{sha256}.broken")
            with contextlib.suppress(FileNotFoundError):
                self._files.rename(record_name(sha256), f"{sha256}.record.broken")
            log.warning("outbox.broken", file=f"{sha256}.broken", why=str(exc).splitlines()[0])
            return
        into.append(item)


def record_name(sha256: str) -> str:
    return f"{sha256}.record"


def _sha256(name: str) -> str:
    return name.partition(".")[0]


def open_outbox(folder: Path) -> OutboxFiles:
    """The outbox in a real folder. Raises `ResourceError`."""
    files = FileFolder(folder)
    with files.usable():
        return OutboxFiles(files)

"""Model uploads while the disk fills up."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.requests import Request
from starlette.types import Message

from protocol.errors import ResourceError
from scheduler.models.uploads import LEFT_FREE, Incoming
from web.http.problems import HttpProblem
from web.routes.models import CHUNK, _receive


class Full(io.RawIOBase):
    """A file on a full disk."""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def request(pieces: int) -> Request:
    """A request whose body comes in `pieces` pieces, each as large as the buffer before a write."""
    left = [True] * (pieces - 1) + [False]

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * CHUNK, "more_body": left.pop(0)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def wall() -> float:
    return 1e9


def shrinking(*sizes: int) -> Callable[[Path], SimpleNamespace]:
    left = list(sizes)
    return lambda folder: SimpleNamespace(free=LEFT_FREE + (left.pop(0) if len(left) > 1 else left[0]))


async def test_a_disk_that_others_fill_meanwhile_is_noticed_and_keeps_its_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", shrinking(100 * CHUNK, 100 * CHUNK, CHUNK // 2))
    incoming = Incoming(tmp_path, "m.onnx", wall)
    with pytest.raises(HttpProblem) as error:
        await _receive(request(5), incoming)
    assert error.value.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert incoming.size == CHUNK
    assert names(tmp_path) == []


async def test_a_full_disk_is_reported_as_such_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new(path: Path, mode: str) -> io.BufferedWriter:
        path.touch()
        return io.BufferedWriter(Full(), buffer_size=2 * CHUNK)

    monkeypatch.setattr(Path, "open", new)
    incoming = Incoming(tmp_path, "m.onnx", wall)
    with pytest.raises(ResourceError, match="No space left"):
        await _receive(request(5), incoming)
    assert names(tmp_path) == []

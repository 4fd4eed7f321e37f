"""Run commands in this process, as typed. Each test has its own home."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

import sark


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


class Typed:
    """Runs `sark-node --home HOME …`."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.home = folder / "home"
        self._capsys = capsys

    def __call__(self, *words: str | Path) -> Done:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            sark.main(["--home", str(self.home), *map(str, words)])
        out, err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    @property
    def stored(self) -> bool:
        """Whether the home holds any file of a campaign."""
        return any(path.is_file() for path in (self.home / "data" / "scheduler").rglob("*"))


@pytest.fixture
def typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Typed]:
    """Run commands. Restores the log's settings afterwards."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))
    root = logging.getLogger()
    handlers, level, settings = list(root.handlers), root.level, structlog.get_config()
    yield Typed(tmp_path, capsys)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**settings)


@pytest.fixture
def listener() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/12D3KooWQNbstzW71KUwiMn5QQ2sG2t72UM5TJt353kFtC9TUBhK"

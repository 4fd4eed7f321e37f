"""Somebody who types what a page says: each command as it stands there, against real processes."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

from tests.real.lab import MARK, SARK, TIMEOUT_S, until


class Reader:
    """Somebody with a folder, homes and as many terminals as are needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.staying: list[subprocess.Popen[bytes]] = []
        self.mark = f"reader-{secrets.token_hex(8)}"

    def environment(self, home: str) -> dict[str, str]:
        """What is set for a command on the home of that name."""
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("SARK_")},
            MARK: self.mark,
            "SARK_HOME": str(self.folder / home),
            "SARK_LAN": "false",  # of this machine alone, at free ports: others test here too
            "SARK_LISTEN": "/ip4/127.0.0.1/tcp/0",
            "SARK_CALIBRATE": "false",  # it takes the machine for itself for a while
            "SARK_ON_BATTERY": "true",
            "SARK_MAX_WAIT_S": "0",  # nor is it waited for others who work here: no number is looked at
        }

    def stay(self, words: list[str], home: str = "home", says: str = "12D3Koo") -> subprocess.Popen[bytes]:
        """Start it in a terminal of its own, and wait for what it says first."""
        result = self.folder / f"{home}-{words[0]}.txt"
        with result.open("wb") as out:
            process = subprocess.Popen(
                [*SARK, *words],
                cwd=self.folder,
                env=self.environment(home),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

        self.staying.append(process)

        def up() -> bool:
            assert process.poll() is None, result.read_text()
            return says in result.read_text()

        until(up, f"{words[0]} is up")
        return process

    def said(self, words: list[str], home: str = "home") -> str:
        """What a command that stays has said so far."""
        return (self.folder / f"{home}-{words[0]}.txt").read_text()

    def type(self, words: list[str], home: str = "home", codes: tuple[int, ...] = (0,)) -> str:
        """Run it to its end; it must end with one of `codes`. What it printed for programs and people."""
        done = subprocess.run(
            [*SARK, *words], cwd=self.folder, env=self.environment(home), capture_output=True, text=True, check=False,
            timeout=2 * TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode in codes, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

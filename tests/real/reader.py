"""A reader who types what a page says: every command unchanged, against real processes."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

from tests.real.lab import MARK, SARK, TIMEOUT_S, until


class Reader:
    """A reader with a folder, homes and as many terminals as are needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.staying: list[subprocess.Popen[bytes]] = []
        self.mark = f"reader-{secrets.token_hex(8)}"

    def environment(self, home: str) -> dict[str, str]:
        """The environment of a command on the home of that name."""
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("SARK_")},
            MARK: self.mark,
            "SARK_HOME": str(self.folder / home),
            "SARK_LAN": "false",  # only on this machine, at free ports, because others test here too
            "SARK_LISTEN": "/ip4/127.0.0.1/tcp/0",
            "SARK_CALIBRATE": "false",  # a calibration takes the machine for itself for a while
            "SARK_ON_BATTERY": "true",
            "SARK_MAX_WAIT_S": "0",  # and no test looks at numbers, so nothing waits for others who work here
        }

    def stay(self, words: list[str], home: str = "home", says: str = "12D3Koo") -> subprocess.Popen[bytes]:
        """Start a command in its own terminal, and wait for its first output."""
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
        """The output so far of a command that keeps running."""
        return (self.folder / f"{home}-{words[0]}.txt").read_text()

    def type(self, words: list[str], home: str = "home", codes: tuple[int, ...] = (0,)) -> str:
        """Run a command to its end, which must have one of `codes`. Returns its output for programs and for people."""
        done = subprocess.run(
            [*SARK, *words], cwd=self.folder, env=self.environment(home), capture_output=True, text=True, check=False,
            timeout=2 * TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode in codes, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

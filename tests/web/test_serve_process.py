"""`sark-node serve` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SERVE = [sys.executable, "-m", "sark", "--home", "home", "serve", "--port", "0"]


@pytest.mark.real
def test_a_server_in_a_shells_background_ends_on_an_interrupt_though_the_shell_has_it_ignore_that(
    tmp_path: Path,
) -> None:
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *SERVE]
    with subprocess.Popen(background, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()

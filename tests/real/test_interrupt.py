"""Ctrl-C during a measurement ends the command and every process below it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from drivers.launch.child import NAME
from protocol.formats.reference_model import chain_of_products
from tests.real.lab import SARK, TIMEOUT_S, until


@pytest.mark.smoke
def test_ctrl_c_ends_a_measurement_and_its_processes(tmp_path: Path) -> None:
    model = tmp_path / "chain.onnx"
    model.write_bytes(chain_of_products())
    log = tmp_path / "errors"
    with log.open("wb") as errors:
        bench = subprocess.Popen(
            [*SARK, "--home", str(tmp_path / "home"), "bench", "--runs", "1000000", "--loads", "1", str(model)],
            env={**os.environ, "SARK_MAX_WAIT_S": "0"}, stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
    try:
        below: list[psutil.Process] = []

        def measuring() -> bool:
            assert bench.poll() is None, log.read_text()
            below[:] = psutil.Process(bench.pid).children(recursive=True)
            return "measuring" in log.read_text() and any(_name(one) == NAME for one in below)

        until(measuring, "the model is measured")
        bench.send_signal(signal.SIGINT)
        assert bench.wait(TIMEOUT_S) == 130
        until(lambda: not any(one.is_running() for one in below), "none of its processes is left")
    finally:
        bench.kill()
    assert "Traceback" not in log.read_text()


def _name(process: psutil.Process) -> str:
    """The process's name; empty if it has ended meanwhile, as short-lived helpers do."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""

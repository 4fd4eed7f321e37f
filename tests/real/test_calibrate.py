"""A device is calibrated once for all homes of its user, with real models in real processes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.real.lab import SARK


def test_two_homes_calibrate_one_device_once(tmp_path: Path) -> None:
    def calibrate(home: str) -> tuple[dict[str, object], str]:
        done = subprocess.run(
            [*SARK, "--home", str(tmp_path / home), "calibrate", "--wait", "1s", "--json"],
            env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "user")},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        document: dict[str, object] = json.loads(done.stdout)
        return document, done.stderr

    first, told = calibrate("one")
    assert "is not calibrated yet" in told
    assert first["rounds"] == 1
    assert first["floors"]
    assert first["spreads"]
    assert first["micro"]
    assert calibrate("two") == (first, "")
    (file,) = (tmp_path / "user" / "sark" / "calibrations").iterdir()
    assert json.loads(file.read_text()) == first

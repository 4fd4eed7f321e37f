"""Stores a device's calibration: one file for each device and fingerprint in this user's own data folder, whatever `--home` says.

A file counts only if this user owns it and nobody else may write it, because it determines how everything here is measured.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from node.device.calibration import Calibration
from node.device.probe import lock_name
from swarm.base.durable import write_durably
from swarm.base.home import Home

MAX_FILE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """The content of a calibration file."""

    calibration: Calibration | None = None
    missing: str = ""
    """Why there is no valid calibration, for people."""


def calibration_file(fingerprint: str, device: str | None = None) -> Path:
    """The file of this device, or of `device` if given. The folder follows the platform: see `Home`."""
    name = re.sub(r"[^\w-]+", "-", device or lock_name())
    return Home.at().data / "calibrations" / f"{name}-{fingerprint[:16]}.json"


def read_calibration(path: Path, fingerprint: str) -> StoredCalibration:
    """The calibration stored in `path` for the hardware with this `fingerprint`."""
    try:
        with path.open("rb") as file:
            if _others_may_write(file.fileno()):
                return StoredCalibration(
                    missing=f"another user owns {path} or can write it: chmod 600 it, or remove it"
                )
            text = file.read(MAX_FILE)
    except FileNotFoundError:
        return StoredCalibration(missing="this device is not calibrated yet in its current state")
    except OSError as exc:
        return StoredCalibration(missing=f"cannot read {path}: {exc.strerror or exc}")
    try:
        calibration = Calibration.model_validate_json(text)
    except ValidationError:
        return StoredCalibration(missing=f"{path} is damaged, or of another version")
    if calibration.fingerprint != fingerprint:
        return StoredCalibration(missing="hardware, system or runtimes changed since the last calibration")
    return StoredCalibration(calibration)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the calibration durably. Raises `ResourceError`."""
    write_durably(path, calibration.model_dump_json(indent=1).encode() + b"\n")


def _others_may_write(handle: int) -> bool:
    if os.name != "posix":
        return False
    state = os.fstat(handle)
    return state.st_uid != os.geteuid() or bool(state.st_mode & (stat.S_IWGRP | stat.S_IWOTH))

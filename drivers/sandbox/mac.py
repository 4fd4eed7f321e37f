"""The sandbox of macOS: a profile for the system's own sandbox, which the worker enters just before it touches the model.

It denies the network, other programs, writing outside the launch's folder, and reading in users' folders. It hides no processes and limits
no memory: the tier is `partial`.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import PurePosixPath
from typing import Any, Final

from drivers.sandbox.mounts import MountPlan

HOMES: Final = ("/Users", "/Volumes", "/private/var/root", "/Library/Keychains")
"""Folders with users' files."""
OWN: Final = "/private"
"""Where the links /tmp and /var lead: rules need real paths."""


def real(path: str) -> str:
    """A path in the form that the rules need."""
    return f"{OWN}{path}" if path.startswith(("/tmp/", "/var/", "/etc/")) else path  # noqa: S108


def profile(plan: MountPlan) -> str:
    """The rules in the sandbox's own language; later rules override earlier ones."""

    def paths(kind: str, *some: str) -> str:
        return " ".join(f"({kind} {json.dumps(real(path), ensure_ascii=False)})" for path in some)

    reads = [path for path in (*plan.reads, *plan.models, plan.folder) if path]
    above = sorted({str(parent) for path in reads for parent in PurePosixPath(real(path)).parents})
    lines = [
        "(version 1)",
        "(allow default)",
        "(deny process-fork)",
        "(deny process-exec*)",
        "(deny signal (target others))",
        "(deny file-write*)",
        f"(allow file-write* {paths('subpath', plan.folder)} {paths('literal', *plan.devices)})",
        f"(deny file-read* {paths('subpath', *HOMES)})",
        f"(allow file-read-metadata {paths('literal', *above)})",
        f"(allow file-read* {paths('subpath', *reads)})",
    ]
    if not plan.network:
        lines.append("(deny network*)")
    return "\n".join(lines) + "\n"


def system_library() -> Any:
    return ctypes.CDLL("/usr/lib/libSystem.dylib")


def enter(library: Any, plan: MountPlan) -> None:
    """Enter the sandbox for good. Raises OSError with the system's own message."""
    error = ctypes.c_char_p()
    if library.sandbox_init(profile(plan).encode(), ctypes.c_uint64(0), ctypes.byref(error)):
        raise OSError((error.value or b"the sandbox refused its profile").decode("utf-8", "replace"))

"""Removes the folder of a launch after its processes have ended, whatever it contains.

On the lesser tiers the folder may hold a thousand nested folders, too deep for `shutil.rmtree`, or unreadable ones. Neither may stay on the
disk, nor crash the process that cleans up.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress


def remove(folder: str) -> None:
    """Remove `folder` with its content without following links. What the system refuses to remove stays."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.name != "nt" and _is_folder(folder):
        _flatten(folder)
        with suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106


def _flatten(folder: str) -> None:
    """Empty the folder without descending more than one level: deeper folders are moved up first."""
    moved = 0
    while True:
        _make_writable(folder)
        below = [path for path in _listed(folder) if not _unlink(path)]
        removed = 0
        for path in below:
            _make_writable(path)
            for deeper in _listed(path):
                if not _unlink(deeper):
                    _make_writable(deeper)  # a folder that is not writable cannot be moved
                    moved += 1
                    with suppress(OSError):
                        os.rename(deeper, os.path.join(folder, f"sark-{os.getpid()}-{moved}"))  # noqa: PTH104, PTH118
            with suppress(OSError):
                os.rmdir(path)  # noqa: PTH106
                removed += 1
        if not removed:
            return


def _listed(folder: str) -> list[str]:
    with suppress(OSError):
        return [os.path.join(folder, name) for name in os.listdir(folder)]  # noqa: PTH118, PTH208
    return []


def _unlink(path: str) -> bool:
    """Remove a file or link; False for a folder."""
    if _is_folder(path):
        return False
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108
    return True


def _is_folder(path: str) -> bool:
    """Whether the path is a folder; does not follow links."""
    with suppress(OSError):
        return stat.S_ISDIR(os.lstat(path).st_mode)
    return False


def _make_writable(folder: str) -> None:
    with suppress(OSError):
        os.chmod(folder, 0o700)  # noqa: PTH101

"""Taking away what a launch left in its folder, whatever that is. Called when all that ran there is dead.

A folder of the disk's, as on the lesser tiers, may hold a thousand folders in each other, which is more than `shutil.rmtree` can go down,
or folders that nobody may look into. Neither may stay on the disk, nor end the process that tidies up.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress


def remove(folder: str) -> None:
    """Take `folder` away with all that is in it; links are not followed. What the system will not let go stays."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.name != "nt" and _is_folder(folder):
        _flatten(folder)
        with suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106


def _flatten(folder: str) -> None:
    """Empty it without ever going down more than one level: what lies deeper is brought up first."""
    brought = 0
    while True:
        _open_up(folder)
        below = [path for path in _listed(folder) if not _unlinked(path)]
        went = 0
        for path in below:
            _open_up(path)
            for deeper in _listed(path):
                if not _unlinked(deeper):
                    _open_up(deeper)  # a folder that may not be written to may not be moved
                    brought += 1
                    with suppress(OSError):
                        os.rename(deeper, os.path.join(folder, f"sark-{os.getpid()}-{brought}"))  # noqa: PTH104, PTH118
            with suppress(OSError):
                os.rmdir(path)  # noqa: PTH106
                went += 1
        if not went:
            return


def _listed(folder: str) -> list[str]:
    with suppress(OSError):
        return [os.path.join(folder, name) for name in os.listdir(folder)]  # noqa: PTH118, PTH208
    return []


def _unlinked(path: str) -> bool:
    """Whether it is no folder; then it is taken away."""
    if _is_folder(path):
        return False
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108
    return True


def _is_folder(path: str) -> bool:
    """Itself, not where a link leads."""
    with suppress(OSError):
        return stat.S_ISDIR(os.lstat(path).st_mode)
    return False


def _open_up(folder: str) -> None:
    with suppress(OSError):
        os.chmod(folder, 0o700)  # noqa: PTH101

"""The driver that tries to get out of the sandbox, for `drivers.launch.probe_tier`. It runs in the child and imports little."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from drivers.contract.base import (
    CheckReport,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    RunFindings,
    UnitInfo,
    WorkOrder,
)
from drivers.contract.registry import SANDBOX_PROBE
from protocol.formats.phase import Phase

UNIT: Final = "CPU (probe)"
NEIGHBOUR: Final = "neighbour"
"""The file next to the model that must not be read."""
CONNECT_S: Final = 0.5
OPEN: Final[Mapping[str, str]] = {
    "reads_secret": "it can read files next to its model",
    "reads_home": "it can look into your home folder",
    "writes_outside": "it can write outside its own folder",
    "connects": "it can use the network",
    "forks": "it can start processes",
    "executes": "it can start programs",
    "sees_processes": "it can see other processes",
    "signals": "it can signal other processes",
    "fills_disk": "the total size of its files is not limited",
    "runs_as_root": "it runs as root, since nobody else may read this program: install it where others can read it",
}
"""What may be open, described for the owner."""


class SandboxProber:
    """See `drivers.contract.base.Driver`. `home`: the folder of the node's user. `code`: see `mounts.code_folders`."""

    name = SANDBOX_PROBE

    def __init__(self, home: str, code: Iterable[str] = ()) -> None:
        self._home = home
        leads = {name for name in _listed(home) if any(_within(folder, home, name) for folder in code)}
        self._private = _listed(home) - leads

    def preload(self) -> tuple[str, ...]:
        return ()

    def units(self) -> tuple[UnitInfo, ...]:
        return ()

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """Do what every launch must be able to do: read its model, write into its folder, start a thread."""
        yield ProgressReport(Phase.LOAD)
        Path(order.model).read_bytes()
        Path("own").write_bytes(b"own")
        thread = threading.Thread(target=os.getpid)
        thread.start()
        thread.join()
        yield LoadReport(0, None, None)

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Try each action once; a figure of 1 means that it worked. `order.dims`: `port` that listens on loopback, `pid` of a process
        outside, `size` in bytes that must not fit into the folder; `root` is 1 if root must become nobody."""
        yield from self.load_only(order)
        yield ModelDescription(UNIT, SANDBOX_PROBE, "", (), 1, {}, {}, 0)
        yield MeasureReport((0,) * order.runs, (), 0.0, 0.0, None, 0, None)
        attempts = self.attempts(order)
        yield RunFindings({name: float(_works(attempts[name])) for name in OPEN})
        yield CheckReport(None, "", None, None, "nothing to compare with")

    def attempts(self, order: WorkOrder) -> Mapping[str, Callable[[], object]]:
        """One attempt for each name in `OPEN`: raises OSError when it is refused."""
        outside = Path(order.model).parent
        port, pid = order.dims["port"], order.dims["pid"]
        return {
            "reads_secret": lambda: (outside / NEIGHBOUR).read_bytes(),
            "reads_home": self._read_home,
            "writes_outside": lambda: (outside / "left").write_bytes(b"left"),
            "connects": lambda: socket.create_connection(("127.0.0.1", port), CONNECT_S).close(),
            "forks": _fork,
            "executes": lambda: os.posix_spawn("/bin/true", ["true"], {}),
            "sees_processes": lambda: os.stat(f"/proc/{pid}/cmdline"),  # noqa: PTH116
            "signals": lambda: os.kill(pid, 0),
            "fills_disk": lambda: _check_bounded(order.dims["size"]),
            "runs_as_root": lambda: _check_left_root(order.dims["root"]),
        }

    def _read_home(self) -> None:
        """Folders that lead to the interpreter may be visible, such as a user's own Python; all others must be hidden."""
        if not self._private or not self._private <= _listed(self._home):
            raise OSError("hidden")


def _listed(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return set()


def _within(path: str, home: str, name: str) -> bool:
    """Whether `path`, or the target of its links, is `name` in `home` or lies below it."""
    inside = Path(home, name)
    return any(Path(one).is_relative_to(inside) for one in (path, os.path.realpath(path)))


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _check_left_root(root: int) -> None:
    if not root or os.geteuid():
        raise OSError("it never was, or left it behind")


def _check_bounded(size: int) -> None:
    """Raise OSError if the working directory holds at most `size` bytes."""
    folder = os.statvfs(".")
    if folder.f_blocks * folder.f_frsize <= size:
        raise OSError("bounded")

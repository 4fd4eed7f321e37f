"""What a launch can still do in its sandbox, found out by trying it: a driver whose run tries to get out, and tells what it managed.

`drivers.launch.tier` runs it in a launch like any other and prepares what it may not reach: a file beside the model, a port, the
process that asks. A figure of 1 is something that worked, of 0 something that was refused.
"""

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
from protocol.formats.phase import Phase

NAME: Final = "sandbox-probe"
UNIT: Final = "CPU (probe)"
BESIDE: Final = "beside"
"""Name of the file beside the model that must not be read."""
CONNECT_S: Final = 0.5

OPEN: Final[Mapping[str, str]] = {
    "reads_secret": "it can read files beside its model",
    "reads_home": "it can look into your home folder",
    "writes_outside": "it can write outside its own folder",
    "connects": "it can use the network",
    "forks": "it can start processes",
    "executes": "it can start programs",
    "sees_processes": "it can see other processes",
    "signals": "it can signal other processes",
    "fills_disk": "all its files together are not bounded",
}
"""What may be open, in words for the owner."""


class TierProber:
    """See `drivers.base.Driver`. `home`: the folder of whoever runs the node. `code`: see `view.code_folders`."""

    name = NAME

    def __init__(self, home: str, code: Iterable[str] = ()) -> None:
        self._home = home
        leads = {name for name in _listed(home) if any(_within(place, home, name) for place in code)}
        self._at_home = _listed(home) - leads

    def preload(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def units(self) -> tuple[UnitInfo, ...]:
        """None that is offered."""
        return ()

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """What a launch has to do, it must still be able to do: read its model, write into its folder, start a thread."""
        yield ProgressReport(Phase.LOAD)
        Path(order.model).read_bytes()
        Path("own").write_bytes(b"own")
        thread = threading.Thread(target=os.getpid)
        thread.start()
        thread.join()
        yield LoadReport(0, None, None)

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Try each thing once. `order.dims`: `port` that listens on loopback, `pid` of a process outside."""
        yield from self.load_only(order)
        yield ModelDescription(UNIT, NAME, "", (), 1, {}, {}, 0)
        yield MeasureReport((0,) * order.runs, (), 0.0, 0.0, None, 0, None)
        tried = self.tries(order)
        yield RunFindings({name: float(_works(tried[name])) for name in OPEN})
        yield CheckReport(None, "", None, None, "nothing to compare with")

    def tries(self, order: WorkOrder) -> Mapping[str, Callable[[], object]]:
        """Each raises OSError when it is refused."""
        outside = Path(order.model).parent
        pid = order.dims["pid"]
        return {
            "reads_secret": lambda: (outside / BESIDE).read_bytes(),
            "reads_home": self._look_home,
            "writes_outside": lambda: (outside / "left").write_bytes(b"left"),
            "connects": lambda: socket.create_connection(
                ("127.0.0.1", order.dims["port"]), CONNECT_S
            ).close(),
            "forks": _fork,
            "executes": lambda: os.posix_spawn("/bin/true", ["true"], {}),
            "sees_processes": lambda: os.stat(f"/proc/{pid}/cmdline"),  # noqa: PTH116
            "signals": lambda: os.kill(pid, 0),
            "fills_disk": lambda: _bounded(order.dims["room"]),
        }

    def _look_home(self) -> None:
        """What of it leads to the interpreter may be seen, such as one's own Python. The rest, if there is any, is hidden."""
        if not self._at_home or not self._at_home <= _listed(self._home):
            raise OSError("hidden")


def _listed(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return set()


def _within(place: str, home: str, name: str) -> bool:
    """Whether `place` is what is called `name` in `home`, or lies below it; also where a link leads."""
    inside = Path(home, name)
    return any(Path(one).is_relative_to(inside) for one in (place, os.path.realpath(place)))


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


def _bounded(room: int) -> None:
    """Raises OSError when a folder that may hold `room` bytes takes no more than that (in two files)."""
    folder = os.statvfs(".")
    if folder.f_blocks * folder.f_frsize <= room:
        raise OSError("bounded")

"""What a model does that has taken over its own process. Run as a program in place of `drivers.launch.zygote`, with the same arguments."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from drivers.contract.base import (
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    RunFindings,
    UnitInfo,
    WorkOrder,
)
from drivers.launch import zygote
from drivers.sandbox.enter import Tier

MIB = 1 << 20
ENOUGH_MIB = 640
"""Enough kernel memory to show that there is no limit."""


def fill_sockets() -> float:
    """MiB that the kernel holds for this process in socket pairs before it refuses more."""
    held, pairs = 0, []
    try:
        while held < ENOUGH_MIB * MIB:
            pair = socket.socketpair()
            pairs.append(pair)
            for end in pair:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
                end.setblocking(False)
                try:
                    while held < ENOUGH_MIB * MIB:
                        held += end.send(bytes(128 * 1024))
                except BlockingIOError:
                    pass
    except OSError:
        pass
    return held / MIB


def reads(*paths: str) -> float:
    """1 if anything at one of the paths can be read, else 0."""
    for path in paths:
        try:
            if Path(path).is_dir() and any(Path(path).iterdir()):
                return 1.0
            if Path(path).is_file() and Path(path).read_bytes().strip():
                return 1.0
        except OSError:
            continue
    return 0.0


def reads_mac() -> float:
    try:
        cards = [path for path in Path("/sys/class/net").iterdir() if path.name != "lo"]
    except OSError:
        return 0.0
    return reads(*(str(path / "address") for path in cards))


ACTS: dict[str, Callable[[], float]] = {
    "kernel_mib": fill_sockets,
    "opt": lambda: reads("/opt"),
    "mac": reads_mac,
    "cmdline": lambda: reads("/proc/cmdline"),
    "root": lambda: float(_outer_uid() == 0),
}


def _outer_uid() -> int:
    """This process's user id as the host sees it, through the map of its namespace."""
    inside, outside, _ = map(int, Path("/proc/self/uid_map").read_text("ascii").split()[:3])
    return outside + os.getuid() - inside


class RigDriver:
    """See `drivers.contract.base.Driver`."""

    name = "rig"

    def preload(self) -> tuple[str, ...]:
        return ()

    def units(self) -> tuple[UnitInfo, ...]:
        return ()

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        yield LoadReport(1, None, None)

    def run(self, order: WorkOrder) -> Iterator[Event]:
        names = json.loads(Path(order.model).read_bytes())
        yield from self.load_only(order)
        yield ModelDescription("CPU (Rig)", self.name, "", (), 1, {}, {}, 0)
        yield MeasureReport((1,) * order.runs, (), 0.0, 0.0, None, 0, None)
        yield RunFindings({name: _figure(ACTS[name]) for name in names})


def _figure(act: Callable[[], float]) -> float:
    try:
        return act()
    except (OSError, ValueError):
        return 0.0


if __name__ == "__main__":
    zygote.serve(socket.socket(fileno=int(sys.argv[1])), RigDriver(), Tier(sys.argv[4]), int(sys.argv[5]))

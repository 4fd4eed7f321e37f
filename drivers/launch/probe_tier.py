"""The tier of sandbox that this device reaches: what a child of a real launch could still do, not what a kernel's version promises.

    probe() ─▶ TierProbe(tier="full" | "partial" | "none", reasons=("why it is not more", …))

`SandboxProber` is a driver that tries to get out and reports what worked. What each tier holds: docs/decisions/2026-11-21-sandbox.md.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from drivers.contract import frames
from drivers.contract.base import (
    MIB,
    CheckReport,
    Crashed,
    DriverError,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    RunFindings,
    UnitInfo,
    WorkOrder,
)
from drivers.contract.registry import SANDBOX_PROBE as PROBE
from drivers.launch.events import replies
from drivers.launch.process import ZygoteProcess
from drivers.measure.stopping import MeasureJob
from drivers.sandbox import linux
from drivers.sandbox.enter import Tier
from protocol.formats.phase import Phase

UNIT: Final = "CPU (probe)"
NEIGHBOUR: Final = "neighbour"
"""The file next to the model that must not be read."""
CONNECT_S: Final = 0.5
PROBE_S: Final = 20.0
LIMITS: Final = Limits(load_s=PROBE_S, run_s=PROBE_S, memory_bytes=256 * MIB, output_bytes=4 * MIB)
TIERS: Final = (Tier.FULL, Tier.PARTIAL)
OPEN: Final[Mapping[str, str]] = {
    "reads_secret": "it can read files next to its model",
    "reads_home": "it can look into your home folder",
    "writes_outside": "it can write outside its own folder",
    "connects": "it can use the network",
    "forks": "it can start processes",
    "executes": "it can start programs",
    "sees_processes": "it can see other processes",
    "signals": "it can signal other processes",
    "fills_disk": "all its files together are not bounded",
    "runs_as_root": "it runs as root, since nobody else may read this program: install it where others can read it",
}
"""What may be open, in words for the owner."""
PARTIAL_REFUSES: Final = ("reads_secret", "writes_outside", "connects")
"""The partial tier refuses at least one of these."""


class TierProbe(NamedTuple):
    """What this device reaches. `reasons`: why it is not more and what is open, one line each; empty for the full tier."""

    tier: Tier
    reasons: tuple[str, ...]


def probe(platform: str = sys.platform, tiers: Sequence[Tier] = TIERS) -> TierProbe:
    """Try `tiers`, the best first, in real children (blocking, a few tenths of a second)."""
    if platform == "win32":
        reason = "a run's memory and processes are bounded, what it reads and reaches is not"
        return TierProbe(Tier.NONE, (f"Windows: {reason}",))
    if platform == "darwin":
        tier, reasons = judge([tier for tier in tiers if tier is not Tier.FULL], find_open)
        return TierProbe(tier, ("macOS: nothing hides other processes or bounds memory", *reasons))
    return judge(tiers, find_open)


def judge(tiers: Sequence[Tier], find: Callable[[Tier], tuple[str, ...]]) -> TierProbe:
    """The first tier that holds. `find`: see `find_open`."""
    reasons: list[str] = []
    for tier in tiers:
        try:
            names = find(tier)
        except DriverError as why:
            reasons.append(f"no {tier} sandbox: {_with_hint(str(why))}")
            continue
        texts = tuple(OPEN[name] for name in names)
        if tier is Tier.FULL and not names:
            return TierProbe(tier, ())
        if tier is Tier.PARTIAL and not set(PARTIAL_REFUSES) <= set(names):
            return TierProbe(tier, (*reasons, *texts))
        reasons.append(f"no {tier} sandbox, it did not hold a run: {', '.join(texts)}")
    return TierProbe(Tier.NONE, tuple(reasons))


def find_open(tier: Tier) -> tuple[str, ...]:
    """Names of `OPEN` that worked in a child of this tier. Raises `DriverError` if it could not be sandboxed, or could not do what every
    launch must.
    """
    with tempfile.TemporaryDirectory(prefix="sark-probe-") as folder, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        Path(folder, "model").write_bytes(b"model")
        Path(folder, NEIGHBOUR).write_bytes(b"neighbour")
        dims = {"port": listening.getsockname()[1], "pid": os.getpid(), "size": 2 * LIMITS.output_bytes}
        dims["root"] = int(sys.platform == "linux" and linux.becomes_nobody())
        order = WorkOrder(str(Path(folder).resolve() / "model"), UNIT, 1, 1, dims=dims)
        process = ZygoteProcess(PROBE, False, True, tier)
        try:
            packed = frames.pack_order(order, LIMITS, PROBE, False, MeasureJob.RUN)
            events = replies(process.fork(packed, LIMITS.output_bytes), LIMITS)
        finally:
            process.close()
    figures = next((event.figures for event in events if isinstance(event, RunFindings)), None)
    if figures is None:
        raise Crashed("it ended without a reply")
    return tuple(name for name in OPEN if figures.get(name, 1.0))


def _with_hint(why: str) -> str:
    """With what an owner can do about it, if that is known."""
    if "user namespace" in why or "private mounts" in why or "namespaces:" in why:
        return (
            f"{why}; the system forbids namespaces to users: see user.max_user_namespaces,"
            " kernel.apparmor_restrict_unprivileged_userns, or the container's own rules"
        )
    return why


# -- in the child ----------------------------------------------------------------------------------------------------------


class SandboxProber:
    """See `drivers.contract.base.Driver`. `home`: the folder of the node's user. `code`: see `mounts.code_folders`."""

    name = PROBE

    def __init__(self, home: str, code: Iterable[str] = ()) -> None:
        self._home = home
        leads = {name for name in _listed(home) if any(_within(folder, home, name) for folder in code)}
        self._private = _listed(home) - leads

    def preload(self) -> tuple[str, ...]:
        return ()

    def units(self) -> tuple[UnitInfo, ...]:
        return ()

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """What every launch must be able to do: read its model, write into its folder, start a thread."""
        yield ProgressReport(Phase.LOAD)
        Path(order.model).read_bytes()
        Path("own").write_bytes(b"own")
        thread = threading.Thread(target=os.getpid)
        thread.start()
        thread.join()
        yield LoadReport(0, None, None)

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Try each thing once; a figure of 1 is one that worked. `order.dims`: `port` that listens on loopback, `pid` of a process outside,
        `size` in bytes that the folder must not hold; `root` is 1 where root must become nobody.
        """
        yield from self.load_only(order)
        yield ModelDescription(UNIT, PROBE, "", (), 1, {}, {}, 0)
        yield MeasureReport((0,) * order.runs, (), 0.0, 0.0, None, 0, None)
        attempts = self.attempts(order)
        yield RunFindings({name: float(_works(attempts[name])) for name in OPEN})
        yield CheckReport(None, "", None, None, "nothing to compare with")

    def attempts(self, order: WorkOrder) -> Mapping[str, Callable[[], object]]:
        """One for each of `OPEN`: raises OSError when it is refused."""
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
        """What leads to the interpreter may be visible, such as one's own Python; the rest must be hidden."""
        if not self._private or not self._private <= _listed(self._home):
            raise OSError("hidden")


def _listed(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return set()


def _within(path: str, home: str, name: str) -> bool:
    """Whether `path`, or where its links lead, is `name` in `home` or lies below it."""
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

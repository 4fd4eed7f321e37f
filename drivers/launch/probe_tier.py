"""Finds the sandbox tier that this device reaches, by what a child of a real launch can still do, not by what a kernel's version promises.

    probe() ─▶ TierProbe(tier="full" | "partial" | "none", reasons=("why it is not more", …))

`drivers.launch.prober` is a driver that tries to get out and reports what worked. What each tier prevents:
docs/decisions/2026-11-21-sandbox.md.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from drivers.contract import frames
from drivers.contract.base import (
    MIB,
    Crashed,
    DriverError,
    Limits,
    RunFindings,
    WorkOrder,
)
from drivers.contract.registry import SANDBOX_PROBE as PROBE
from drivers.launch.events import replies
from drivers.launch.prober import NEIGHBOUR, OPEN, UNIT
from drivers.launch.process import ZygoteProcess
from drivers.measure.stopping import MeasureJob
from drivers.sandbox import linux
from drivers.sandbox.enter import Tier

PROBE_S: Final = 20.0
LIMITS: Final = Limits(load_s=PROBE_S, run_s=PROBE_S, memory_bytes=256 * MIB, output_bytes=4 * MIB)
TIERS: Final = (Tier.FULL, Tier.PARTIAL)
PARTIAL_REFUSES: Final = ("reads_secret", "writes_outside", "connects")
"""The partial tier refuses at least one of these."""


class TierProbe(NamedTuple):
    """The tier that this device reaches. `reasons`: why it reaches no higher tier and what is open, one line each; empty for the full
    tier."""

    tier: Tier
    reasons: tuple[str, ...]


def probe(platform: str = sys.platform, tiers: Sequence[Tier] = TIERS) -> TierProbe:
    """Try `tiers`, the best first, in real children (blocking, a few tenths of a second)."""
    if platform == "win32":
        reason = "a run's memory and processes are limited, but not what it can read or reach"
        return TierProbe(Tier.NONE, (f"Windows: {reason}",))
    if platform == "darwin":
        tier, reasons = judge([tier for tier in tiers if tier is not Tier.FULL], find_open)
        return TierProbe(tier, ("macOS: nothing hides other processes or bounds memory", *reasons))
    return judge(tiers, find_open)


def judge(tiers: Sequence[Tier], find: Callable[[Tier], tuple[str, ...]]) -> TierProbe:
    """The first tier that holds. `find`: like `find_open`."""
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
        reasons.append(f"no {tier} sandbox, it did not confine a run: {', '.join(texts)}")
    return TierProbe(Tier.NONE, tuple(reasons))


def find_open(tier: Tier) -> tuple[str, ...]:
    """Names in `OPEN` that worked in a child of this tier. Raises `DriverError` if the child could not be sandboxed, or could not do what
    every launch must do."""
    with tempfile.TemporaryDirectory(prefix="sark-probe-") as folder, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        Path(folder, "model").write_bytes(b"model")
        Path(folder, NEIGHBOUR).write_bytes(b"neighbour")
        dims = {"port": listening.getsockname()[1], "pid": os.getpid(), "size": 2 * LIMITS.output_bytes}
        dims["root"] = int(sys.platform == "linux" and linux.drops_root())
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
    """The reason, with advice for the owner if there is any."""
    if "user namespace" in why or "private mounts" in why or "namespaces:" in why:
        return (
            f"{why}; the system does not let users create namespaces: see user.max_user_namespaces,"
            " kernel.apparmor_restrict_unprivileged_userns, or the container's own rules"
        )
    return why

"""Which tier of sandbox this device reaches: what a child of a real launch experienced, not what a kernel's version promises.

    probe() ─▶ Probe(tier="full" | "partial" | "none", reasons=("why it is not more", …))

What is in each tier, and what is not promised: docs/decisions/2026-11-21-sandbox.md.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from drivers.contract import frames
from drivers.contract.base import MIB, Crashed, DriverError, Limits, RunFindings, WorkOrder
from drivers.launch import tier_probe
from drivers.launch.process import ZygoteProcess
from drivers.sandbox.rlimits import Tier

PROBE_S: Final = 20.0
LIMITS: Final = Limits(load_s=PROBE_S, run_s=PROBE_S, memory_bytes=256 * MIB, output_bytes=4 * MIB)
NEEDED: Final = ("reads_secret", "writes_outside", "connects")
"""Of which at least one is refused on the partial tier."""


class TierProbe(NamedTuple):
    """What this device reaches. `reasons`: why it is not more and what is open, one line each; empty for the full tier."""

    tier: Tier
    reasons: tuple[str, ...]


LADDER: Final = (Tier.FULL, Tier.PARTIAL)


def probe(platform: str = sys.platform, tiers: Sequence[Tier] = LADDER) -> TierProbe:
    """Try `tiers`, the best first, in real children (blocking, a few tenths of a second)."""
    if platform == "win32":
        open_ = "a run's memory and processes are bounded, what it reads and reaches is not"
        return TierProbe(Tier.NONE, (f"Windows: {open_}",))
    if platform == "darwin":
        found = judge([tier for tier in tiers if tier is not Tier.FULL], experienced)
        return TierProbe(
            found.tier, ("macOS: nothing hides other processes or bounds memory", *found.reasons)
        )
    return judge(tiers, experienced)


def judge(tiers: Sequence[Tier], experience: Callable[[Tier], tuple[str, ...]]) -> TierProbe:
    """The first tier that its child found to hold. `experience`: see `experienced`."""
    reasons: list[str] = []
    for tier in tiers:
        try:
            open_ = experience(tier)
        except DriverError as why:
            reasons.append(f"no {tier} sandbox: {_hinted(str(why))}")
            continue
        words = tuple(tier_probe.OPEN[name] for name in open_)
        if tier is Tier.FULL and not open_:
            return TierProbe(tier, ())
        if tier is Tier.PARTIAL and not set(NEEDED) <= set(open_):
            return TierProbe(tier, (*reasons, *words))
        reasons.append(f"no {tier} sandbox, a run was not held by it: {', '.join(words)}")
    return TierProbe(Tier.NONE, tuple(reasons))


def experienced(tier: Tier) -> tuple[str, ...]:
    """Names of `sandbox_probe.OPEN` that a child of this tier managed to do. Raises `DriverError` when it could not be shut in,
    or could not do what every launch must.
    """
    with tempfile.TemporaryDirectory(prefix="sark-probe-") as folder, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        Path(folder, "model").write_bytes(b"model")
        Path(folder, tier_probe.BESIDE).write_bytes(b"beside")
        dims = {"port": listening.getsockname()[1], "pid": os.getpid(), "room": 2 * LIMITS.output_bytes}
        order = WorkOrder(str(Path(folder).resolve() / "model"), tier_probe.UNIT, 1, 1, dims=dims)
        process = ZygoteProcess(tier_probe.NAME, False, True, tier)
        try:
            figures = _figures(process, order)
        finally:
            process.close()
    return tuple(name for name in tier_probe.OPEN if figures.get(name, 1.0))


def _figures(process: ZygoteProcess, order: WorkOrder) -> dict[str, float]:
    told = frames.pack_order(order, LIMITS, tier_probe.NAME, False, "run")
    running = process.fork(told, LIMITS.output_bytes)
    until = time.monotonic() + PROBE_S
    found: dict[str, float] | None = None
    words = ""
    try:
        for payload in running.frames(lambda: until):
            said = frames.unpack(payload)
            if isinstance(said, tuple):
                raise Crashed(said[1])
            if isinstance(said, RunFindings):
                found = dict(said.figures)
    except TimeoutError:
        raise Crashed(f"no answer within {PROBE_S:g} s") from None
    except frames.Garbled as why:
        raise Crashed(f"its answer makes no sense: {why}") from why
    finally:
        words = running.close()
    if found is None:
        last = words.splitlines()[-1] if words else ""
        raise Crashed(f"it ended with {running.code}: {last}")
    return found


def _hinted(why: str) -> str:
    """With what an owner can do about it, where that is known."""
    if "user namespace" in why or "private mounts" in why or "namespaces:" in why:
        return (
            f"{why}; the system forbids namespaces to users: see user.max_user_namespaces,"
            " kernel.apparmor_restrict_unprivileged_userns, or the container's own rules"
        )
    return why

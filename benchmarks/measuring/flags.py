"""Does a row say so when something else was running? A burner is started or not, by a coin that the measuring does not see.

    python benchmarks/measuring/flags.py [trials]

Each trial is a whole measurement as `sark-node bench` makes it: driver, launches, record, row. The label is the coin: with a burner, one
process that spins on one processor all the while. Counted is whether the row's verdict tells of a busy host, wherever it stands among its
reasons (target: at least 95 % of the rows with a burner, at most 5 % of those without). A host that is busy with other work of its own
has no trials without load: how much others take is read from /proc/stat for half a second before each trial, the burner not yet running,
and what was measured on a host that was not quiet is counted apart. Pressure, others' share and steal are printed, to choose thresholds.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from node.run.local import LocalDevice
from scheduler.local.bench import Bench, Measurement
from swarm.base.home import Home

QUIET = 0.05
"""Share of the processors that others may take before a trial for it to count as one on a quiet host."""
MAX_WAIT_S = 5.0
ASKED = ({"precision": 0.02, "threads": 1}, {"runs": 120, "threads": 1})


def model() -> Path:
    """A model of about 5 ms that an installed package carries."""
    spec = find_spec("magika")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "models" / "standard_v3_3" / "model.onnx"


def taken(seconds: float) -> float:
    """Share of all processors' time that is taken, measured while this process sleeps."""

    def ticks() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), sum(fields) - fields[3] - fields[4]

    before = ticks()
    time.sleep(seconds)
    after = ticks()
    return (after[1] - before[1]) / max(after[0] - before[0], 1)


def wait_for_quiet() -> float:
    """What others take: as little as there is within some seconds."""
    least = taken(0.5)
    until = time.monotonic() + MAX_WAIT_S
    while least > QUIET and time.monotonic() < until:
        least = min(least, taken(0.5))
    return least


def trial(bench: Bench, path: Path, burning: bool, asked: Mapping[str, float]) -> Measurement:
    """One measurement beside a burner, or without."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if burning else None
    try:
        return bench.measure(path, "CPU (ONNX)", **asked)
    finally:
        if burner is not None:
            burner.kill()
            burner.wait()


def is_flagged(measured: Measurement) -> bool:
    """Whether the row says that the host was busy."""
    words = ("waited for a processor", "went to other work", "taken by the hypervisor")
    return any(word in measured.why for word in words)


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    chance = random.Random()
    path = model()
    counts: dict[tuple[bool, bool], list[bool]] = {}
    with tempfile.TemporaryDirectory() as folder, Bench(LocalDevice(Home.at(Path(folder)))) as bench:
        print(
            f"{'burner':>6} {'before':>7} {'asked':>10} {'stall %':>8} {'others %':>8} {'steal %':>8}  verdict"
        )
        for number in range(trials):
            burning = chance.random() < 0.5
            request = dict(ASKED[number % len(ASKED)])
            before = wait_for_quiet()
            measured = trial(bench, path, burning, request)
            counts.setdefault((burning, before <= QUIET), []).append(is_flagged(measured))
            row = measured.row
            numbers = " ".join(
                f"{'-' if value is None else format(value, '.1f'):>8}"
                for value in (row.stall_percent, row.others_percent, row.steal_percent)
            )
            print(
                f"{burning!s:>6} {before:7.0%} {next(iter(request)):>10} {numbers}  {row.verdict}", flush=True
            )
    for (burning, quiet), flagged in sorted(counts.items(), reverse=True):
        label = (
            f"{'with' if burning else 'without'} a burner, {'quiet host' if quiet else 'host busy already'}"
        )
        print(f"{label}: {sum(flagged)} of {len(flagged)} rows say that the host was busy")


if __name__ == "__main__":
    main()

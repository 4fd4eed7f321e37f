"""Does `bench --compare` find what is there, and nothing else? Two models that are the same, and two of which one does 5 % more.

    python benchmarks/measuring/duet.py [trials]

Each trial is a whole comparison as `sark-node bench A B --compare` makes it: both in one process in turns, six launches or up to forty.
The models are chains of equal dense layers: 20 beside 20 in a second file, and 20 beside 21. Printed for each: the words, the ratios of
the trials and their median (targets: A/A within 1 %, and never called FASTER or SLOWER; the slowdown called SLOWER in at least 90 %).
The two kinds alternate, so that the host is the same for both.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from precision import layers

from node.run.local import LocalDevice
from results.row.comparison import Comparison
from scheduler.local.bench import Bench
from swarm.base.home import Home

DEPTH = 20


def main() -> None:
    """Print the table."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as folder, Bench(LocalDevice(Home.at(Path(folder) / "home"))) as bench:
        base, twin, more = (
            layers(Path(folder) / f"{name}.onnx", 256, 16, depth)
            for name, depth in (("base", DEPTH), ("twin", DEPTH), ("more", DEPTH + 1))
        )
        by_key: dict[str, list[Comparison]] = {"the same": [], f"{1 / DEPTH:.0%} more work": []}
        took: list[float] = []
        for _ in range(trials):
            for (kind, result), other in zip(by_key.items(), (twin, more), strict=True):
                began = time.monotonic()
                result.append(bench.compare(base, other, threads=1)[0])
                took.append(time.monotonic() - began)
                last = result[-1]
                print(f"{kind:>14}: {last.verdict:<9} {last.why}", flush=True)
    for kind, result in by_key.items():
        ratios = sorted(each.ratio for each in result if each.ratio is not None)
        words = ", ".join(
            f"{word} {count}" for word, count in Counter(each.verdict for each in result).items()
        )
        print(
            f"{kind}: {words}; ratio {statistics.median(ratios):.4f} (from {ratios[0]:.4f} to {ratios[-1]:.4f})"
        )
    print(f"one comparison took {statistics.median(took):.1f} s")


if __name__ == "__main__":
    main()

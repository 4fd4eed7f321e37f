"""Power cuts at the writes of the real services: `python -m tests.durability` records some runs and cuts each at every operation.

python -m tests.durability [--runs 4] [--tasks 24] [--seed 1]     figures; each breach with the operation after which power went
python -m tests.durability --runs 1 --seed 3 --keep FOLDER        leave the log and the files of that run there
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import structlog

from tests.durability.disk import Loss
from tests.durability.journal import operations
from tests.durability.record import record
from tests.durability.replay import Figures, replay

ROTATING: Final = (Loss.KEPT, Loss.NAMES, Loss.BYTES)
MEMORY: Final = Path("/dev/shm")  # (thousands of folders that live for milliseconds)


def losses_at(cut: int) -> tuple[Loss, ...]:
    """Three disks for each cut."""
    return (Loss.LOST, Loss.TORN, ROTATING[cut % len(ROTATING)])


def run(folder: Path, *, tasks: int, seed: int, every: int = 1, enough: int = 50) -> Figures:
    """Record a run in `folder`, and cut it after each `every`th operation."""
    recorded = record(folder, tasks=tasks, seed=seed)
    with tempfile.TemporaryDirectory(prefix="sark-cuts-", dir=MEMORY if MEMORY.is_dir() else None) as work:
        return replay(
            operations(recorded.log, recorded.root),
            Path(work),
            lambda cut: losses_at(cut // every) if cut % every == 0 else (),
            seed=seed,
            enough=enough,
            final=recorded.root,
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durability", description="Power cuts.")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=24, help="of each run")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--every", type=int, default=1, help="cut after each so many operations")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began = time.monotonic()
    figures = Figures()
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sark-power-")))
        for seed in range(given.seed, given.seed + given.runs):
            place = folder / f"{seed}"
            place.mkdir(parents=True)
            of_seed = run(place, tasks=given.tasks, seed=seed, every=given.every)
            for breach in of_seed.breaches:
                print(f"seed {seed}, {breach}")
            figures.add(of_seed)
    print(
        f"{figures.operations:,} operations, {figures.cuts:,} power cuts, {figures.states:,} disks left by them: "
        f"{sum(figures.promises.values()):,} promises, held {figures.checks:,} times against a disk; "
        f"{len(figures.breaches)} broken; {time.monotonic() - began:.0f} s"
    )
    print(json.dumps(dict(figures.promises.most_common())))
    return 1 if figures.breaches else 0


if __name__ == "__main__":
    sys.exit(main())

"""Power cuts at the writes of the real services: `python -m tests.durability` records some runs and cuts each after every operation.

python -m tests.durability [--runs 2] [--tasks 12] [--seed 1]     figures; each breach with the operation after which power went
python -m tests.durability --only gate --seed 3 --keep FOLDER     leave the log and the files of these runs there
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Final

import structlog

from tests.durability.disk import Loss
from tests.durability.journal import operations
from tests.durability.record import record
from tests.durability.replay import Figures, replay

ROTATING: Final = (Loss.KEPT, Loss.NAMES, Loss.BYTES)
MEMORY: Final = Path("/dev/shm")  # (thousands of folders that live for milliseconds)
SCENARIOS: Final = ("campaign", "adoption", "restore", "api", "gate", "experiment")


def losses_at(cut: int) -> tuple[Loss, ...]:
    """Three disks for each cut."""
    return (Loss.LOST, Loss.TORN, ROTATING[cut % len(ROTATING)])


def run(folder: Path, scenario: str, *, tasks: int, seed: int, every: int = 1, enough: int = 50) -> Figures:
    """Record a run in `folder`, and cut it after each `every`th operation."""
    recorded = record(folder, scenario, tasks=tasks, seed=seed)
    with tempfile.TemporaryDirectory(prefix="sark-cuts-", dir=MEMORY if MEMORY.is_dir() else None) as work:
        return replay(
            operations(recorded.log, recorded.root),
            Path(work),
            lambda cut: losses_at(cut // every) if cut % every == 0 else (),
            seed=seed,
            enough=enough,
            final=recorded.root,
        )


def run_quietly(folder: Path, scenario: str, tasks: int, seed: int, every: int) -> Figures:
    """`run`, in its own process and without logs."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    folder.mkdir(parents=True)
    return run(folder, scenario, tasks=tasks, seed=seed, every=every)


def run_all(folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, int, Figures]]:
    """Run every scenario with every seed, in as many processes as there are processors."""
    wanted = [
        (scenario, seed)
        for seed in range(given.seed, given.seed + given.runs)
        for scenario in given.only or SCENARIOS
    ]
    with ProcessPoolExecutor(given.parallel) as pool:
        tried = {
            pool.submit(
                run_quietly, folder / f"{scenario}-{seed}", scenario, given.tasks, seed, given.every
            ): (scenario, seed)
            for scenario, seed in wanted
        }
        for done in as_completed(tried):
            yield *tried[done], done.result()


def line(figures: Figures, seconds: float) -> str:
    """The figures as a line for people."""
    return (
        f"{figures.cuts:,} power cuts and {figures.between:,} more after a promise alone, "
        f"{figures.states:,} disks left by them: {sum(figures.promises.values()):,} promises, "
        f"held {figures.checks:,} times against a disk; {len(figures.breaches)} broken; {seconds:.0f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durability", description="Power cuts.")
    parser.add_argument("--runs", type=int, default=2, help="of each scenario")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="this scenario; repeatable")
    parser.add_argument("--tasks", type=int, default=12, help="of each run")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--every", type=int, default=1, help="cut after each so many operations")
    parser.add_argument("--parallel", type=int, default=os.cpu_count(), help="runs at once")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    began = time.monotonic()
    figures = Figures()
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sark-power-")))
        for scenario, seed, found in run_all(folder, given):
            print(f"{scenario}, seed {seed}: {line(found, time.monotonic() - began)}", flush=True)
            for breach in found.breaches:
                print(f"  {breach}")
            figures.add(found)
    print(line(figures, time.monotonic() - began))
    print(json.dumps(dict(figures.promises.most_common())))
    return 1 if figures.breaches else 0


if __name__ == "__main__":
    sys.exit(main())

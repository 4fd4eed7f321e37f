"""Runs of the model from the command line; `make simulate SEEDS=1000` does the first.

python -m tests.simulation --seeds 1000 [--jobs 2]                figures of seeds 0 to 999, and how to see each breach again
python -m tests.simulation --seeds 5000-104999 --report FILE      a line in FILE after every 2,000 seeds, and one for each with a breach
python -m tests.simulation --seed 123 [--trace]                   that very run, event by event
python -m tests.simulation --real-store --seeds 100               the product's store beside its double; else in every 20th seed
python -m tests.simulation --swarm --seeds 20                     the real services on the in-memory swarm instead
python -m tests.simulation --day --seeds 2                        whole days of quiet hours, pauses and reboots, a minute each
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tests.simulation.model import FAITHFUL, STORM, WITH_STORE, Outcome, few_kinds, run

BATCH = 2_000
"""Seeds for each line of a report."""
STORE_EVERY = 20
"""One in this many seeds runs the product's store beside its double."""
STORM_EVERY = 10
"""Of this many seeds, one has many more faults, and one has only a few kinds of fault, over and over."""


@dataclass
class Figures:
    """Totals over many runs."""

    runs: int = 0
    events: int = 0
    seconds: float = 0.0
    began: int = 0
    wasted: int = 0
    breaches: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add one run."""
        self.runs += 1
        self.events += len(outcome.history.events)
        self.seconds += outcome.seconds
        self.began += outcome.began
        self.wasted += outcome.wasted
        self.faults += outcome.faults
        self.breaches.update(breach.invariant for breach in outcome.breaches)
        if outcome.breaches:
            self.failed.append((outcome.seed, str(outcome.breaches[0])))

    def join(self, other: Figures) -> None:
        """Add the totals of another process."""
        for name in ("runs", "events", "seconds", "began", "wasted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults
        self.breaches += other.breaches
        self.failed += other.failed


def hush() -> None:
    """Silence the services' own logs."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def one(seed: int, mode: str = "") -> Outcome:
    """One run. `mode`: empty, or the flag "swarm", "day", "storms" or "real-store"."""
    if mode == "swarm":
        from tests.simulation.swarm_run import run_swarm

        hush()
        return run_swarm(seed)
    if mode == "day":
        from tests.simulation.day import run_day

        return run_day(seed)
    if mode == "storms":
        return run(seed, STORM if seed % 2 else few_kinds(seed))
    if mode == "real-store" or seed % STORE_EVERY == 0:
        return run(seed, WITH_STORE)
    match seed % STORM_EVERY:
        case 5:
            return run(seed, STORM)
        case 8:
            return run(seed, few_kinds(seed))
        case _:
            return run(seed, FAITHFUL)


def some(first: int, count: int, mode: str = "") -> Figures:
    """The figures of `count` runs, one after the other."""
    figures = Figures()
    for seed in range(first, first + count):
        figures.add(one(seed, mode))
    return figures


def many(first: int, count: int, jobs: int, mode: str = "") -> Figures:
    """The figures of `count` runs, in several processes. An interrupt ends them: the runs finished by then count."""
    figures = Figures()
    step = max(1, min(50, count // jobs))
    starts = range(first, first + count, step)
    began = time.perf_counter()
    # frozen modules are not collected, which saves a tenth of the time
    with ProcessPoolExecutor(jobs, initializer=gc.freeze) as pool:
        parts = [pool.submit(some, at, min(step, first + count - at), mode) for at in starts]
        try:
            for part in as_completed(parts):
                figures.join(part.result())
                _progress(figures, count, time.perf_counter() - began)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
    return figures


def _progress(figures: Figures, count: int, took: float) -> None:
    if sys.stderr.isatty():
        text = f"{figures.runs} of {count} seeds, {figures.runs / took:.1f} a second, {len(figures.failed)} with a breach"
        print(f"\r{text} ", end="\n" if figures.runs == count else "", file=sys.stderr, flush=True)


def commit() -> str:
    """The commit at which a seed has to be replayed, and whether files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip()[:12] + (" with uncommitted changes" if changed.stdout else "")


def seeds(words: str) -> range:
    """The seeds that `1000` (0 to 999) or `5000-5999` names. Raises `ValueError`."""
    first, dash, last = words.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def report(figures: Figures, batch: range, took: float, mode: str) -> list[str]:
    """The lines of a report about one batch."""
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    about = f"{when} commit {commit()} seeds {batch.start}-{batch.stop - 1}: {figures.runs} episodes, {figures.runs / took:.1f} a second"
    return [f"{about}, {len(figures.failed)} with a breach", *replays(figures, mode)]


def replays(figures: Figures, mode: str) -> list[str]:
    """Commands that replay each run with a breach."""
    flag = f" --{mode}" if mode else ""
    return [
        f"  python -m tests.simulation{flag} --seed {seed} --trace    # {what}"
        for seed, what in sorted(figures.failed)
    ]


def show(figures: Figures, batch: range, took: float, mode: str) -> None:
    """Print the figures."""
    rate = figures.runs / max(took, 1e-9)
    print(f"commit {commit()}, seeds {batch.start} to {batch.stop - 1}")
    print(
        f"{figures.runs} episodes in {took:.0f} s ({rate:.1f} a second), {figures.seconds / 3600:.1f} simulated hours"
    )
    print(f"events {figures.events}, runs of models {figures.began}, wasted {figures.wasted}")
    print("faults:")
    for name, count in sorted(figures.faults.items()):
        print(f"  {name:28} {count}")
    print(f"breaches {sum(figures.breaches.values())} in {len(figures.failed)} seeds")
    for name, count in figures.breaches.most_common():
        print(f"  {name:28} {count}")
    for line in replays(figures, mode)[:50]:
        print(line)


def replay(seed: int, mode: str, *, trace: bool) -> Outcome:
    """Run one seed again, with its full trace."""
    outcome = one(seed, mode)
    if trace:
        for event in outcome.history.events:
            print(event)
    print(f"seed {seed}: {len(outcome.history.events)} events, history {outcome.history.digest()[:16]}")
    print(f"faults: {dict(outcome.faults)}")
    for breach in outcome.breaches:
        print(f"BREACH {breach}")
    return outcome


def main() -> int:
    """Returns 0 if every invariant held."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one run")
    parser.add_argument("--trace", action="store_true", help="print its events")
    parser.add_argument("--seeds", type=seeds, default=seeds("1000"), metavar="N | FIRST-LAST")
    parser.add_argument("--report", type=Path, help="append the figures of each batch to this file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--swarm", action="store_true", help="the real services on the in-memory swarm")
    parser.add_argument("--real-store", action="store_true", help="SQLite beside the double of the store")
    parser.add_argument("--storms", action="store_true", help="much goes wrong in every run")
    parser.add_argument("--day", action="store_true", help="whole days of devices that are away now and then")
    args = parser.parse_args()
    mode = next(
        (name for name in ("swarm", "day", "storms", "real_store") if getattr(args, name)), ""
    ).replace("_", "-")
    if args.seed is not None:
        return int(bool(replay(args.seed, mode, trace=args.trace).breaches))
    figures, began = Figures(), time.perf_counter()
    step = BATCH if args.report else len(args.seeds)
    for at in range(0, len(args.seeds), step):
        batch, since = args.seeds[at : at + step], time.perf_counter()
        done = many(batch.start, len(batch), args.jobs, mode)
        figures.join(done)
        if args.report:
            with args.report.open("a") as file:
                file.writelines(
                    f"{line}\n" for line in report(done, batch, time.perf_counter() - since, mode)
                )
        if done.runs < len(batch):
            break
    show(figures, args.seeds, time.perf_counter() - began, mode)
    return int(bool(figures.failed))


if __name__ == "__main__":
    sys.exit(main())

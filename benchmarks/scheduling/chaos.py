"""Short tasks on real workers while processes are killed and links are cut: does everything end, once, and how soon does it go on?

    python benchmarks/scheduling/chaos.py [--seed 1] [--tasks 300] [--workers 5] [--every 3] [--within 900] [--only "worker killed"]
    python benchmarks/scheduling/chaos.py --kills 200 [--seed 1] [--series worker scheduler child gate server "two homes" "64 slots"]

The first is one storm of all kinds. The second kills with -9 alone, in series of one kind or a few, each in a swarm of its own, and prints
a table in Markdown: tasks lost, results recorded twice, runs for nothing, time to come back.

Real processes on loopback: a gate, workers, the scheduler process that `submit` started and that `submit` or `watch` starts again. Every
few seconds one of them (or a run's own process, or a zygote) is killed with -9 or frozen with SIGSTOP for 1 to 20 s, or the link to a
worker is reset, silenced or refused by a relay before its port. A supervisor starts again what died, after a moment. What is struck,
and when, follows from the seed. The tasks are of the simulated unit and sleep for `--task` seconds; where this is root on Linux each
worker is a device of its own, else they measure one at a time.

  recovery  from the strike until each task that ran there has its result, or runs under a new attempt: so with the time until a place is
            free elsewhere, where all are busy, and after a model's own process died with the backoff of a failed try; of a killed
            scheduler: until its successor has its first grant or result; of a gate and a server: from their start until they listen
  again     the same, of tasks that were struck again before: at the scheduler, or at the worker they were at or had gone to. The faults
            come so often that this is common; it says how long several of them take in a row, and nothing of the kind it stands beside
  wasted    runs that workers began, less records that the scheduler kept

Exit code 1, with the seed, on any breach: a task without its one result, a record twice, a process left over, an invariant broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.real.aftermath import Figures, percentiles
from tests.real.apart import can_be_apart
from tests.real.lab import Lab
from tests.real.series import HEADS, SERIES, kills_of, run_series, storm_over
from tests.real.strikes import Kind, Plan


def show(found: Figures, lost: int) -> None:
    print(f"\n{found.tasks} tasks in {found.wall:.1f} s, {sum(found.faults.values())} faults")
    heads = f"{'p50':>8} {'p90':>8} {'max':>8} {'n':>5}"
    print(f"\n{'recovery, s':<24} {'faults':>6} {heads}   again: {heads}")
    for kind, count in sorted(found.faults.items()):
        once, again = percentiles(found.recovery[kind]), percentiles(found.again[kind])
        print(f"{kind:<24} {count:6d} {once}          {again}")
    attempts = Counter(found.attempts)
    text = ", ".join(f"{count} × {number}" for number, count in sorted(attempts.items()))
    print(f"\nattempts of a task (refusals and hand-overs count): {text}")
    print(
        f"runs begun {found.begun}, records kept {found.recorded}, wasted {found.wasted}, results lost {lost}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--task", type=float, default=1.5, help="seconds that a run takes")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two faults, on average")
    parser.add_argument(
        "--only", nargs="+", type=Kind, default=Plan(0).kinds, help="strike in these ways alone"
    )
    parser.add_argument("--within", type=float, default=900.0)
    parser.add_argument("--keep", type=Path, help="leave logs and stores there")
    parser.add_argument("--kills", type=int, help="the series instead, with so many kills in all")
    parser.add_argument("--series", nargs="+", choices=[one.name for one in SERIES], help="these alone")
    parser.add_argument(
        "--slow", type=float, default=3.0, help="so many times as long as is promised may pass, in a series"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run = one_storm if arguments.kills is None else all_series
        breaches = run(folder, arguments)
    for breach in breaches:
        print(f"BREACH {breach}")
    if breaches:
        print(f"repeat with: python benchmarks/scheduling/chaos.py {' '.join(sys.argv[1:])}")
        sys.exit(1)
    print("every task has its one result; nothing is left over")


def all_series(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Run them and print a table; gives what should not have been."""
    chosen = [one for one in SERIES if arguments.series is None or one.name in arguments.series]
    rows, breaches = list(HEADS), []
    for series, kills in kills_of(chosen, arguments.kills).items():
        toll = run_series(
            series, kills, arguments.seed, folder, every_s=arguments.every, slow=arguments.slow,
            say=lambda line: print(line, flush=True),
        )  # fmt: skip
        print("\n".join(toll.rows(series.name)), flush=True)
        rows += toll.rows(series.name)
        breaches += toll.breaches
    print("\n".join(("", *rows)))
    return breaches


def one_storm(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Run it and print its figures; gives what should not have been."""
    plan = Plan(
        arguments.seed, tasks=arguments.tasks, task_s=arguments.task, every_s=arguments.every,
        within_s=arguments.within, kinds=arguments.only,
    )  # fmt: skip
    names = [f"worker-{number}" for number in range(1, arguments.workers + 1)]
    lab = Lab(folder, ("ada",), workers=names, apart=can_be_apart())
    print(
        f"seed {plan.seed}; devices of their own: {'yes' if lab.apart else 'no, they measure one at a time'}"
    )
    result, breaches, _ = storm_over(lab, plan, folder, print)
    show(result, sum(breach.startswith("acknowledged_is_durable") for breach in breaches))
    return breaches


if __name__ == "__main__":
    main()

"""Short tasks on real workers while processes are killed and links are cut: does every task end, exactly once, and how soon does work
resume?

    python benchmarks/scheduling/chaos.py [--seed 1] [--tasks 300] [--workers 5] [--every 3] [--within 900] [--only "worker killed"]
    python benchmarks/scheduling/chaos.py --kills 200 [--seed 1] [--series worker scheduler child gate server "two homes" "64 slots"]

The first command is one storm of all kinds of faults. The second only kills with -9, in series of one or a few kinds, each in its own
swarm, and prints a table in Markdown: tasks lost, results recorded twice, wasted runs, recovery time.

Real processes on loopback: a gate, workers, and the scheduler process, which `submit` starts and `submit` or `watch` restarts. Every few
seconds one of them (or a run's own process, or a zygote) is killed with -9 or frozen with SIGSTOP for 1 to 20 s, or a relay in front of a
worker's port resets, silences or refuses its link. A supervisor restarts dead processes after a moment. The seed determines the targets and
times. The tasks are of the simulated unit and sleep for `--task` seconds. As root on Linux each worker is a device of its own; otherwise
they measure one at a time.

  recovery  from the strike until each task that ran there has its result or runs under a new attempt. This includes the wait for a free
            slot elsewhere, if all are busy, and the backoff of a failed try after a model's own process died. For a killed scheduler:
            until its successor has its first grant or result; for a gate and a server: from their start until they listen
  again     the same for tasks that were struck again before that: at the scheduler, or at a worker where they were or had gone. Faults
            are frequent enough to make this common; it shows how long several in a row take, and says nothing about the kind in its row
  wasted    runs that workers began, minus records that the scheduler kept

Exit code 1, with the seed, on any breach: a task without exactly one result, a duplicate record, a leftover process, a broken invariant.
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
    """Run the series and print a table; return the breaches."""
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
    """Run the storm and print its figures; return the breaches."""
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

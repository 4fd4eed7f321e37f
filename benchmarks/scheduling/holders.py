"""What workers that grant a task, renew it and never answer cost a campaign; and how often an honest run is hedged for being slow.

    python benchmarks/scheduling/holders.py

On virtual time (`tests/simulation/holders.py`): the product's scheduler and workers over a model of the network, 20 seeds each. The figures
measure decisions, not this machine. "without deadlines" is the scheduler before deadlines existed: it waits for a run until the task's
limits have passed.
"""

from __future__ import annotations

from scheduler.core.scheduler import SchedulerCore
from tests.simulation.holders import HOLDING, HONEST, PRETENDING, of_speeds, play
from tests.simulation.scheduler_mutants import NeverHedgesRuns


def main() -> None:
    """Print the figures."""
    print(
        "10 tasks, 2 honest workers of 0.7 s a run, and 3 that grant, renew and never answer; seconds, median of 20"
    )
    for title, liars in (("no liars", []), ("3 hold", [HOLDING] * 3), ("3 pretend", [PRETENDING] * 3)):
        for models in (1, 10):
            for word, core in (("without deadlines", NeverHedgesRuns), ("with", SchedulerCore)):
                played = [
                    play(seed, [HONEST, HONEST, *liars], 10, models=models, make_core=core)
                    for seed in range(20)
                ]
                times = sorted(each.seconds for each in played)
                done = sum(each.succeeded for each in played)
                print(
                    f"  {title:10} {models:>2} models  {word:18} {times[10]:8.1f} s, worst {times[-1]:8.1f} s, {done} of 200 done"
                )
    print(
        "100 tasks on 8 honest devices, the slowest so many times slower than the fastest: hedged runs of all, 5 campaigns each"
    )
    for slowest in (1.0, 3.0, 10.0, 30.0):
        for steps in (1, 10):
            played = [play(seed, of_speeds(slowest, 8, steps=steps), 100) for seed in range(5)]
            runs, hedged = sum(each.runs for each in played), sum(each.hedged for each in played)
            print(
                f"  {slowest:4.0f} times, {steps:>2} reports a run  {hedged} of {runs} ({hedged / runs:.2%})"
            )


if __name__ == "__main__":
    main()

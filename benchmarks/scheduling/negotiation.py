"""From submit to the first lease, and placements per second: one scheduler, and four that compete for the same workers.

    python benchmarks/scheduling/negotiation.py [--workers 5] [--times 30] [--cold 5] [--bursts 5] [--tiny 100]

Real processes on loopback: a gate, workers (started a few at a time: 60 need about 9 GiB and some minutes), and the homes of four
schedulers, all served by every worker. Tasks are of the simulated unit; as root on Linux each worker is a device of its own. Times come
from the campaigns' own events: `campaign.created` is the moment at which submit is acknowledged, with everything on disk.

  first lease, warm  from there to the first `task.granted`; campaigns of one short task, one after the other, with a scheduler process up
  first lease, cold  the same without a scheduler process: submit starts one
  tickets            more long tasks than the workers take: placements (leases and queued leases) of the first seconds, over the time from
                     the first intent on disk to the last placement on disk. No task ends meanwhile, so this is negotiation alone.
  tiny tasks         a campaign of short tasks, to its end: placements over the same time. The runs need the processors too.
  four               four homes submit at once; placements of all, over the time from the first intent to the last placement of any
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scheduler.store.store import Store
from scheduler.submit.daemon import is_running
from scheduler.submit.submit import cancel_and_wait, submit_campaign
from tests.real.apart import can_be_apart
from tests.real.lab import Lab, script, until

HOMES = ("ada", "bob", "carol", "dave")
BATCH = 6
SETTLE_S = 1.0
"""Seconds without a placement after which a burst is over."""
PLACED = ("task.granted", "task.queued")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--cold", type=int, default=5)
    parser.add_argument("--bursts", type=int, default=5)
    parser.add_argument("--tiny", type=int, default=100, help="tasks of the campaigns of tiny tasks")
    arguments = parser.parse_args()
    names = [f"worker-{number}" for number in range(1, arguments.workers + 1)]
    with tempfile.TemporaryDirectory() as name:
        lab = Lab(Path(name), HOMES, workers=names, apart=can_be_apart())
        try:
            start(lab)
            measure(lab, arguments)
        finally:
            lab.close()


def start(lab: Lab) -> None:
    """Start the gate and the workers."""
    began = time.monotonic()
    lab.start_gate()
    lab.await_up("gate")
    for first in range(0, len(lab.workers), BATCH):
        batch = lab.workers[first : first + BATCH]
        for name in batch:
            lab.start_worker(name)
        for name in batch:
            until(lambda name=name: "is a worker now" in lab.log(name), f"{name} is up", within=120)  # type: ignore[misc]
    print(f"{len(lab.workers)} workers are up after {time.monotonic() - began:.0f} s")


def measure(lab: Lab, arguments: argparse.Namespace) -> None:
    """Run the whole benchmark, and print its tables."""
    one = file(lab, "one", 1, 0.0)
    cold = []
    for _ in range(arguments.cold):
        result = lab.detach("ada", one)
        cold.append(first_lease(lab, "ada", result))
        until(lambda: not is_running(lab.home("ada")), "the scheduler process has ended", within=30)
    for home in HOMES:
        lab.start(home, "schedule", "--gate", lab.gate, "--stay")
        until(lambda home=home: '"scheduler.up"' in lab.log(home), f"{home} is up")  # type: ignore[misc]
        first_lease(lab, home, submit(lab, home, one))
    warm = [first_lease(lab, "ada", submit(lab, "ada", one)) for _ in range(arguments.times)]
    print(f"\n{'submit to first lease, ms':<34} {'p50':>8} {'p99':>8} {'max':>8} {'n':>5}")
    print(summary("warm", warm))
    print(summary("cold", cold))
    for home in HOMES:  # now each knows all workers and the time of a run
        run(lab, (home,), file(lab, "warm-up", 4 * len(lab.workers), 0.0))
    print(f"\n{'placements a second':<34} {'median':>8} {'least':>8} {'most':>8} {'placed':>8}")
    tickets = file(lab, "tickets", 16 * len(lab.workers), 600.0)
    tiny = file(lab, "tiny", arguments.tiny, 0.0)
    for what, campaign, go in (("tickets", tickets, burst), ("tiny tasks", tiny, run)):
        for homes in (HOMES[:1], HOMES):
            observed = [go(lab, homes, campaign) for _ in range(arguments.bursts if go is burst else 1)]
            rates = [count / max(seconds, 1e-3) for count, seconds in observed]
            placed = statistics.median(count for count, _ in observed)
            who = "one scheduler" if len(homes) == 1 else "four schedulers"
            print(
                f"{what + ', ' + who:<34} {statistics.median(rates):8.1f} {min(rates):8.1f} {max(rates):8.1f} {placed:8.0f}"
            )


def summary(name: str, values: Sequence[float]) -> str:
    """A row of the table, in milliseconds."""
    if not values:
        return f"{name:<34} {'–':>8} {'–':>8} {'–':>8} {0:5d}"
    ordered = sorted(values)
    p99 = ordered[round(0.99 * (len(ordered) - 1))]
    return f"{name:<34} {statistics.median(ordered) * 1e3:8.0f} {p99 * 1e3:8.0f} {ordered[-1] * 1e3:8.0f} {len(ordered):5d}"


def file(lab: Lab, name: str, tasks: int, seconds: float) -> Path:
    """A campaign of `tasks` tasks that each take `seconds`."""
    model = script(
        lab.folder, f"model-{seconds:g}.json", latencies_ms=[1000 * seconds / 10], sleep=seconds > 0
    )
    path = lab.folder / f"{name}.yaml"
    content = {
        "campaign": name,
        "models": [{"name": f"{name}-{number}", "path": str(model)} for number in range(tasks)],
        "units": ["Fake (Simulation)"],
        "devices": {"spread": "any"},
        "measure": {"runs": 10, "loads": 1, "warmup": 1},
        "timeouts": {"run": "20m"},
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def submit(lab: Lab, home: str, campaign: Path) -> str:
    """Submit as the command does once it has read the file; a scheduler process is up."""
    return submit_campaign(lab.home(home), campaign, wait_s=60.0)


def events(lab: Lab, home: str, campaign: str) -> dict[str, list[float]]:
    """Times of the campaign's events, by name."""
    by_key: dict[str, list[float]] = {}
    for name, at in lab.ask(home, "SELECT name, at FROM events WHERE campaign = ? ORDER BY seq", campaign):
        by_key.setdefault(name, []).append(at)
    return by_key


def ended(lab: Lab, home: str, campaign: str) -> bool:
    """Whether the campaign is over."""
    return bool(lab.ask(home, "SELECT 1 FROM campaigns WHERE id = ? AND ended IS NOT NULL", campaign))


def first_lease(lab: Lab, home: str, campaign: str) -> float:
    """Seconds to the first lease; waits for the campaign's end."""
    until(lambda: ended(lab, home, campaign), f"{campaign} has ended", within=120)
    observed = events(lab, home, campaign)
    return observed["task.granted"][0] - observed["campaign.created"][0]


def at_once(lab: Lab, homes: Sequence[str], campaign: Path) -> dict[str, str]:
    """Submit on all homes at the same time; return the campaigns' ids."""
    by_key: dict[str, str] = {}
    threads = [
        threading.Thread(target=lambda home=home: by_key.update({home: submit(lab, home, campaign)}))  # type: ignore[misc]
        for home in homes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return by_key


def rate(lab: Lab, found: dict[str, str]) -> tuple[int, float]:
    """Placements of these campaigns, and the seconds that they took."""
    observed = [events(lab, home, campaign) for home, campaign in found.items()]
    placed = [at for each in observed for name in PLACED for at in each.get(name, ())]
    return len(placed), max(placed) - min(min(each["task.committing"]) for each in observed)


def run(lab: Lab, homes: Sequence[str], campaign: Path) -> tuple[int, float]:
    """Run the campaigns to the end."""
    result = at_once(lab, homes, campaign)
    for home, each in result.items():
        until(_has_ended(lab, home, each), f"{each} has ended", within=600, every=0.2)
    return rate(lab, result)


def burst(lab: Lab, homes: Sequence[str], campaign: Path) -> tuple[int, float]:
    """Wait until no worker takes more; then cancel."""
    result = at_once(lab, homes, campaign)

    def over() -> bool:
        observed = [events(lab, home, each) for home, each in result.items()]
        placed = [at for each in observed for name in PLACED for at in each.get(name, ())]
        return (
            all("task.committing" in each for each in observed)
            and time.time() - max(placed, default=time.time()) > SETTLE_S
        )

    until(over, "nobody takes more", within=60, every=0.1)
    figures = rate(lab, result)
    for home, each in result.items():
        with Store(lab.home(home).store) as store:
            cancel_and_wait(store, each, keep_alive=lambda: None)
    return figures


def _has_ended(lab: Lab, home: str, campaign: str) -> Callable[[], bool]:
    return lambda: ended(lab, home, campaign)


if __name__ == "__main__":
    main()

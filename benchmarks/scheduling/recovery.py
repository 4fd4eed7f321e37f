"""How soon work resumes after a worker is killed or falls silent, or the scheduler is killed; and how soon a cancel is confirmed.

    python benchmarks/scheduling/recovery.py [--times 10] [--only reset,silence,frozen,scheduler,cancel]

Real processes on loopback: a gate, three workers, and a scheduler process that `watch` keeps alive. Times come from the campaign's own
events and from the workers' logs, all on this host's clock.

  reset      kill -9 of the worker that runs a task, without a restart → lost, granted elsewhere, the run begins there
  silence    a relay in front of the worker's port passes nothing any more → the same
  frozen     SIGSTOP of the worker's process → the same
  scheduler  kill -9 of the scheduler process in the middle of a queue of short tasks → `watch` has started another (its process
             began), it has adopted the campaign, its first grant or recorded result; `after restart` is the time between the first
             and the last of these
  cancel     of a campaign with a run on each worker and more tasks waiting: from the request being on disk until the campaign has
             ended, after every worker has confirmed that its processes are dead; and the whole `sark-node cancel` command. No process
             of a run may exist when the command returns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import psutil

from tests.real.apart import can_be_apart
from tests.real.lab import Lab, campaign, launches, script, until
from tests.real.relay import Relay, relayed

HOME = "ada"
WORKERS = ("one", "two", "three")
Samples = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--only", default="reset,silence,frozen,scheduler,cancel")
    arguments = parser.parse_args()
    expected = arguments.only.split(",")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lab = Lab(folder, (HOME,), workers=WORKERS, apart=can_be_apart())
        if not lab.apart:
            print(
                "the workers share one device lock: a frozen one keeps the others from measuring",
                file=sys.stderr,
            )
        bench = Bench(lab, folder)
        try:
            with relayed(lab) as bench.relays:
                print(f"{'seconds':<44} {'p50':>8} {'p90':>8} {'p99':>8} {'max':>8} {'n':>4}")
                for what, how in bench.all().items():
                    if what in expected:
                        observed: Samples = defaultdict(list)
                        for _ in range(arguments.times):
                            how(observed)
                        for stage, values in observed.items():
                            print(summary(f"{what}: {stage}", values), flush=True)
        finally:
            lab.close()


def summary(name: str, values: Sequence[float]) -> str:
    """A row of the table."""
    ordered = sorted(values)
    at = [ordered[round(share * (len(ordered) - 1))] for share in (0.9, 0.99, 1.0)]
    return f"{name:<44} {statistics.median(ordered):8.2f} {at[0]:8.2f} {at[1]:8.2f} {at[2]:8.2f} {len(ordered):4d}"


class Bench:
    """The swarm and the faults injected into it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.relays: dict[str, Relay] = {}
        self.long = script(folder, "long.json", latencies_ms=[100.0], sleep=True)
        self.short = script(folder, "short.json", latencies_ms=[20.0], sleep=True)

    def all(self) -> dict[str, Callable[[Samples], None]]:
        """The scenarios by their names on the command line."""
        return {
            "reset": self.reset, "silence": self.silence, "frozen": self.frozen,
            "scheduler": self.scheduler, "cancel": self.cancel,
        }  # fmt: skip

    # -- scenarios ---------------------------------------------------------------------------------------------------------

    def reset(self, seen: Samples) -> None:
        """The worker's process dies, and its port with it."""
        with self.running() as (opened, worker):
            at = time.time()
            self.relays[worker].refuse()  # like the port of a dead process
            self.lab.kill(worker)
            self.moved(opened, worker, at, seen)
        self.lab.start_worker(worker, *self.lab.more[worker])
        self.lab.await_up(worker, self.lab.log(worker).count("is a worker now"))
        self.relays[worker].mend()

    def silence(self, seen: Samples) -> None:
        """Nothing passes between the worker and the scheduler."""
        with self.running() as (opened, worker):
            at = time.time()
            self.relays[worker].silence()
            try:
                self.moved(opened, worker, at, seen)
            finally:
                self.relays[worker].mend()

    def frozen(self, seen: Samples) -> None:
        """The worker's process is stopped."""
        with self.running() as (opened, worker):
            at = time.time()
            self.lab.running[worker].send_signal(signal.SIGSTOP)
            try:
                self.moved(opened, worker, at, seen)
            finally:
                self.lab.running[worker].send_signal(signal.SIGCONT)

    def moved(self, found: str, worker: str, at: float, seen: Samples) -> None:
        """Wait until the task runs elsewhere, and record the times of the steps."""
        others = [name for name in WORKERS if name != worker]
        until(
            lambda: [task for task in self.lab.tasks(HOME, found) if task.runs and task.device in others],
            "the task runs elsewhere", within=90,
        )  # fmt: skip
        names = {name: when for when, name in self.events(found) if when > at}
        began = max(when for name in others for when in self.began(name, found))
        seen["known to be lost"].append(names["task.lost"] - at)
        seen["granted elsewhere"].append(names["task.granted"] - at)
        seen["running elsewhere"].append(began - at)

    def scheduler(self, seen: Samples) -> None:
        """The scheduler process dies; `watch` starts another."""
        file = campaign(self.folder, "queue", self.many(200), measure={"runs": 5, "loads": 1, "warmup": 1})
        result = self.lab.detach(HOME, file)
        until(lambda: sum(t.state == "succeeded" for t in self.lab.tasks(HOME, result)) > 3, "it goes on")
        with self.watching(result):
            time.sleep(2.0)  # the terminal is up; it checks on the scheduler about once a second
            old = self.lab.scheduler_pid(HOME)
            at = time.time()
            os.kill(old, signal.SIGKILL)
            until(
                lambda: [1 for when, name in self.events(result) if when > at and name in _WORDS],
                "it is back",
            )
            after = [(when, name) for when, name in self.events(result) if when > at]
            adopted = next(when for when, name in after if name == "campaign.adopted")
            first = next(when for when, name in after if when > adopted and name in _WORDS)
            new = psutil.Process(self.lab.scheduler_pid(HOME)).create_time()
            seen["another process began"].append(new - at)
            seen["campaign adopted"].append(adopted - at)
            seen["first grant or result"].append(first - at)
            seen["after restart"].append(first - new)
        self.stop(result)

    def cancel(self, seen: Samples) -> None:
        """A user cancels a campaign."""
        file = self.folder / "cancelled.yaml"
        file.write_text(json.dumps(_cancelled(self.long)), encoding="utf-8")
        result = self.lab.detach(HOME, file)
        until(
            lambda: sum(task.runs for task in self.lab.tasks(HOME, result)) == len(WORKERS),
            "a run on each worker",
        )
        began = time.monotonic()
        done = self.lab.run(HOME, "cancel", result, "--gate", self.lab.gate)
        whole = time.monotonic() - began
        left = [pid for name in WORKERS for pid in self.runs(name)]
        if done.code or left:
            raise SystemExit(f"not cancelled: {done}\nstill running: {left}")
        at = {name: when for when, name in self.events(result)}
        seen["confirmed"].append(at["campaign.ended"] - at["cancel.requested"])
        seen["the whole command"].append(whole)

    # -- helpers -------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[str, str]]:
        """A campaign with one running task of 25 s: its id and the worker. Cancelled at the end.

        An unreachable worker finishes its run while no other task needs the device: the next campaign waits for that.
        """
        until(lambda: self.free(), "all workers are there", within=60)
        result = self.lab.detach(
            HOME, campaign(self.folder, "long", [self.long], measure={"runs": 250, "loads": 1})
        )
        until(lambda: [task for task in self.lab.tasks(HOME, result) if task.runs], "the task runs")
        (task,) = self.lab.tasks(HOME, result)
        yield result, task.device
        self.stop(result)

    def free(self) -> bool:
        """Whether no worker is running a model."""
        return not [pid for name in WORKERS for pid in self.runs(name)]

    def many(self, count: int) -> list[Path]:
        """Many paths to the short model, under different names."""
        paths = []
        for number in range(count):
            path = self.folder / f"short-{number}.json"
            if not path.exists():
                path.symlink_to(self.short)
            paths.append(path)
        return paths

    @contextlib.contextmanager
    def watching(self, found: str) -> Iterator[None]:
        """A terminal that watches the campaign."""
        with subprocess.Popen(
            self.lab.command(HOME, "watch", found, "--gate", self.lab.gate, "--json"),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=self.folder, env=self.lab.environment(HOME),
        ) as terminal:  # fmt: skip
            try:
                yield
            finally:
                terminal.kill()

    def stop(self, found: str) -> None:
        """Cancel the campaign."""
        self.lab.run(HOME, "cancel", found, "--gate", self.lab.gate)

    def events(self, found: str) -> list[tuple[float, str]]:
        """The campaign's events with their times."""
        return self.lab.ask(HOME, "SELECT at, name FROM events WHERE campaign = ? ORDER BY seq", found)  # type: ignore[return-value]

    def began(self, worker: str, found: str) -> list[float]:
        """When runs of the campaign began on the worker."""
        lines = [
            line for line in self.lab.log(worker).splitlines() if '"run.began"' in line and found in line
        ]
        return [datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp() for line in lines]

    def runs(self, worker: str) -> list[int]:
        """Processes that run a model on the worker."""
        return launches(self.lab, worker)


_WORDS = ("task.granted", "task.queued", "task.succeeded")


def _cancelled(model: Path) -> dict[str, object]:
    return {
        "campaign": "cancelled",
        "models": [{"name": f"long-{number}", "path": str(model)} for number in range(9)],
        "units": ["Fake (Simulation)"],
        "devices": {"spread": "any"},
        "measure": {"runs": 600, "loads": 1},
    }


if __name__ == "__main__":
    main()

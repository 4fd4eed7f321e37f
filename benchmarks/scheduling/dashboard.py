"""How fast the dashboard is with a large campaign: first view, all tasks drawn, and frames during scrolling and while tasks change.

    python benchmarks/scheduling/dashboard.py [--tasks 1000] [--changes 200] [--seconds 4] [--views 5]

A real `sark-node serve` on loopback over a store with one campaign (20 models, 2 units, 25 devices; some done, some running, some waiting),
viewed with headless Chromium at 1400 × 900. No task really runs: another connection writes progress, as a scheduler does.

  first view    from requesting the address to the campaign's name on the page, in a fresh browser context each time; median and worst
  drawn         from the same start until every task is there
  frames        time between two frames, in ms: median, 95th percentile, worst; a 60 Hz screen can show one every 16.7 ms
  requests      files and answers of the first view, and their bytes
  script        ms of the page's own work before a frame while tasks change: median, 95th percentile, worst
  busy          share of the time in which the page's thread worked for 50 ms or longer without a pause (`longtask`)
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, sync_playwright

from protocol.errors import SarkError
from protocol.formats.phase import Phase
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from scheduler.core.commands import CommitTo, LiveAttempt, RecordGrant
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store, open_store
from swarm.base.home import Home
from swarm.net.identity import Identity

SARK: Final = [sys.executable, "-P", "-m", "sark"]
CAMPAIGN: Final = "c-large"
SCHEDULER: Final = Identity.from_seed("scheduler").peer_id
WORKERS: Final = [Identity.from_seed(f"worker {n}").peer_id for n in range(25)]
TIMED: Final = """(() => {
  const ask = window.requestAnimationFrame.bind(window);
  window.worked = [];
  window.requestAnimationFrame = (take) => ask((now) => {
    const began = performance.now();
    take(now);
    if (take.name !== "step") window.worked.push(performance.now() - began);
  });
})()"""
"""Records the time of each piece of the page's own work before a frame, excluding the scrolling."""
LOADED: Final = """() => {
  const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  return [all.length, all.reduce((sum, one) => sum + one.transferSize, 0)];
}"""
SCROLL: Final = """async (seconds) => {
  const frames = [];
  const long = [];
  new PerformanceObserver((list) => long.push(...list.getEntries().map((one) => one.duration))).observe({ type: "longtask" });
  const began = performance.now();
  let last = began, way = 1;
  await new Promise((done) => requestAnimationFrame(function step(now) {
    frames.push(now - last);
    last = now;
    if (way > 0 && innerHeight + scrollY >= document.documentElement.scrollHeight - 2) way = -1;
    if (way < 0 && scrollY <= 0) way = 1;
    scrollBy(0, way * 120);
    if (now - began > seconds * 1000) done(); else requestAnimationFrame(step);
  }));
  const script = (window.worked || []).slice();
  return { frames: frames.slice(1), script, busy: long.reduce((sum, one) => sum + one, 0) / (seconds * 1000) };
}"""


def task(n: int) -> Task:
    """The n-th task, from 1."""
    return Task(
        campaign=CAMPAIGN,
        task=f"{CAMPAIGN}/{n}",
        scheduler=SCHEDULER,
        model=Model(name=f"model-{n % 20}.onnx", sha256=f"{n % 20:064x}", size=1_000_000),
        unit=("CPU (ONNX)", "GPU (CUDA)")[n // 20 % 2],
        requirement=Requirement(),
        measure=Measure(),
        timeouts=Timeouts(),
    )


def fill(store: Store, tasks: int) -> list[str]:
    """Create one campaign; return the ids of the running tasks: every second one."""
    models = [NewModel(f"model-{n}.onnx", f"{n:064x}", 1_000_000) for n in range(20)]
    new = NewCampaign(CAMPAIGN, "a large one", SCHEDULER, "{}")
    store.campaigns.create(new, models, [task(n) for n in range(1, tasks + 1)])
    store.campaigns.plan(CAMPAIGN, ())
    running = [f"{CAMPAIGN}/{n}" for n in range(1, tasks + 1, 2)]
    for number, one in enumerate(running):
        worker = number % len(WORKERS)
        store.attempts.begin([CommitTo(one, 1, f"key {one}", WORKERS[worker], f"device-{worker}", 1)])
        fence = Fence(incarnation=1, number=number + 1)
        store.attempts.record_grant(RecordGrant(one, 1, lease=f"lease {one}", fence=fence, queued=False))
    return running


@contextmanager
def going_on(home: Home, running: Sequence[str], changes: int) -> Iterator[None]:
    """Write the progress of `changes` tasks per second, five times a second."""
    stop = threading.Event()

    def write() -> None:
        done = 0
        with open_store(home) as store:
            while not stop.wait(0.2):
                done += 1
                some = [running[(done * changes // 5 + k) % len(running)] for k in range(changes // 5)]
                try:
                    store.attempts.set_progress(
                        [LiveAttempt(one, 1, Phase.RUN, done % 500, 500, 12.5 + done % 7) for one in some]
                    )
                except SarkError as exc:
                    print(f"not written: {exc.what}", file=sys.stderr)

    thread = threading.Thread(target=write)
    if changes:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if changes:
            thread.join()


@contextmanager
def served(home: Home, folder: Path) -> Iterator[str]:
    """The dashboard's address."""
    process = subprocess.Popen(
        [*SARK, "--home", str(folder), "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SARK_LAN": "false"},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[1]
    finally:
        process.terminate()
        process.communicate(timeout=10)


def view(browser: Browser, url: str, path: str, cells: str, tasks: int) -> tuple[Page, float, float]:
    """Open a page in a fresh context; return it with the seconds to its first view and to the complete view."""
    page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.add_init_script(TIMED)
    began = time.perf_counter()
    page.goto(url + path)
    page.wait_for_selector("h1")
    first = time.perf_counter() - began
    page.wait_for_function(
        """([cells, tasks]) => {
          const found = document.querySelectorAll(cells);  // a table says how many rows it has, in sight or not
          return (Number(found[0]?.ariaRowCount) || found.length) >= tasks
        }""",
        arg=[cells, tasks],
    )
    return page, first, time.perf_counter() - began


def spread(frames: Sequence[float]) -> str:
    """Median, 95th percentile, worst."""
    ordered = sorted(frames)
    high = ordered[int(0.95 * (len(ordered) - 1))]
    return f"{statistics.median(ordered):6.1f} {high:6.1f} {ordered[-1]:6.1f} ms of {len(ordered)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=200, help="tasks that change in a second")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each scrolling")
    parser.add_argument("--views", type=int, default=5)
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("no chromium on this machine: its package is called chromium")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        home = Home.at(folder)
        with open_store(home) as store:
            running = fill(store, arguments.tasks)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with served(home, folder) as url:
            look(browser, url, home, running, arguments)
        browser.close()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def look(browser: Browser, url: str, home: Home, running: Sequence[str], arguments: Any) -> None:
    """Measure both views, at rest and while tasks change."""
    for name, path, cells in (
        ("matrix", f"#/campaigns/{CAMPAIGN}", ".matrix .cell"),
        ("list", f"#/campaigns/{CAMPAIGN}?view=list", "table.long"),
    ):
        firsts, alls = [], []
        for _ in range(arguments.views):
            page, first, whole = view(browser, url, path, cells, arguments.tasks)
            firsts.append(first)
            alls.append(whole)
            files, size = page.evaluate(LOADED)
            drawing = page.evaluate("window.worked")
            page.context.close()
        print(
            f"{name:7} first view {statistics.median(firsts):.2f} s, worst {max(firsts):.2f} s; "
            f"{arguments.tasks} tasks drawn after {statistics.median(alls):.2f} s, worst {max(alls):.2f} s; "
            f"{files} requests, {size / 1000:.0f} kB"
        )
        print(f"{name:7} script of a picture while they are drawn {spread(drawing)}")
        for changes in (0, arguments.changes):
            page, _, _ = view(browser, url, path, cells, arguments.tasks)
            with going_on(home, running, changes):
                page.evaluate("window.worked.length = 0")
                observed = page.evaluate(SCROLL, arguments.seconds)
            page.context.close()
            script = f"; script {spread(observed['script'])}" if observed["script"] else ""
            print(
                f"{name:7} scrolled, {changes:3} changes/s: frames {spread(observed['frames'])}; "
                f"busy {100 * observed['busy']:.0f} %{script}"
            )


if __name__ == "__main__":
    main()

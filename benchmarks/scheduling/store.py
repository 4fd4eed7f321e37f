"""How long a list and a pivot over very many results take, on SQLite and on PostgreSQL.

    python benchmarks/scheduling/store.py                                    # 100,000 results in a temporary SQLite file
    python benchmarks/scheduling/store.py --url postgresql://sark@/bench     # and in a schema of its own on that server, dropped at the end

The results are invented: 100 campaigns with 1,000 tasks each, 20 models on 25 devices with 2 units, each with a record of six launches of a
hundred samples. Rows are inserted in bulk, because only reading is measured. Each figure is the median of seven turns, followed by the
slowest and by the processor time of this process, which is the figure that matters on a busy machine.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from protocol.values.record import (
    DeviceFacts,
    LoadSample,
    Record,
    RunFacts,
    Timing,
    pack_samples,
    record_body,
)
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from protocol.words import RunOutcome
from results.export.figures import figures_of
from results.export.pivots import Dimension, FigureColumn, Filters
from scheduler.store import schema as t
from scheduler.store.database import Location, ServerLocation, server_url
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store

SCHEDULER = "1" * 44
WORKER = "2" * 44
TURNS = 7
PER_CAMPAIGN = 1000


def a_task(campaign: str, n: int, model: str, unit: str) -> Task:
    sha = hashlib.sha256(model.encode()).hexdigest()
    return Task(
        campaign=campaign,
        task=f"{campaign}/{n}",
        scheduler=SCHEDULER,
        model=Model(name=model, sha256=sha, size=10_000_000),
        unit=unit,
        requirement=Requirement(),
        measure=Measure(),
        timeouts=Timeouts(),
    )


def a_record(task: Task, device: str, rng: random.Random, middle: float) -> Record:
    launches = [[int(rng.gauss(middle, middle / 50) * 1e6) for _ in range(100)] for _ in range(6)]
    return Record(
        campaign=task.campaign,
        task=task.task,
        attempt=1,
        worker=WORKER,
        fence={"incarnation": 1, "number": 1},
        task_sha256=hashlib.sha256(task_body(task)).hexdigest(),
        model_sha256=task.model.sha256,
        outcome=RunOutcome.COMPLETE,
        device=DeviceFacts(device=f"id-{device}", name=device, soc=f"Chip {device[-1]}", os="Linux 6.1"),
        ran=RunFacts(unit=task.unit, driver="onnx", runtime="onnxruntime 1.31", threads=4),
        loads=tuple(LoadSample(ns=20_000_000 + i, kind="fresh") for i in range(6)),
        timings=tuple(
            Timing(samples=pack_samples(times), warmup=pack_samples(times[:5]), wall_s=1.0, cpu_s=3.0)
            for times in launches
        ),
    )


def fill(store: Store, number: int) -> tuple[int, float]:
    """Insert `number` results; return the bytes of their records, and the milliseconds to compute the columns of one."""
    rng, size, spent, made = random.Random(1), 0, 0.0, 0
    for start in range(0, number, PER_CAMPAIGN):
        campaign = f"c-{start // PER_CAMPAIGN:08d}"
        tasks, records, results = [], [], []
        at = 1_700_000_000.0 + start
        signed: dict[tuple[str, str], tuple[bytes, dict[str, object]]] = {}
        for n in range(1, min(PER_CAMPAIGN, number - start) + 1):
            model, device = f"model-{n % 20}.onnx", f"device-{n // 20 % 25}"
            task = a_task(campaign, n, model, ("CPU (ONNX)", "GPU (CUDA)")[n // 500 % 2])
            if (model, task.unit) not in signed:
                record = a_record(task, device, rng, 1 + n % 20)
                began = time.perf_counter()
                figures = figures_of(task, record)
                spent, made = spent + time.perf_counter() - began, made + 1
                signed[model, task.unit] = record_body(record), figures
            body, figures = signed[model, task.unit]
            median = float(str(figures["inference_ms_median"])) * rng.uniform(0.9, 1.1)
            size += len(body)
            row = {
                "campaign": campaign,
                "n": n,
                "model": model,
                "sha256": task.model.sha256,
                "unit": task.unit,
                "state": "succeeded",
                "device": device,
                "ended": at + n / 1000,
            }
            tasks.append({**row, "id": task.task, "body": task_body(task), "attempt": 1, "worker": WORKER})
            records.append(
                {
                    "task": task.task,
                    "attempt": 1,
                    "worker": WORKER,
                    "sha256": hashlib.sha256(body).hexdigest(),
                    "body": body,
                    "signature": bytes(64),
                    "decides": True,
                    "accepted": at,
                }
            )
            values = {"device": device, "device_id": f"id-{device}", "inference_ms_median": median}
            results.append({**row, "task": task.task, "reason": ""} | figures | values)
        store.campaigns.create(
            NewCampaign(campaign, f"campaign {start}", SCHEDULER, "{}"), [NewModel("m", "ab" * 32, 1)], []
        )
        with store.database.transaction() as c:
            for table, rows in ((t.tasks, tasks), (t.records, records), (t.results, results)):
                c.execute(table.insert(), rows)
    return size, 1000 * spent / max(made, 1)


def timed(name: str, work: Callable[[], object]) -> None:
    took, used = [], []
    for _ in range(TURNS):
        began, cpu = time.perf_counter(), time.process_time()
        work()
        took.append(1000 * (time.perf_counter() - began))
        used.append(1000 * (time.process_time() - cpu))
    text = f"{statistics.median(took):8.1f} ms   slowest {max(took):8.1f} ms   of it our own CPU {statistics.median(used):7.1f} ms"
    print(f"  {name:<42} {text}", flush=True)


def look(place: Location, number: int) -> None:
    with Store(place) as store:
        began = time.perf_counter()
        size, each = fill(store, number)
        took = time.perf_counter() - began
        about = store.describe()
        print(
            f"{about['engine']}: {number:,} results with {size / 1e6:,.0f} MB of records, made in {took:.0f} s; {about['bytes'] / 1e6:,.0f}"
            f" MB in all; columns of one result {each:.2f} ms; load of this machine {os.getloadavg()[0]:.1f}"
        )
        if isinstance(place, ServerLocation):
            store.database.connection.exec_driver_sql("ANALYZE")
        first = store.results.page()
        half = f"{1_700_000_000.0 + number / 2!r}~"
        one = Filters(model="model-3.onnx")
        rare = Filters(model="model-3.onnx", device="device-7", unit="GPU (CUDA)")
        timed("list: the first 100", store.results.page)
        timed("list: the 100 after them", lambda: store.results.page(first.next))
        timed("list: 100 from the middle", lambda: store.results.page(half))
        timed("list: 1,000 of one model", lambda: store.results.page(limit=1000, filters=one))
        timed("list: of one model on one device", lambda: store.results.page(limit=1000, filters=rare))
        timed("list: nothing of that model", lambda: store.results.page(filters=Filters(model="none")))
        campaign = Filters(campaign="c-00000000")
        timed("list: one campaign of 1,000", lambda: store.results.page(limit=1000, filters=campaign))
        d, value = Dimension, FigureColumn.INFERENCE
        timed("pivot: model by device", lambda: store.results.pivot(d.MODEL, d.DEVICE, value))
        timed("pivot: device by unit, load", lambda: store.results.pivot(d.DEVICE, d.UNIT, FigureColumn.LOAD))
        timed("pivot: model by campaign", lambda: store.results.pivot(d.MODEL, d.CAMPAIGN, value))
        timed("pivot: model by device, one model", lambda: store.results.pivot(d.MODEL, d.DEVICE, value, one))
        timed(
            "pivot: model by device, one campaign",
            lambda: store.results.pivot(d.MODEL, d.DEVICE, value, campaign),
        )
        timed("campaigns, with their counts", store.campaigns.summaries)


def main() -> None:
    argument_parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    argument_parser.add_argument("--number", type=int, default=100_000)
    argument_parser.add_argument("--url", help="a PostgreSQL server to measure, too")
    argument_parser.add_argument("--only-url", action="store_true")
    given = argument_parser.parse_args()
    if not given.only_url:
        with tempfile.TemporaryDirectory(prefix="sark-store-") as folder:
            look(Path(folder) / "store.db", given.number)
    if given.url:
        place = ServerLocation(server_url(given.url), f"sark_benchmark_{os.getpid()}")
        try:
            look(place, given.number)
        finally:
            with Store(place) as store:
                store.database.connection.exec_driver_sql(f'DROP SCHEMA "{place.schema}" CASCADE')


if __name__ == "__main__":
    main()

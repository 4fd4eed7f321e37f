"""What the tests of the book are made of: tasks, adverts, quotes and records, each with as little as it needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from protocol.advert import Advert, UnitOffer
from protocol.messages import Quote
from protocol.record import DeviceFacts, Ran, Record, Timing, pack_samples
from protocol.requirement import Requirement, parse_clause
from protocol.task import Measure, Model, Task, Timeouts
from protocol.words import Outcome, WorkerState
from scheduler.book import Book
from scheduler.orders import Order
from swarm.identity import Identity

UNIT = "CPU (ONNX)"
SHA = "ab" * 32
PEERS = [Identity.from_seed(n).peer_id for n in range(4)]
SCHEDULER = Identity.from_seed("scheduler").peer_id
O = TypeVar("O")  # noqa: E741


def a_task(n: int, *clauses: str, campaign: str = "c-one") -> Task:
    return Task(
        campaign=campaign,
        task=f"{campaign}/{n}",
        scheduler=SCHEDULER,
        model=Model(name="m.onnx", sha256=SHA, size=100),
        unit=UNIT,
        requirement=Requirement(clauses=tuple(parse_clause(text) for text in clauses)),
        measure=Measure(),
        timeouts=Timeouts(),
    )


def advert(n: int, ram: int = 8 * 1024**3) -> Advert:
    return Advert(
        peer=PEERS[n],
        seq=1,
        device=f"d{n}",
        name=f"w{n}",
        ram=ram,
        units=(UnitOffer(unit=UNIT, runtime="r"),),
    )


def quote(
    *, free: int = 1, queue: int = 0, incarnation: int = 1, state: WorkerState = WorkerState.ACTIVE
) -> Quote:
    return Quote(incarnation=incarnation, ledger=1, state=state, free=free, queue=queue)


def a_record(book: Book, task: str, **changes: object) -> Record:
    entry = book.entries[task]
    values: dict[str, object] = {
        "campaign": entry.task.campaign,
        "task": task,
        "attempt": entry.attempt,
        "fence": entry.fence,
        "worker": entry.worker,
        "task_sha256": SHA,
        "model_sha256": SHA,
        "outcome": Outcome.COMPLETE,
        "device": DeviceFacts(device="d", name="w"),
        "ran": Ran(unit=UNIT, driver="x", runtime="r"),
        "timing": Timing(samples=pack_samples([1]), warmup=pack_samples([]), cpu_s=0, wall_s=0),
    }
    return Record.model_validate({**values, **changes})


def of(orders: Iterable[Order], kind: type[O]) -> list[O]:
    return [order for order in orders if isinstance(order, kind)]

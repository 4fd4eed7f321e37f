"""Which worker is asked first, how many tasks wait there, and why none fits."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from protocol.values.advert import Advert, UnitOffer
from protocol.values.requirement import Requirement, parse_clause
from protocol.words import Reason, WorkerState
from scheduler.core.explain import REPLICAS_DONE, explain, nearest_device, smallest_change, why_none
from scheduler.core.ranking import LEAST_AHEAD, MOST_AHEAD, WorkerView, choose, depth
from swarm.net.identity import Identity

GIB = 1024**3
SHA = "ab" * 32


def view(n: int, *, held: int = 0, others: int = 0, warm: bool = False) -> WorkerView:
    made = WorkerView(f"p{n}", quoted=True, state=WorkerState.ACTIVE, others=others)
    made.held = {f"t{n}.{i}": None for i in range(held)}
    if warm:
        made.warm.add(SHA)
    return made


def picked(views: list[WorkerView], seed: int = 1, size: int = 100) -> str | None:
    able = [view for view in views if view.space() > 0]
    idle, others = [v for v in able if v.idle()], [v for v in able if not v.idle()]
    result = choose(idle, others, sha256=SHA, size=size, rng=random.Random(seed))
    return result.peer if result is not None else None


@given(seed=st.integers(0, 1000))
def test_an_idle_worker_is_taken_before_a_busy_one(seed: int) -> None:
    views = [view(1, held=1), view(2, others=3), view(3), view(4, held=1)]
    assert picked(views, seed) == "p3"


@given(seed=st.integers(0, 1000))
def test_among_idle_workers_the_one_that_has_the_model_is_taken(seed: int) -> None:
    views = [view(n, warm=n == 5) for n in range(8)]
    assert picked(views, seed, size=100_000_000) == "p5"


def test_nobody_is_taken_when_all_have_their_share() -> None:
    assert picked([view(1, held=2), view(2, held=2)]) is None
    assert picked([]) is None


def test_many_idle_workers_are_not_all_asked_in_the_same_order() -> None:
    views = [view(n) for n in range(20)]
    assert len({picked(views, seed) for seed in range(30)}) > 5


@given(mean=st.floats(0, 1e6))
def test_the_work_kept_waiting_is_bounded(mean: float) -> None:
    assert LEAST_AHEAD <= depth(mean) <= MOST_AHEAD


def test_short_tasks_wait_in_greater_number() -> None:
    assert depth(0.01) == MOST_AHEAD
    assert depth(60.0) == WorkerView("unknown").space() == LEAST_AHEAD


def test_trouble_backs_off_and_is_forgotten() -> None:
    worker = view(1)
    waits = []
    for _ in range(7):
        worker.mark_unreachable(100.0, "silence")
        waits.append(worker.retry_at - 100.0)
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    assert not worker.may_serve_soon()


def advert(name: str, ram: int, units: tuple[str, ...] = ("CPU (ONNX)",)) -> Advert:
    return Advert(
        peer=Identity.from_seed(name).peer_id,
        seq=1,
        device=f"d-{name}",
        name=name,
        ram=ram * GIB,
        units=tuple(UnitOffer(unit=unit, runtime="r") for unit in units),
    )


def need(*clauses: str) -> Requirement:
    return Requirement(clauses=tuple(parse_clause(text) for text in clauses))


def test_each_clause_counts_who_meets_it_and_who_is_left() -> None:
    adverts = [advert("a", 64), advert("b", 48, ("GPU (CUDA)",)), advert("c", 16, ("GPU (CUDA)",))]
    assert explain(need("units has GPU (CUDA)", "ram >= 64 GiB"), adverts).splitlines() == [
        "0 of 3 devices fit",
        "  units has GPU (CUDA)  2 meet it, 2 left",
        "  ram >= 64 GiB         1 meets it, 0 left   nearest: b has 48 GiB",
        "Smallest change: ram >= 48 GiB → 1 device",
    ]


def test_with_two_misses_the_nearest_device_and_the_best_pair_are_named() -> None:
    adverts = [advert("a", 8), advert("b", 16), advert("c", 4)]
    assert explain(need("os == Plan9", "ram >= 64 GiB", "ram >= 8 GiB"), adverts).splitlines()[-2:] == [
        "Nearest device: a (os is not known, needs == Plan9; ram: has 8 GiB, needs >= 64 GiB)",
        "Smallest change: without os == Plan9 and ram >= 64 GiB → 2 devices",
    ]
    three = need("os == Plan9", "ram >= 64 GiB", "cores >= 1000")
    assert nearest_device(three, adverts).count("needs") == 3
    assert smallest_change(three, adverts) == ""


def test_a_clause_that_alone_keeps_devices_out_is_named() -> None:
    adverts = [advert("a", 8), advert("b", 8)]
    assert smallest_change(need("os == Plan9", "ram >= 4 GiB"), adverts) == "without os == Plan9 → 2 devices"
    assert nearest_device(need("os == Plan9", "ram >= 4 GiB"), adverts) == ""
    assert smallest_change(need("ram >= 4 GiB"), adverts) == ""


def test_an_empty_swarm_is_shown_as_empty() -> None:
    assert explain(need("ram >= 4 GiB"), []).startswith("no device that may run it is in the swarm now")


def test_devices_that_fit_and_refuse_are_named_with_what_they_say() -> None:
    worker = view(1)
    worker.refused, worker.why, worker.device = Reason.NOT_ALLOWED, "because", "mini"
    result, text = why_none(need(), [], [worker], [], scheduler="me")
    assert result is Reason.NOT_ALLOWED
    assert "refused by 1 of 1 device" in text
    assert "mini says because" in text


def test_replicas_that_no_device_is_left_for_say_so() -> None:
    assert why_none(need(), [], [view(1)], [], scheduler="me") == (Reason.GAVE_UP, REPLICAS_DONE)


def test_what_owners_must_do_is_shown_once_with_the_id_they_must_allow() -> None:
    workers = [view(1), view(2)]
    for worker in workers:
        worker.refused, worker.device = Reason.NOT_ALLOWED, "mini"
        worker.why = "not-allowed: this worker does not serve you; its owner can: sark-node join --allow me"
    _, text = why_none(need(), [], workers, [], scheduler="me")
    assert text.count("--allow") == 1
    assert text.endswith("sark-node join --allow me")


def test_a_name_with_escapes_is_made_safe() -> None:
    worker = view(1)
    worker.refused, worker.why, worker.device = Reason.NOT_ALLOWED, "\x1b[31mred", "mini"
    assert "\x1b" not in why_none(need(), [], [worker], [], scheduler="me")[1]

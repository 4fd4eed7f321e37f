"""Several scheduler processes on one store: which one leads which campaign, and what a dead process leaves. The server is a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from protocol.errors import ResourceError
from scheduler.store import schema as t
from scheduler.store.database import LeadershipLost, ServerLocation
from scheduler.store.postgres import PostgreSQL
from scheduler.store.rows import NewCampaign
from scheduler.store.seats import MAX_SEATS, TERM_S
from scheduler.store.store import Store
from tests.scheduler.conftest import on_server
from tests.scheduler.core_parts import SCHEDULER, a_task

PEERS = tuple(f"peer-{seat}" for seat in range(MAX_SEATS))

Open = Callable[[str], Store]


def submit(store: Store, *campaigns: str) -> None:
    for campaign in campaigns:
        new = NewCampaign(campaign, campaign, SCHEDULER, "{}")
        store.campaigns.create(new, [], [a_task(1, campaign=campaign)])


def time_runs_out(store: Store, seat: int) -> None:
    """Let a seat expire, as after ten seconds without a renewal by its process."""
    with store.database.transaction() as c:
        c.execute(t.seats.update().where(t.seats.c.seat == seat).values(until=t.seats.c.until - TERM_S))


@pytest.fixture
def seated(postgres: str) -> Iterator[Open]:
    """Opens the store for one more process, which takes a seat, starting from the given place."""
    location: ServerLocation = on_server(postgres)
    with ExitStack() as stack:

        def opened(place: str) -> Store:
            store = stack.enter_context(Store(location))
            store.seats.take(place, PEERS)
            return store

        yield opened


def test_processes_take_different_seats_and_one_that_comes_back_finds_its_own(seated: Open) -> None:
    one, two = seated("one"), seated("two")
    assert (one.seats.seat, two.seats.seat) == (0, 1)
    one.close()
    assert seated("three").seats.seat == 2, "what was just left is kept for a while"
    assert seated("one").seats.seat == 0
    assert [(row.place, row.peer) for row in two.seats.all()] == [
        ("one", "peer-0"),
        ("two", "peer-1"),
        ("three", "peer-2"),
    ]


def test_a_seat_whose_time_has_run_out_is_taken_by_the_next_who_comes(seated: Open) -> None:
    one, two = seated("one"), seated("two")
    submit(two, "c-one")
    assert one.seats.lead("c-one")
    one.seats.leave()
    one.close()
    three = seated("three")
    assert three.seats.seat == 0
    assert two.seats.free() == ("c-one",), "its models are on another machine"


def test_each_campaign_has_one_leader(seated: Open) -> None:
    one, two = seated("one"), seated("two")
    submit(one, "c-one", "c-two")
    assert one.seats.free() == two.seats.free() == ("c-one", "c-two")
    assert one.seats.lead("c-one")
    assert not two.seats.lead("c-one")
    assert two.seats.lead("c-two")
    assert (one.seats.own(), two.seats.own()) == (("c-one",), ("c-two",))
    assert one.seats.free() == ()
    assert (one.seats.leads("c-one"), two.seats.leads("c-one")) == (True, False)
    assert one.seats.leader_place("c-one") == two.seats.leader_place("c-one") == "one"
    assert one.seats.leader_place("c-other") == ""


def test_a_campaign_is_carried_on_once_the_time_of_its_leader_has_run_out(seated: Open) -> None:
    one, two = seated("one"), seated("two")
    submit(one, "c-one")
    assert one.seats.lead("c-one")
    time_runs_out(two, 0)
    assert two.seats.free() == ("c-one",)
    assert two.seats.lead("c-one")
    assert two.seats.own() == ("c-one",)


def test_a_leader_that_was_superseded_writes_nothing_any_more(seated: Open) -> None:
    one, two = seated("one"), seated("two")
    submit(one, "c-one")
    assert one.seats.lead("c-one")
    time_runs_out(two, 0)
    assert two.seats.lead("c-one")
    before = two.events.since("c-one")
    for write in (
        lambda: one.campaigns.next_epoch("c-one"),
        lambda: one.campaigns.request_cancel("c-one"),
        one.seats.renew,
    ):
        with pytest.raises(LeadershipLost, match="another process has taken over"):
            write()
    assert two.events.since("c-one") == before


def test_a_leader_that_was_slow_goes_on_if_nobody_took_its_campaigns(seated: Open) -> None:
    one, two = seated("one"), seated("two")
    submit(one, "c-one")
    assert one.seats.lead("c-one")
    time_runs_out(two, 0)
    one.seats.renew()
    assert two.seats.free() == ()
    assert not two.seats.lead("c-one")


def test_a_process_that_starts_again_leads_what_it_led_at_once(seated: Open) -> None:
    one = seated("one")
    submit(one, "c-one")
    assert one.seats.lead("c-one")
    one.close()
    again = seated("one")
    assert again.seats.own() == ("c-one",)


def test_who_leaves_in_good_order_leaves_its_campaigns_at_once(seated: Open) -> None:
    one, two = seated("one"), seated("two")
    submit(one, "c-one")
    assert one.seats.lead("c-one")
    one.seats.leave()
    assert two.seats.free() == ("c-one",)


def test_a_process_whose_connection_broke_loses_its_seat_to_another_that_sits_there(seated: Open) -> None:
    one, two = seated("one"), seated("two")
    pid = one.database.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    two.database.connection.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")
    again = seated("one")
    assert again.seats.seat == 0
    with pytest.raises(ResourceError, match="does not answer"):
        one.seats.renew()
    with pytest.raises(LeadershipLost):
        one.seats.renew()


def test_nobody_restores_a_copy_while_a_scheduler_sits_and_nobody_sits_down_meanwhile(seated: Open) -> None:
    one = seated("one")
    with Store(one.location) as other:
        assert isinstance(other.database.backend, PostgreSQL)
        other.database.backend.claim_ms = 20
        with pytest.raises(ResourceError, match="runs the campaigns of this store"):
            other.claim()
        one.close()
        other.database.backend.claim_ms = 60_000
        other.claim()
        with Store(one.location) as late:
            assert isinstance(late.database.backend, PostgreSQL)
            late.database.backend.claim_ms = 20
            with pytest.raises(ResourceError, match="restores a copy"):
                late.seats.take("late", PEERS)


def test_who_stands_still_inside_a_transaction_is_cut_off_by_the_server(seated: Open) -> None:
    for place in ("one", "two"):
        setting = seated(place).database.connection.exec_driver_sql(
            "SHOW idle_in_transaction_session_timeout"
        )
        assert setting.scalar_one() == "5s"


def test_there_are_sixteen_seats(seated: Open) -> None:
    assert [seated(f"place {n}").seats.seat for n in range(MAX_SEATS)] == list(range(MAX_SEATS))
    with pytest.raises(ResourceError, match="16 schedulers share this store"):
        seated("one more")


def test_a_store_in_a_file_has_one_process_that_leads_everything(tmp_path: Path) -> None:
    with Store(tmp_path / "store.db") as store:
        assert store.seats.take("here", PEERS) == 0
        submit(store, "c-one")
        store.seats.renew()
        assert store.seats.own() == ("c-one",)
        assert store.seats.free() == ()
        assert store.seats.leads("c-one")

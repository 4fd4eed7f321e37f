"""Old campaigns are deleted at a time that no jump of the clock affects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from scheduler.store.retention import FILE, Retention, believe_clock, read_observed
from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from swarm.base.units import DAY_S

NOW = 1_800_000_000.0
KEEP_S = 90 * DAY_S


@dataclass
class RetentionHome:
    """A home that keeps campaigns for 90 days, and its clock."""

    folder: Path
    wall: float = NOW

    def open(self) -> Store:
        return Store(self.folder / "store.db", wall=lambda: self.wall)

    def ended(self, *names: str) -> None:
        """Create campaigns that end now."""
        with self.open() as store:
            for name in names:
                store.campaigns.create(NewCampaign(name, name, "12D3Koo", "{}"), [], [])
                store.campaigns.end(name)

    def step(self, passed_s: float = 0.0) -> list[str]:
        """The campaigns that a process deletes which has run for `passed_s` since its last look."""
        return list(Retention(self.folder, "90d", self.open, lambda: self.wall).step(passed_s))

    def days(self, number: int) -> list[str]:
        """The campaigns deleted while the process runs for that many days."""
        deleted = []
        for _ in range(number):
            self.wall += DAY_S
            deleted += self.step(DAY_S)
        return deleted


@pytest.fixture
def home(tmp_path: Path) -> RetentionHome:
    home = RetentionHome(tmp_path)
    home.ended("c-one")
    home.step()
    return home


def test_what_is_older_than_keep_goes(home: RetentionHome) -> None:
    assert home.days(90) == []
    assert home.days(1) == ["c-one"]


def test_a_home_that_is_off_now_and_then_keeps_no_longer(home: RetentionHome) -> None:
    for _ in range(4):
        home.wall += 22 * DAY_S
        assert home.step() == []
    home.wall += 3 * DAY_S
    assert home.step() == ["c-one"]


@pytest.mark.parametrize("restarts", [1, 500])
def test_a_clock_that_jumped_deletes_nothing_however_often_it_starts(
    home: RetentionHome, restarts: int
) -> None:
    home.wall += 400 * DAY_S
    assert [home.step() for _ in range(restarts)] == [[]] * restarts
    assert home.days(89) == []


def test_after_a_jump_what_ran_for_so_long_really_goes(home: RetentionHome) -> None:
    home.wall += 400 * DAY_S
    assert home.step() == []
    assert home.days(91) == ["c-one"]


def test_a_clock_that_was_set_right_again_is_believed(home: RetentionHome) -> None:
    home.wall += 400 * DAY_S
    home.step()
    home.wall = NOW
    assert home.days(90) == []
    assert home.days(1) == ["c-one"]


def test_a_clock_that_was_set_back_keeps_everything(home: RetentionHome) -> None:
    home.wall -= 41 * 365 * DAY_S
    assert home.step() == []
    assert home.days(5) == []


def test_a_store_that_is_opened_for_the_first_time_by_a_wrong_clock_loses_nothing(tmp_path: Path) -> None:
    home = RetentionHome(tmp_path)
    home.ended("c-one")
    home.wall += 400 * DAY_S
    assert home.step() == []


def test_no_more_than_a_share_goes_in_a_day(home: RetentionHome) -> None:
    home.ended(*(f"c-{n:03}" for n in range(200)))
    assert home.days(90) == []
    assert [len(home.days(1)) for _ in range(3)] == [20, 18, 16]
    assert home.step() == [], "not before the next day"


def jumped(home: RetentionHome) -> Callable[..., None]:
    home.wall += 400 * DAY_S

    def believe(*, confirmed: bool) -> None:
        believe_clock(home.folder, KEEP_S, home.wall, confirmed=confirmed)

    return believe


def test_a_user_who_deletes_by_a_clock_that_jumped_confirms_it_first(home: RetentionHome) -> None:
    believe = jumped(home)
    with pytest.raises(CampaignError, match="400 d after the latest time") as refused:
        believe(confirmed=False)
    assert "--clock-is-right" in (refused.value.hint or "")
    believe(confirmed=True)
    believe(confirmed=False)
    assert home.step() == ["c-one"]


def test_without_a_memory_of_the_time_the_users_word_counts(home: RetentionHome) -> None:
    believe = jumped(home)
    (home.folder / FILE).write_text("{]")
    assert read_observed(home.folder / FILE) is None
    believe(confirmed=False)

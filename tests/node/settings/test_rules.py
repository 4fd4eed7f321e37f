"""Quiet hours, battery and pause: when a device takes no new work, and the sentence that says why."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from node.settings.rules import FORM, Rules, quiet_until, read_quiet, why_not_serving

MON_23 = datetime(2026, 11, 16, 23, 0, tzinfo=UTC)
TUE_06 = datetime(2026, 11, 17, 6, 59, tzinfo=UTC)
TUE_07 = datetime(2026, 11, 17, 7, 0, tzinfo=UTC)
FRI_23 = datetime(2026, 11, 20, 23, 0, tzinfo=UTC)
SAT_12 = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def rules(*quiet: str, on_battery: bool = False) -> Rules:
    return Rules(tuple(read_quiet(text) for text in quiet), on_battery)


@pytest.mark.parametrize(
    ("quiet", "now", "why"),
    [
        (("22:00-07:00",), MON_23, "quiet hours until 07:00"),
        (("22:00-07:00",), TUE_06, "quiet hours until 07:00"),
        (("22:00-07:00",), TUE_07, ""),
        (("09:00-17:00",), MON_23, ""),
        (("Mon 22:00-07:00",), TUE_06, "quiet hours until 07:00"),
        (("Tue 22:00-07:00",), TUE_06, ""),
        (("Sat",), SAT_12, "quiet hours until 00:00"),
        (("Sat", "Sun"), SAT_12, "quiet hours until Mon 00:00"),
        (("sat-sun",), SAT_12, "quiet hours until Mon 00:00"),
        (("Sat",), FRI_23, ""),
        (("22:00-07:00", "Sat-Sun"), FRI_23, "quiet hours until Mon 07:00"),
        (("Fri-Mon 10:00-13:00",), SAT_12, "quiet hours until 13:00"),
        (("Tue-Thu",), SAT_12, ""),
        (("Fri 24:00-13:00",), SAT_12, "quiet hours until 13:00"),
        (("Sat 24:00-13:00",), SAT_12, ""),
        (("00:00-24:00",), SAT_12, "quiet hours all week"),
        (("12:00-11:00", "10:00-13:00"), SAT_12, "quiet hours all week"),
    ],
)
def test_quiet_hours_are_shown_with_their_end(quiet: tuple[str, ...], now: datetime, why: str) -> None:
    assert why_not_serving(rules(*quiet), now) == why


@pytest.mark.parametrize(
    "text",
    [
        "",
        "22:00",
        "25:00-26:00",
        "22:00-22:00",
        "22:60-23:00",
        "Samstag",
        "Sam",
        "Mon-",
        "24:00-24:00",
        "24:00-00:00",
    ],
)
def test_invalid_quiet_hours_are_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"quiet hours as 22:00-07:00|the days are Mon, Tue"):
        read_quiet(text)


def test_the_form_in_the_hint_is_valid() -> None:
    for text in FORM.removeprefix("write quiet hours as ").replace(" or ", ", ").split(", "):
        read_quiet(text)


def test_on_battery_nothing_new_is_taken_unless_the_owner_says_so() -> None:
    assert why_not_serving(rules(), MON_23, on_battery=True) == "on battery"
    assert why_not_serving(rules(on_battery=True), MON_23, on_battery=True) == ""
    assert why_not_serving(rules(), MON_23) == ""


def test_a_pause_is_reported_before_all_other_reasons() -> None:
    held = why_not_serving(rules("22:00-07:00"), MON_23, on_battery=True, paused=True)
    assert held == "paused by its owner"


def test_quiet_hours_are_searched_a_week_ahead_at_most() -> None:
    end = quiet_until(rules("00:00-24:00").quiet, SAT_12)
    assert end is not None
    assert (end - SAT_12).days == 7

"""Turns figures into a verdict. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

N = TypeVar("N", int, float)

MIB: Final = 2**20
GROWTH: Final = 64 * MIB
"""Limit for the memory of any honest process: its peak, minus its size at the start."""
SLOWER: Final = 1.5
SLOWER_MS: Final = 50.0
"""The p99 of honest calls may be `SLOWER` times as long or this much longer, whichever is more. It counts as exceeded only if every window
beside the attack exceeds it, compared with the median of the windows without the attack that were taken in between. So a single burst of
other work does not count."""
STEADY_MS: Final = 100.0
"""A p99 without an attack above which a single such window says little about the machine."""
BLIND_MS: Final = 500.0
"""A p99 without an attack above which a slowdown would not be seen."""
CAMPAIGN: Final = 3.0
CAMPAIGN_S: Final = 10.0
"""The campaign may take `CAMPAIGN` times as long or this much longer, whichever is more. Judged like `SLOWER_MS`."""
LOG_KB_S: Final = 4.0
"""Limit for the growth of any honest process's log rate."""
NEWCOMERS: Final = 0.8
"""Share of newcomers that must be served, relative to the share served without the attack."""
UNANSWERED: Final = 0.05
"""Share of honest calls that may get no answer within five seconds, in addition to the share without the attack."""
REFUSED: Final = "adverts refused"
"""A fact: the number of adverts that the product refused, which made the attack smaller."""
RIG: Final = "the rig: "
"""Prefix of a failure which means that the attack has shown nothing."""


@dataclass(frozen=True)
class Window:
    """What honest nodes observed during a period."""

    latencies_ms: Sequence[float]
    """Milliseconds of each call. An unanswered call counts with its whole wait."""
    unanswered: int = 0
    newcomers: int = 0
    refused: int = 0
    """Newcomers that got no answer."""
    campaign_s: float = math.inf
    """From `submit` to the campaign's end; infinite: it did not end in time."""
    before: Mapping[str, int] = field(default_factory=dict)
    """Resident bytes of each process at the start."""
    peak: Mapping[str, int] = field(default_factory=dict)
    """Highest resident bytes of each process."""
    log_kb_s: Mapping[str, float] = field(default_factory=dict)
    """Kilobytes per second that each process logs."""

    @property
    def p50(self) -> float:
        return rank(self.latencies_ms, 0.50)

    @property
    def p99(self) -> float:
        return rank(self.latencies_ms, 0.99)

    @property
    def served(self) -> float:
        """Share of newcomers that got an answer."""
        return 1 - self.refused / self.newcomers if self.newcomers else 1.0

    @property
    def unheard(self) -> float:
        """Share of calls that got no answer."""
        return self.unanswered / max(1, len(self.latencies_ms))


def together(windows: Sequence[Window]) -> Window:
    """Merge windows: all their calls, and the median campaign."""
    return Window(
        latencies_ms=[call for window in windows for call in window.latencies_ms],
        unanswered=sum(window.unanswered for window in windows),
        newcomers=sum(window.newcomers for window in windows),
        refused=sum(window.refused for window in windows),
        campaign_s=statistics.median_high(window.campaign_s for window in windows),
        before=_merged(min, [window.before for window in windows]),
        peak=_merged(max, [window.peak for window in windows]),
        log_kb_s=_merged(max, [window.log_kb_s for window in windows]),
    )


def _merged(choose: Callable[[list[N]], N], figures: Sequence[Mapping[str, N]]) -> dict[str, N]:
    names = {name: None for each in figures for name in each}
    return {name: choose([each[name] for each in figures if name in each]) for name in names}


def rank(values: Sequence[float], share: float) -> float:
    """The quantile by nearest rank; NaN for no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


@dataclass(frozen=True)
class Result:
    """The result of one attack, a line in the table."""

    name: str
    shows: str
    quiet: Sequence[Window]
    """Windows without the attack, taken before it and between its tries."""
    attacked: Sequence[Window]
    """Windows beside the attack, one for each try."""
    wrong: Sequence[str] = ()
    """What was broken or leaked, in words: rows that are not honest, what an attacker got."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def without(self) -> Window:
        return together(self.quiet)

    @cached_property
    def beside(self) -> Window:
        return together(self.attacked)

    @property
    def tries(self) -> int:
        return len(self.attacked)

    @property
    def growth(self) -> dict[str, int]:
        """Highest growth in bytes, by process. A process that did not exist at the start is compared with its peak without the attack."""
        usual = self.without.peak
        grown = [
            {name: peak - each.before.get(name, usual.get(name, peak)) for name, peak in each.peak.items()}
            for each in self.attacked
        ]
        return _merged(max, grown)

    @property
    def usual_p99(self) -> float:
        """The p99 without the attack, in ms."""
        return statistics.median(window.p99 for window in self.quiet)

    @cached_property
    def slow(self) -> list[str]:
        """Time limits that were exceeded in every window: a busy machine may be the cause."""
        failures = []
        p99 = self.usual_p99
        limit = max(SLOWER * p99, p99 + SLOWER_MS)
        calls = [window.p99 for window in self.attacked]
        if not min(calls) <= limit:
            failures.append(f"p99 {', '.join(f'{each:.0f}' for each in calls)} ms, at most {limit:.0f}")
        campaign = statistics.median_high(window.campaign_s for window in self.quiet)
        longest = max(CAMPAIGN * campaign, campaign + CAMPAIGN_S)
        campaigns = [window.campaign_s for window in self.attacked]
        if not min(campaigns) <= longest:
            failures.append(f"campaign {', '.join(map(show_s, campaigns))}, at most {longest:.0f} s")
        return failures

    @property
    def unshown(self) -> list[str]:
        """Reasons why the attack has shown nothing."""
        return [failure for failure in self.wrong if failure.startswith(RIG)]

    @cached_property
    def failures(self) -> list[str]:
        """All limits that were exceeded, in words; empty: the product held."""
        failures = list(self.wrong)
        failures += [
            f"{name} grew by {bytes_ / MIB:.0f} MiB, at most {GROWTH // MIB}"
            for name, bytes_ in self.growth.items()
            if bytes_ > GROWTH
        ]
        failures += [
            f"{name} logs {rate:.0f} KB/s"
            for name, rate in self.beside.log_kb_s.items()
            if rate > self.without.log_kb_s.get(name, 0.0) + LOG_KB_S
        ]
        if self.beside.unheard > self.without.unheard + UNANSWERED:
            failures.append(f"{self.beside.unanswered} of {len(self.beside.latencies_ms)} calls unanswered")
        if self.beside.served < NEWCOMERS * self.without.served:
            failures.append(f"{self.beside.refused} of {self.beside.newcomers} newcomers refused")
        return failures + self.slow

    @property
    def held(self) -> bool:
        return not self.failures

    @property
    def may_be_the_machine(self) -> bool:
        """Whether only time limits were exceeded, so that another try is worthwhile."""
        return not self.held and self.failures == [*self.unshown, *self.slow]

    @property
    def words(self) -> str:
        """The text of the result column."""
        if self.held:
            refused = self.facts.get(REFUSED, 0)
            notes = ["machine too busy to see a slowdown"] * (self.usual_p99 > BLIND_MS)
            notes += [f"try {self.tries}"] * (self.tries > 1) + [f"{refused} {REFUSED}"] * bool(refused)
            return f"held ({', '.join(notes)})" if notes else "held"
        if self.failures == self.slow:
            return "slowed"
        if self.failures == [*self.unshown, *self.slow]:
            return "not shown"
        return "leak" if all(failure.startswith("leak:") for failure in self.failures) else "broken"

    def to_json(self) -> dict[str, Any]:
        """The figures for comparisons: see `--json`."""
        most = max(self.growth, key=lambda name: self.growth[name], default="")
        return {
            "attack": self.name,
            "shows": self.shows,
            "result": self.words,
            "failures": self.failures,
            "growth_mib": {name: round(bytes_ / MIB, 1) for name, bytes_ in self.growth.items()},
            "grew_most": most,
            "tries": self.tries,
            "facts": dict(self.facts),
            "p99_ms_of_each": {
                "without": [round(window.p99, 1) for window in self.quiet],
                "with": [round(window.p99, 1) for window in self.attacked],
            },
            "without": _window_json(self.without),
            "with": _window_json(self.beside),
        }


def _window_json(window: Window) -> dict[str, Any]:
    plain = asdict(window) | {"calls": len(window.latencies_ms), "p50_ms": window.p50, "p99_ms": window.p99}
    del plain["latencies_ms"], plain["peak"], plain["before"]
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in plain.items()
    }


def show_s(seconds: float) -> str:
    return f"{seconds:.1f} s" if math.isfinite(seconds) else "did not end"


HEADINGS: Final = ("attack", "row", "result", "growth", "p50 ms", "p99 ms", "campaign s", "newcomers")


def line(result: Result) -> tuple[str, ...]:
    """The table cells of one attack; figures as without → with."""
    without, beside = result.without, result.beside
    most = max(result.growth.items(), key=lambda item: item[1], default=("", 0))

    def pair(one: float, other: float, form: str) -> str:
        return " → ".join(f"{value:{form}}" if math.isfinite(value) else "–" for value in (one, other))

    return (
        result.name,
        result.shows,
        result.words,
        f"{most[1] / MIB:+.0f} MiB {most[0]}",
        pair(without.p50, beside.p50, ".0f"),
        pair(without.p99, beside.p99, ".0f"),
        pair(without.campaign_s, beside.campaign_s, ".1f"),
        f"{beside.newcomers - beside.refused} of {beside.newcomers}",
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def honest_rows(
    rows: Sequence[Mapping[str, Any]],
    expected: Mapping[str, float | None],
    workers: Mapping[str, str],
    *,
    strangers: bool = False,
) -> list[str]:
    """What is wrong with the rows of an honest campaign. Expected is one complete row for each model with its scripted median, measured by
    one of the honest workers, on its device. `expected`: model → median in ms, None where unknown; `workers`: worker id → device id, empty
    where not known yet. `strangers`: the campaign admits strangers, and their rows say so.
    """
    wrong = []
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_model.setdefault(str(row["FileName"]), []).append(row)
    for model, median in expected.items():
        mine = by_model.pop(model, [])
        complete = [row for row in mine if row["Status"] == "Complete"]
        if len(mine) != 1 or len(complete) != 1:
            end = f"{mine[0]['Status']} ({mine[0]['Reason']})" if mine else "absent"
            wrong.append(f"missing row: {model} is {end}")
            continue
        (row,) = mine
        if row["WorkerId"] not in workers:
            marked = str(row.get("Trust", "")) == "stranger"
            if strangers and marked:
                continue
            wrong.append(
                f"row of a{'' if marked else 'n unmarked'} stranger: {model} by …{str(row['WorkerId'])[-8:]}"
            )
            continue
        if str(row.get("Trust", "")) == "stranger":
            wrong.append(f"an honest device as a stranger: {model} on {row['DeviceId']}")
        if workers[row["WorkerId"]] not in ("", row["DeviceId"]):
            wrong.append(f"wrong device: {model} on {row['DeviceId']}")
        if median is not None and row["InferenceMsMedian"] != median:
            wrong.append(f"forged row: {model} took {row['InferenceMsMedian']:g} ms, in truth {median:g}")
    return wrong + [f"row of nothing submitted: {model}" for model in by_model]


def shorten(failures: Sequence[str], most: int = 3) -> list[str]:
    """The first `most` failures, and how many more there are."""
    return [*failures[:most], *([f"and {len(failures) - most} more"] if len(failures) > most else [])]

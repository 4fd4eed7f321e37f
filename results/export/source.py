"""Results under the name by which they were asked for, each row with its launches' samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results.export.raw import RawResult
from results.row.row import Row


@dataclass(frozen=True, slots=True)
class ResultEntry:
    """One row, with its launches' samples where they are known."""

    row: Row
    launches: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ResultSource:
    """Results under the name by which they were asked for."""

    name: str
    campaign: str
    results: tuple[RawResult, ...] = ()
    """Empty for a CSV, which has no raw samples."""
    text: str | None = None
    """The whole file, where it was one."""
    rows: tuple[Row, ...] = ()
    whole: tuple[RawResult, ...] = ()
    """Of one task's results: its campaign's, among which are the replicas that it was compared with."""

    def entries(self) -> tuple[ResultEntry, ...]:
        """Each row with its launches."""
        if not self.results:
            return tuple(ResultEntry(row) for row in self.rows)
        return tuple(ResultEntry(result.row, launches_of(result)) for result in self.results)


def launches_of(result: RawResult) -> tuple[tuple[int, ...], ...]:
    """The timed samples of each launch, in nanoseconds."""
    return _shared_out(result.inference_ns, result.samples)


def warmups_of(result: RawResult) -> tuple[tuple[int, ...], ...]:
    """The warm-up samples of each launch, in nanoseconds."""
    return _shared_out(result.warmup_ns, result.warmups)


def _shared_out(times: tuple[int, ...], counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    found, at = [], 0
    for count in counts:
        found.append(times[at : at + count])
        at += count
    return tuple(found)

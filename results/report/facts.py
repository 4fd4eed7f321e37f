"""The facts of a report, derived from results: measurements, comparisons, verification. Pure; the text is written elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Final, Protocol

from protocol.errors import RemoteProtocolError
from protocol.values.task import Task, read_task
from results.analysis.pairs import Pair, pair_up, pairs_in_turns, pooled_entries
from results.analysis.sittings import pooled_rows
from results.analysis.verify import VerifyFinding, check_results
from results.export.raw import RawResult, ResultEntry, json_lines
from results.report.charts import complete, names_of
from results.row.names import with_distinct_names
from results.row.row import Row
from results.row.simulated import prefer_measured

MAX_PAIRS: Final = 100
"""Maximum comparisons within a campaign: each resamples a thousand times."""
MAX_VERIFIED: Final = 2000
"""Number of results up to which a report verifies them itself, which recomputes each row."""

NamedPair = tuple[str, Pair]


class CampaignFacts(Protocol):
    """What a report says about the campaign itself; a row of the store has all of it. Times are wall-clock seconds since 1970."""

    @property
    def created(self) -> float: ...
    @property
    def ended(self) -> float | None: ...
    @property
    def outcome(self) -> str | None: ...
    @property
    def detail(self) -> str: ...


@dataclass(frozen=True)
class Report:
    """Results and the facts derived from them, computed on first use."""

    results: Sequence[RawResult]
    campaign: str
    title: str
    written: float
    """Wall-clock seconds since 1970. `version` is the sark-node that wrote it."""
    version: str
    stored: CampaignFacts | None = None
    """The campaign, if this home has it; a file does not say when the campaign ran."""
    all_tasks: int | None = None
    """Number of the campaign's tasks, ended or not, if there are more than `results`."""
    source: str = ""
    """Name under which the results are read, if not the campaign's."""
    from_file: bool = False
    """Whether `source` is the name of a raw file."""
    checked: Sequence[RawResult] = ()
    """All of the campaign's results if `results` are of one task, because replicas are verified together."""
    other: Sequence[ResultEntry] = ()
    """Results to compare with: they are A, this report's are B."""
    other_name: str = ""

    @cached_property
    def rows(self) -> list[Row]:
        """All rows in the campaign's order, with distinct device names."""
        return with_distinct_names([result.row for result in self.results])

    @cached_property
    def done(self) -> list[Row]:
        """The rows with a median."""
        return complete(self.rows)

    @cached_property
    def compared(self) -> list[Row]:
        """Like `done`, but with one pooled row in place of several sittings, unless the report is of one task."""
        return self.done if self.checked else complete(pooled_rows(self.rows))

    @cached_property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.file_name for row in self.rows))

    @cached_property
    def signed_tasks(self) -> list[Task]:
        """The signed tasks of the results; unreadable tasks are left out."""
        tasks = []
        for result in self.results:
            try:
                tasks.append(read_task(base64.b64decode(result.task)))
            except (ValueError, RemoteProtocolError):
                continue
        return tasks

    @property
    def tasks(self) -> int:
        """Number of the campaign's tasks, ended or not."""
        return len(self.results) if self.all_tasks is None else self.all_tasks

    @cached_property
    def findings(self) -> Sequence[VerifyFinding] | None:
        """Findings from verifying the results; None if there are too many results."""
        checked, jobs = self.checked or self.results, {row.job_id for row in self.rows}
        if len(checked) > MAX_VERIFIED:
            return None
        return [item for item in check_results(self.campaign, checked) if item.task in jobs or not item.task]

    @cached_property
    def raw_sha256(self) -> str:
        """sha256 of the file that `results --raw` writes."""
        digest = hashlib.sha256()
        for line in json_lines(self.campaign, self.checked or self.results):
            digest.update(line.encode())
        return digest.hexdigest()

    @cached_property
    def within(self) -> Sequence[NamedPair]:
        """Each complete row compared with the fastest row of its model, at most `MAX_PAIRS`."""
        pairs: list[NamedPair] = []
        for model in dict.fromkeys(row.file_name for row in self.compared):
            ordered = self.all_of_model(model)
            names = names_of(ordered, model=False)
            for row, name in list(zip(ordered, names, strict=True))[1:]:
                if len(pairs) < MAX_PAIRS:
                    (pair,) = pair_up([self._entries[ordered[0].job_id]], [self._entries[row.job_id]])
                    pairs.append((f"{model} · {name}" if len(self.compared) > len(ordered) else name, pair))
        return pairs

    @cached_property
    def in_turns(self) -> Sequence[NamedPair]:
        """Models that took turns with another model on the same device."""
        pairs = pairs_in_turns(self.rows)
        names = names_of([pair.b for pair in pairs if pair.b is not None])
        return list(zip(names, pairs, strict=True))

    @property
    def left_out(self) -> int:
        """Number of comparisons beyond `MAX_PAIRS`."""
        return len(self.compared) - len({row.file_name for row in self.compared}) - len(self.within)

    @cached_property
    def against(self) -> Sequence[NamedPair]:
        """These results compared with `other`."""
        pairs = pair_up(pooled_entries(self.other), list(self._entries.values())) if self.other_name else []
        rows = [row for pair in pairs if (row := pair.b or pair.a) is not None]
        return list(zip(names_of(rows), pairs, strict=True))

    @cached_property
    def _entries(self) -> dict[str, ResultEntry]:
        entries = [result.entry() for result in self.results]
        return {entry.row.job_id: entry for entry in (entries if self.checked else pooled_entries(entries))}

    @property
    def open(self) -> bool:
        return self.stored is not None and self.stored.ended is None

    @property
    def status(self) -> str:
        """The status in a word or two; for a file, the states of its rows."""
        if self.stored is None:
            states = Counter(str(row.status).lower() for row in self.rows)
            return ", ".join(f"{count} {state}" for state, count in states.items()) or "no results"
        if self.stored.ended is None:
            return "running"
        return {"adopted": "carried on elsewhere"}.get(str(self.stored.outcome), str(self.stored.outcome))

    def of_model(self, name: str) -> list[Row]:
        """The model's measured rows, fastest first; its simulated rows if there are none."""
        return prefer_measured(self.all_of_model(name))

    def all_of_model(self, name: str) -> list[Row]:
        """The model's complete rows, fastest first, simulations last."""
        return sorted((row for row in self.compared if row.file_name == name), key=_fastest_first)


def _fastest_first(row: Row) -> tuple[bool, float, str]:
    """Sort key: measured rows before simulated ones, then fastest first."""
    return bool(row.simulated), row.inference_ms_median or 0.0, row.job_id


def show_instant(seconds: float) -> str:
    """`2026-11-21 20:41 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")

"""The facts of a report, gathered from results: what was measured, how it compares, whether it verifies. Pure; texts come later."""

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
from results.analysis.pairs import Pair, pair_up
from results.analysis.verify import VerifyFinding, check_results
from results.export.raw import RawResult, ResultEntry, json_lines
from results.report.charts import complete, names_of
from results.row.row import Row
from results.row.simulated import counting

MAX_PAIRS: Final = 100
"""Comparisons within a campaign: each draws a thousand times."""
MAX_VERIFIED: Final = 2000
"""Results up to which a report verifies them itself: each row is made again."""

NamedPair = tuple[str, Pair]


class CampaignFacts(Protocol):
    """What a report says of the campaign itself; a row of the store has all of it."""

    @property
    def created(self) -> float:
        """When it was submitted, in seconds since 1970."""
        ...

    @property
    def ended(self) -> float | None:
        """When it ended; None: it goes on."""
        ...

    @property
    def outcome(self) -> str | None:
        """How it ended: `succeeded`, `failed`, `cancelled` or `adopted`."""
        ...

    @property
    def detail(self) -> str:
        """Why it ended so."""
        ...


@dataclass(frozen=True)
class Report:
    """Results and what is known of them. Instants are wall seconds since 1970."""

    title: str
    campaign: str
    results: Sequence[RawResult]
    written: float
    version: str
    """Of the sark-node that writes it."""
    stored: CampaignFacts | None = None
    """The campaign, where it is this home's; a file does not tell when it was."""
    tasks: int = 0
    """Of the campaign, ended or not."""
    findings: Sequence[VerifyFinding] | None = None
    """Of verifying it; None: there was too much of it."""
    raw_sha256: str = ""
    """Of the file that `results --raw` writes."""
    within: Sequence[NamedPair] = ()
    """Each complete row with the quickest of its model."""
    left_out: int = 0
    """Comparisons beyond `MAX_PAIRS`."""
    against_name: str = ""
    against: Sequence[NamedPair] = ()
    """These results with others."""
    source: str = ""
    """By which name the results are read."""
    from_file: bool = False
    """That name is a raw file's."""

    @cached_property
    def rows(self) -> list[Row]:
        """In the campaign's order."""
        return [result.row for result in self.results]

    @cached_property
    def done(self) -> list[Row]:
        """Those with a median."""
        return complete(self.rows)

    @cached_property
    def models(self) -> list[str]:
        """Their names in order."""
        return list(dict.fromkeys(row.file_name for row in self.rows))

    @cached_property
    def signed_tasks(self) -> list[Task]:
        """Those of the results; tasks that cannot be read are left out."""
        tasks = []
        for result in self.results:
            try:
                tasks.append(read_task(base64.b64decode(result.task)))
            except (ValueError, RemoteProtocolError):
                continue
        return tasks

    @property
    def open(self) -> bool:
        """Whether the campaign goes on."""
        return self.stored is not None and self.stored.ended is None

    @property
    def status(self) -> str:
        """In a word or two."""
        if self.stored is None:
            states = Counter(str(row.status).lower() for row in self.rows)
            return ", ".join(f"{count} {state}" for state, count in states.items()) or "no results"
        if self.stored.ended is None:
            return "running"
        return {"adopted": "carried on elsewhere"}.get(str(self.stored.outcome), str(self.stored.outcome))

    def of_model(self, name: str) -> list[Row]:
        """Its rows that were measured, the quickest first; where there are none, those of simulations."""
        return counting(self.all_of_model(name))

    def all_of_model(self, name: str) -> list[Row]:
        """Its complete rows, the quickest first, simulations last."""
        return sorted((row for row in self.done if row.file_name == name), key=_quickest_first)


def gather(
    results: Sequence[RawResult],
    *,
    campaign: str,
    title: str,
    written: float,
    version: str,
    stored: CampaignFacts | None = None,
    tasks: int | None = None,
    source: str = "",
    from_file: bool = False,
    checked: Sequence[RawResult] = (),
    other: Sequence[ResultEntry] = (),
    other_name: str = "",
) -> Report:
    """All that a report says of `results`. `checked`: the campaign's, where `results` are of one task: replicas are verified together.
    `other`: results to compare them with; those are A, these are B.
    """
    jobs = {result.row.job_id for result in results}
    checked = checked or results
    entries = [result.entry() for result in results]
    within, left_out = _pairs_within(entries)
    digest = hashlib.sha256()
    for line in json_lines(campaign, checked):
        digest.update(line.encode())
    findings = None
    if len(checked) <= MAX_VERIFIED:
        findings = [item for item in check_results(campaign, checked) if item.task in jobs or not item.task]
    return Report(
        title=title,
        campaign=campaign,
        results=results,
        written=written,
        version=version,
        stored=stored,
        tasks=len(results) if tasks is None else tasks,
        findings=findings,
        raw_sha256=digest.hexdigest(),
        within=within,
        left_out=left_out,
        against_name=other_name,
        against=_pairs_with(other, entries) if other_name else (),
        source=source or campaign,
        from_file=from_file,
    )


def _quickest_first(row: Row) -> tuple[bool, float, str]:
    """What was measured before what was not."""
    return bool(row.simulated), row.inference_ms_median or 0.0, row.job_id


def _pairs_within(entries: Sequence[ResultEntry]) -> tuple[list[NamedPair], int]:
    """Model by model, all others with the quickest; and how many were left out."""
    matches: list[NamedPair] = []
    left_out = 0
    done = {entry.row.job_id: entry for entry in entries if complete([entry.row])}
    for model in dict.fromkeys(entry.row.file_name for entry in done.values()):
        ordered = [entry for entry in done.values() if entry.row.file_name == model]
        ordered.sort(key=lambda entry: _quickest_first(entry.row))
        names = names_of([entry.row for entry in ordered], model=False)
        for entry, name in zip(ordered[1:], names[1:], strict=True):
            if len(matches) >= MAX_PAIRS:
                left_out += 1
                continue
            (pair,) = pair_up([ordered[0]], [entry])
            matches.append((f"{model} · {name}" if len(done) > len(ordered) else name, pair))
    return matches, left_out


def _pairs_with(other: Sequence[ResultEntry], entries: Sequence[ResultEntry]) -> list[NamedPair]:
    pairs = pair_up(other, entries)
    rows = [row for pair in pairs if (row := pair.b or pair.a) is not None]
    return list(zip(names_of(rows), pairs, strict=True))


def show_instant(seconds: float) -> str:
    """`2026-11-21 20:41 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")

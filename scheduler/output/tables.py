"""Shows and writes the results of a campaign that has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from protocol.words import Reason
from results.analysis.matrix import make_matrix
from results.export.csv import csv_lines
from results.export.raw import json_lines, write_lines
from results.row.replicas import Agreement, disagreements
from results.row.row import Row, RowStatus
from results.row.verdicts import RowVerdict
from scheduler.campaign.destination import folder_of
from scheduler.output.campaigns import took
from scheduler.output.matrix_table import matrix_lines
from scheduler.output.results_table import all_line, most_shown, show_results
from scheduler.output.terminal import print_lines
from scheduler.store.readers import RowReader
from scheduler.store.rows import CampaignRow, CampaignStatus
from scheduler.store.store import Store
from swarm.base.screen import print_json_with
from swarm.base.text import count, safe_text

ShowRows = Callable[[Sequence[Row], Console], None]


def finish(
    store: Store,
    campaign: CampaignRow,
    console: Console,
    *,
    csv: Path | None,
    raw: Path,
    as_json: bool,
    show: ShowRows = show_results,
) -> int:
    """Show and write the results of a campaign that has ended; returns the exit code. Raises `ResourceError`."""
    raw_file = raw / "raw.json"
    raw.mkdir(parents=True, exist_ok=True)
    write_lines(raw_file, json_lines(campaign.id, RowReader(store, campaign.id).each_raw()))
    csv_file, tally = csv or raw / "results.csv", _Tally(most_shown(console))
    write_lines(csv_file, csv_lines(map(tally.add, RowReader(store, campaign.id).each_row())))
    code = tally.exit_code(campaign)
    if as_json:
        print_json_with(
            {"campaign": campaign.id, "status": campaign.status},
            "results",
            RowReader(store, campaign.id).each_row(),
            {"csv": str(csv_file.absolute()), "raw": str(raw_file.absolute())},
        )
        return code
    show(tally.first, console)
    lines = [
        f"{tally.ended[RowStatus.COMPLETE]} of {count(tally.ended.total(), 'task')} complete in {took(campaign)}."
    ]
    if tally.ended.total() > len(tally.first):
        lines.append(all_line(campaign.id, tally.ended.total()))
    if disagreeing := len(disagreements(tally.disagreeing)):
        lines.append(f"{disagreeing} of the replicated tasks disagree: see Agreement.")
    if campaign.detail:
        lines.append(safe_text(campaign.detail, 2000))
    sending = store.sendings.get(campaign.id)
    if sending is not None:
        said = "will also be written to" if sending.sent is None else "are also at"
        where = folder_of(sending.url, campaign.id)
        lines.append(f"The results {said} {where}: sark-node events {campaign.id}")
    files = (f"CSV          {csv_file.absolute()}", f"Raw results  {raw_file.absolute()}")
    print_lines([*lines, *files], console)
    return code


class _Tally:
    """Facts about all rows of a campaign, of which only the first rows are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.first: list[Row] = []
        self.ended = Counter[RowStatus]()
        self.disagreeing: list[Row] = []
        self._reasons = set[str]()
        self._mismatch = False

    def add(self, row: Row) -> Row:
        """Count `row`, and return it."""
        if len(self.first) < self._most:
            self.first.append(row)
        if row.agreement == Agreement.DISAGREES:
            self.disagreeing.append(row)
        self.ended[row.status] += 1
        self._reasons.add(row.reason)
        self._mismatch |= row.verdict == RowVerdict.MISMATCH
        return row

    def exit_code(self, campaign: CampaignRow) -> int:
        """0: every task succeeded, and no outputs differ from the reference; 3: none ran because nothing trusted fits; 5: because no device
        allows us; 1: anything else.
        """
        if campaign.outcome is CampaignStatus.SUCCEEDED:
            return int(self._mismatch)
        for reason, code in ((Reason.NOTHING_FITS, 3), (Reason.NOT_TRUSTED, 3), (Reason.NOT_ALLOWED, 5)):
            if self._reasons == {reason}:
                return code
        return 1


def show_matrix(rows: Sequence[Row], console: Console) -> None:
    """The matrix with devices as columns; below it, why a cell has no time or a doubtful one."""
    for line in matrix_lines(make_matrix(rows), "", console.width):
        console.print(line, soft_wrap=True, highlight=False)

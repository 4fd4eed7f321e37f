"""Does a result hold? Anyone can ask: the worker's key, the task and model by their hashes, and the row made again from the raw samples.

What a worker signed is its record; everything else in a file of results must follow from it. What does not (why the scheduler gave a task
up, for one) is nobody's word but the scheduler's, and is told as such. Pure: files and stores are read elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.values.attempt import TaskState
from protocol.values.record import Record, SignedRecord, read_record, record_message
from protocol.values.task import Task, read_task
from protocol.words import Reason, RunOutcome
from results.export.raw import RawResult, csv_lines, json_lines, raw_result
from results.row.acceptance import check_whole, not_as_asked
from results.row.form import JsonModel
from results.row.replicas import compare_replicas
from results.row.row import COLUMNS, CONTRACT, Row, RowStatus, column_name, later_columns, make_row
from swarm.base.text import count
from swarm.net.identity import verify

SIGNATURE: Final = 64
"""Bytes of an Ed25519 signature."""
_STATES: Final = {
    RowStatus.COMPLETE: TaskState.SUCCEEDED,
    RowStatus.FAILED: TaskState.FAILED,
    RowStatus.CANCELLED: TaskState.CANCELLED,
    RowStatus.ADOPTED: TaskState.FAILED,
    RowStatus.PENDING: TaskState.PENDING,
    RowStatus.RUNNING: TaskState.RUNNING,
}


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    """What came of checking one task, or (`task` empty) the file as a whole."""

    task: str
    wrong: tuple[str, ...] = ()
    """Each thing that does not hold, a line each; empty: all holds."""
    signed: bool = True
    """Whether a worker signed anything; what nobody signed can be neither right nor wrong."""
    worker: str = ""
    fingerprint: str = ""


class VerifyFindingInfo(JsonModel):
    """The same for programs."""

    task: str | None
    """Null: the file as a whole."""
    holds: bool
    signed: bool
    worker: str | None
    fingerprint: str | None
    wrong: tuple[str, ...]


def finding_info(finding: VerifyFinding) -> VerifyFindingInfo:
    """`finding` for programs."""
    return VerifyFindingInfo(
        task=finding.task or None,
        holds=not finding.wrong,
        signed=finding.signed,
        worker=finding.worker or None,
        fingerprint=finding.fingerprint or None,
        wrong=finding.wrong,
    )


def check_results(
    campaign: str,
    results: Sequence[RawResult],
    *,
    text: str | None = None,
    model_sha256: str | None = None,
    table: str | None = None,
) -> list[VerifyFinding]:
    """A finding for each of `results`, and one for each file that differs from what follows from them.

    `text`: the whole file they were read from, which must be byte for byte what they are written as. `model_sha256`: of the model that they
    are said to be measured with. `table`: a CSV whose rows must be theirs.
    """
    checked = [_check_one(result, model_sha256) for result in results]
    rows = compare_replicas([row for row, _, _ in checked])
    findings = []
    for result, (_, again, finding), row in zip(results, checked, rows, strict=True):
        wrong = list(finding.wrong)
        if again is not None and not wrong:
            wrong += _row_differences(result.row, row)
            wrong += _raw_differences(result, again.model_copy(update={"row": row}))
        findings.append(
            VerifyFinding(
                finding.task, tuple(wrong), finding.signed, worker=finding.worker, fingerprint=row.fingerprint
            )
        )
    twice = [name for name, times in Counter(result.row.job_id for result in results).items() if times > 1]
    findings += [VerifyFinding(name, ("it is there more than once",)) for name in twice]
    if text is not None and not any(finding.wrong for finding in findings):
        findings += _whole_file(campaign, results, text)
    if table is not None:
        findings += _check_table(table, rows)
    return findings


def _check_one(result: RawResult, model_sha256: str | None) -> tuple[Row, RawResult | None, VerifyFinding]:
    """The row made again, everything made again (None where that cannot be), and what is wrong so far."""
    name = result.row.job_id
    try:
        body = _bytes(result.task, "task")
        task = read_task(body)
    except (ValueError, RemoteProtocolError) as exc:
        return result.row, None, VerifyFinding(name, (f"its task cannot be read: {exc}",))
    if not result.record and not result.signature:
        if result.row.status is RowStatus.COMPLETE:
            return (
                result.row,
                None,
                VerifyFinding(name, ("it is Complete, and no worker signed a record of it",)),
            )
        row = _made_again(result.row, task, None)
        return row, raw_result(row, body, None), VerifyFinding(name, signed=False)
    try:
        signed = SignedRecord(
            body=_bytes(result.record, "record"), signature=_hexadecimal(result.signature, "signature")
        )
        record = read_record(signed.body)
    except (ValueError, RemoteProtocolError) as exc:
        return result.row, None, VerifyFinding(name, (f"its record cannot be read: {exc}",))
    wrong = _record_problems(task, body, record, signed)
    if result.row.status is RowStatus.COMPLETE:
        wrong += _complete_problems(task, record)
    if model_sha256 is not None and record.model_sha256 != model_sha256:
        wrong.append(f"the model has sha256 {model_sha256}, it was measured with {record.model_sha256}")
    row = _made_again(result.row, task, record)
    return row, raw_result(row, body, signed), VerifyFinding(name, tuple(wrong), worker=record.worker)


def _record_problems(task: Task, body: bytes, record: Record, signed: SignedRecord) -> list[str]:
    wrong = []
    if not verify(record.worker, record_message(signed.body), signed.signature):
        wrong.append(f"its record is not signed by the worker it names, {record.worker}")
    for what, there, asked in (
        ("campaign", record.campaign, task.campaign),
        ("task", record.task, task.task),
        ("task's sha256", record.task_sha256, hashlib.sha256(body).hexdigest()),
        ("model's sha256", record.model_sha256, task.model.sha256),
    ):
        if there != asked:
            wrong.append(f"its record is of another {what}: {there}, not {asked}")
    return wrong


def _complete_problems(task: Task, record: Record) -> list[str]:
    """Why a row may not be Complete."""
    if record.outcome is not RunOutcome.COMPLETE:
        return [f"it is Complete, and its worker said {record.outcome}"]
    wrong = []
    try:
        check_whole(record, task)
    except RemoteProtocolError as exc:
        wrong.append(exc.what)
    if refused := not_as_asked(record, task):
        wrong.append(f"it is Complete, and should not be: {refused[1]}")
    return wrong


def _made_again(row: Row, task: Task, record: Record | None) -> Row:
    """Only the scheduler's own words of a task that did not succeed are taken over."""
    state = _STATES[row.status]
    if row.status is RowStatus.COMPLETE:
        return make_row(task, state, record)
    reason = next((word for word in Reason if word == row.reason), None)
    device = row.device_name if record is None else ""
    return make_row(task, state, record, reason=reason, detail=row.detail, attempt=row.attempt, device=device)


def _bytes(text: str, what: str) -> bytes:
    """Base64 as it is written here; other spellings of the same bytes are not."""
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"the {what} is no base64") from exc
    if base64.b64encode(found).decode() != text:
        raise ValueError(f"the {what} is not written as its bytes are")
    return found


def _hexadecimal(text: str, what: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"the {what} is not hexadecimal") from None
    if found.hex() != text:
        raise ValueError(f"the {what} is not written as its bytes are")
    if len(found) != SIGNATURE:
        raise ValueError(f"the {what} has {len(found)} bytes, not {SIGNATURE}")
    return found


# -- what follows from the record ------------------------------------------------------------------------------------------------------


def _row_differences(told: Row, made: Row) -> list[str]:
    lacks = later_columns(told)
    return [
        f"{column_name(name)} is {getattr(told, name)!r}, from the raw samples it is {getattr(made, name)!r}"
        for name in Row.model_fields
        if name not in lacks and getattr(told, name) != getattr(made, name)
    ]


def _raw_differences(told: RawResult, made: RawResult) -> list[str]:
    return [
        f"{name} is not what the record has"
        for name in RawResult.model_fields
        if name != "row" and getattr(told, name) != getattr(made, name)
    ]


def _whole_file(campaign: str, results: Sequence[RawResult], text: str) -> list[VerifyFinding]:
    lines = "".join(json_lines(campaign, results, as_read=True)).splitlines(keepends=True)
    found = text.splitlines(keepends=True)
    for number, (line, expected) in enumerate(zip(found, lines, strict=False), start=1):
        if line != expected:
            return [VerifyFinding("", (f"line {number} of the file is not as results are written",))]
    if len(found) != len(lines):
        return [
            VerifyFinding(
                "", (f"the file has {count(len(found), 'line')} where its results make {len(lines)}",)
            )
        ]
    other = {result.row.campaign for result in results} - {campaign}
    return (
        [VerifyFinding("", (f"it is said to be of campaign {campaign}, and has results of others",))]
        if other
        else []
    )


# -- a CSV ---------------------------------------------------------------------------------------------------------------------------------


def _check_table(table: str, rows: Sequence[Row]) -> list[VerifyFinding]:
    """Row by row and column by column, as text; rows may be in any order, and some may be left out."""
    try:
        return _check_lines(csv.DictReader(io.StringIO(table, newline="")), rows)
    except csv.Error as exc:
        return [VerifyFinding("", (f"the CSV cannot be read: {exc}",))]


def _check_lines(reader: csv.DictReader[str], rows: Sequence[Row]) -> list[VerifyFinding]:
    heads = tuple(reader.fieldnames or ())
    if heads[:CONTRACT] != COLUMNS[:CONTRACT]:
        return [VerifyFinding("", (f"the CSV does not begin with the {CONTRACT} columns of results",))]
    if strange := [head for head in heads if head not in COLUMNS]:
        return [VerifyFinding("", (f"the CSV has a column that results have not: {strange[0]}",))]
    made = {row["JobId"]: row for row in _as_cells(rows)}
    findings, seen = list[VerifyFinding](), set[str]()
    for number, told in enumerate(reader, start=2):
        name = str(told.get("JobId"))
        if name not in made:
            wrong: tuple[str, ...] = (f"line {number} of the CSV is of no task in these results",)
        elif name in seen:
            wrong = (f"line {number} of the CSV is of a task that an earlier line has",)
        else:
            wrong = tuple(_cell_differences(told, made[name]))
        seen.add(name)
        findings.append(VerifyFinding(name, wrong))
    return findings


def _as_cells(rows: Sequence[Row]) -> Iterable[Mapping[str, str]]:
    return csv.DictReader(io.StringIO("".join(csv_lines(rows)), newline=""))


def _cell_differences(told: Mapping[str, str], made: Mapping[str, str]) -> list[str]:
    if None in told or None in told.values():
        return ["its line in the CSV has not as many cells as the first line"]
    return [
        f"{name} is {told[name]!r} in the CSV, from the raw samples it is {made[name]!r}"
        for name in told
        if told[name] != made[name]
    ]

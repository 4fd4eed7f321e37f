"""Verifies results: the worker's signature, task and model by their hashes, and the row recomputed from the raw samples. Pure.

A worker signs its record; everything else in a file of results must follow from it. Facts that do not, such as why the scheduler gave up a
task, are the scheduler's own account and marked as unsigned.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import computed_field

from protocol.errors import RemoteProtocolError
from protocol.values.attempt import TaskState
from protocol.values.record import Record, SignedRecord, read_record, record_message
from protocol.values.task import Task, read_task
from protocol.values.trust import TrustKind
from protocol.words import Reason, RunOutcome
from results.analysis.sittings import pool_sittings
from results.analysis.verify_scores import check_scores
from results.export.csv import csv_lines
from results.export.raw import RawResult, json_lines, raw_result
from results.row.acceptance import check_whole, find_task_mismatch
from results.row.form import JsonModel
from results.row.make import make_row
from results.row.record import observe
from results.row.replicas import compare_replicas
from results.row.row import COLUMNS, CONTRACT, Row, RowStatus, column_name
from results.row.scores import Scores
from results.row.strangers import of_stranger
from results.row.witness import WitnessAccount, refusal
from results.scoring.scorer import Scorer
from swarm.base.text import count
from swarm.net.identity import verify

_SIGNATURE: Final = re.compile(r"[0-9a-f]{128}")
_STATES: Final = {
    RowStatus.COMPLETE: TaskState.SUCCEEDED,
    RowStatus.FAILED: TaskState.FAILED,
    RowStatus.CANCELLED: TaskState.CANCELLED,
    RowStatus.ADOPTED: TaskState.FAILED,
    RowStatus.PENDING: TaskState.PENDING,
    RowStatus.RUNNING: TaskState.RUNNING,
}


class VerifyFinding(JsonModel):
    """The outcome of checking one task, or the file as a whole."""

    task: str | None
    """The task that was checked. Null: the file as a whole."""
    signed: bool = True
    """Whether a worker signed a record."""
    worker: str | None = None
    fingerprint: str | None = None
    wrong: tuple[str, ...] = ()
    """A line for each check that failed. Empty if all passed."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def holds(self) -> bool:
        """Whether every check passed."""
        return not self.wrong


def _whole(wrong: str) -> list[VerifyFinding]:
    return [VerifyFinding(task=None, wrong=(wrong,))]


def check_results(
    campaign: str,
    results: Sequence[RawResult],
    *,
    text: str | None = None,
    model_sha256: str | None = None,
    table: str | None = None,
) -> list[VerifyFinding]:
    """A finding for each of `results`, and one for each file that differs from what the results imply.

    `text`: the whole file that they were read from, which must equal byte for byte what Sark would write. `model_sha256`: hash of the model
    to check for. `table`: a CSV that must have their rows.
    """
    with Scorer() as scorer:
        checked = [_check_one(result, model_sha256, scorer) for result in results]
    rows = pool_sittings(compare_replicas([row for row, _, _ in checked]))
    findings = []
    for result, (_, remade, finding), row in zip(results, checked, rows, strict=True):
        wrong = finding.wrong
        if remade is not None and not wrong:
            wrong = (*_row_differences(result.row, row), *_raw_differences(result, remade))
        update = {"wrong": wrong, "fingerprint": row.fingerprint or None}
        findings.append(finding.model_copy(update=update))
    twice = [name for name, times in Counter(result.row.job_id for result in results).items() if times > 1]
    findings += [VerifyFinding(task=name, wrong=("it is in the file more than once",)) for name in twice]
    if text is not None and not any(finding.wrong for finding in findings):
        findings += _whole_file(campaign, results, text)
    if table is not None:
        findings += _check_table(table, rows)
    return findings


def _check_one(
    result: RawResult, model_sha256: str | None, scorer: Scorer
) -> tuple[Row, RawResult | None, VerifyFinding]:
    """The recomputed row, the recomputed raw result (None if impossible), and what is wrong so far."""
    name = result.row.job_id
    try:
        body = _bytes(result.task, "task")
        task = read_task(body)
    except (ValueError, RemoteProtocolError) as exc:
        return result.row, None, VerifyFinding(task=name, wrong=(f"its task cannot be read: {exc}",))
    if not result.record and not result.signature:
        if result.row.status is RowStatus.COMPLETE:
            why = "it is Complete, but no worker signed a record of it"
            return result.row, None, VerifyFinding(task=name, wrong=(why,))
        row = _remake(result.row, task, None, None)
        return row, raw_result(row, body, None), VerifyFinding(task=name, signed=False)
    try:
        signed = SignedRecord(body=_bytes(result.record, "record"), signature=_signature(result.signature))
        record = read_record(signed.body)
    except (ValueError, RemoteProtocolError) as exc:
        return result.row, None, VerifyFinding(task=name, wrong=(f"its record cannot be read: {exc}",))
    wrong = _record_problems(task, body, record, signed)
    wrong += _judgement_problems(result, task, record)
    if model_sha256 is not None and record.model_sha256 != model_sha256:
        wrong.append(
            f"the given model has sha256 {model_sha256}, but the measured one had {record.model_sha256}"
        )
    wrong_scores, scores = check_scores(result, task, record, scorer)
    wrong += wrong_scores
    row = _remake(result.row, task, record, result.account, scores)
    finding = VerifyFinding(task=name, wrong=tuple(wrong), worker=record.worker or None)
    return row, raw_result(row, body, signed, result.account, result.evaluation), finding


def _record_problems(task: Task, body: bytes, record: Record, signed: SignedRecord) -> list[str]:
    wrong = []
    if not verify(record.worker, record_message(signed.body), signed.signature):
        wrong.append(f"its record is not signed by the worker it names, {record.worker}")
    for what, value, request in (
        ("campaign", record.campaign, task.campaign),
        ("task", record.task, task.task),
        ("task's sha256", record.task_sha256, hashlib.sha256(body).hexdigest()),
        ("model's sha256", record.model_sha256, task.model.sha256),
    ):
        if value != request:
            wrong.append(f"its record names another {what}: {value}, not {request}")
    return wrong


def _judgement_problems(result: RawResult, task: Task, record: Record) -> list[str]:
    """Where the row's status, or the trust in its worker, does not follow from the record and what was witnessed of it."""
    row, account = result.row, result.account
    wrong = []
    if record.reveal is not None and row.trust != TrustKind.STRANGER:
        wrong.append(
            f"its run was witnessed, as only strangers' runs are, but Trust is {row.trust or 'empty'}"
        )
    complete = record.outcome is RunOutcome.COMPLETE
    if row.status is RowStatus.COMPLETE and not complete:
        return [*wrong, f"it is Complete, but its record says {record.outcome}"]
    refused = _refusals(task, record, account) if complete else []
    if row.status is RowStatus.COMPLETE:
        wrong += refused
    elif complete and not refused and not (account is not None and row.reason == Reason.WRONG_OUTPUTS):
        wrong.append(
            f"it is {row.status}, but its record is a complete measurement of what the task asks for"
        )
    return wrong


def _refusals(task: Task, record: Record, account: WitnessAccount | None) -> list[str]:
    """Why the record of a complete measurement may not be accepted."""
    try:
        check_whole(record, task)
    except RemoteProtocolError as exc:
        return [exc.what]
    refused = find_task_mismatch(record, task)
    if refused is None and account is not None:
        refused = refusal(record, observe(record), account)
    return [f"it is Complete, but should not be: {refused[1]}"] if refused else []


def _remake(
    row: Row,
    task: Task,
    record: Record | None,
    account: WitnessAccount | None,
    scores: Scores | None = None,
) -> Row:
    """Recompute the row. It takes over only the scheduler's own account: its trust in the worker, the key it attributes the device to, what
    it witnessed, how often the task gave way, when a sitting ended, where the results go, and how an unsuccessful task ended.
    """
    state = _STATES[row.status]
    if row.status is RowStatus.COMPLETE:
        return make_row(
            task,
            state,
            record,
            trust=row.trust,
            device_key=row.device_key,
            preempted=row.preempted,
            account=account,
            ended_at=row.ended_at,
            results_url=row.results_url,
            scores=scores,
        )
    reason = next((word for word in Reason if word == row.reason), None)
    device = row.device_name if record is None else ""
    return make_row(
        task,
        state,
        record,
        reason=reason,
        detail=row.detail,
        attempt=row.attempt,
        device=device,
        trust=row.trust,
        device_key=row.device_key,
        preempted=row.preempted,
        ended_at=row.ended_at,
        results_url=row.results_url,
    )


def _bytes(text: str, what: str) -> bytes:
    """Decode canonical base64: other spellings of the same bytes are refused."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"the {what} is not base64") from exc
    if base64.b64encode(data).decode() != text:
        raise ValueError(f"the {what} is not in canonical base64")
    return data


def _signature(text: str) -> bytes:
    if not _SIGNATURE.fullmatch(text):
        raise ValueError("the signature is not 64 bytes in lower-case hexadecimal")
    return bytes.fromhex(text)


# -- what follows from the record ------------------------------------------------------------------------------------------------------


def _row_differences(row: Row, remade: Row) -> list[str]:
    return [
        f"{column_name(name)} is {getattr(row, name)!r}, but its signed record gives {getattr(remade, name)!r}"
        for name in Row.model_fields
        if getattr(row, name) != getattr(remade, name)
    ]


def _raw_differences(result: RawResult, remade: RawResult) -> list[str]:
    return [
        f"{name} differs from the record"
        for name in RawResult.model_fields
        if name != "row" and getattr(result, name) != getattr(remade, name)
    ]


def _whole_file(campaign: str, results: Sequence[RawResult], text: str) -> list[VerifyFinding]:
    expected = "".join(json_lines(campaign, results)).splitlines(keepends=True)
    lines = text.splitlines(keepends=True)
    for number, (line, correct) in enumerate(zip(lines, expected, strict=False), start=1):
        if line != correct:
            how = "the file was edited, saved in another format, or written by another version"
            return _whole(f"line {number} is not what sark-node writes: {how}")
    if len(lines) != len(expected):
        wrong = f"the file has {count(len(lines), 'line')}, but its results make {len(expected)}"
        return _whole(wrong)
    if {result.row.campaign for result in results} - {campaign}:
        return _whole(f"the file names the campaign {campaign}, but has results of others")
    return []


# -- a CSV ---------------------------------------------------------------------------------------------------------------------------------


def _check_table(table: str, rows: Sequence[Row]) -> list[VerifyFinding]:
    """Compare row by row and column by column, as text; rows may be in any order, and some may be missing."""
    try:
        return _check_lines(csv.DictReader(io.StringIO(table, newline="")), rows)
    except csv.Error as exc:
        return _whole(f"the CSV cannot be read: {exc}")


def _check_lines(reader: csv.DictReader[str], rows: Sequence[Row]) -> list[VerifyFinding]:
    heads = tuple(reader.fieldnames or ())
    if heads[:CONTRACT] != COLUMNS[:CONTRACT]:
        return _whole(f"the CSV does not begin with the {CONTRACT} columns of results")
    if twice := [head for head, times in Counter(heads).items() if times > 1]:
        return _whole(f"the CSV has the column {twice[0]} more than once")
    if strange := [head for head in heads if head not in COLUMNS]:
        return _whole(f"the CSV has a column that is not in the results: {strange[0]}")
    if "Trust" not in heads and any(map(of_stranger, rows)):
        return _whole("the CSV lacks the column Trust, but some of these results are strangers'")
    remade = csv.DictReader(io.StringIO("".join(csv_lines(rows)), newline=""))
    expected = {line["JobId"]: line for line in remade}
    findings, read = list[VerifyFinding](), set[str]()
    for number, line in enumerate(reader, start=2):
        name = str(line.get("JobId"))
        if name not in expected:
            wrong = [f"line {number} of the CSV belongs to no task in these results"]
        elif name in read:
            wrong = [f"line {number} of the CSV repeats the task of an earlier line"]
        else:
            wrong = _cell_differences(line, expected[name])
        read.add(name)
        findings.append(VerifyFinding(task=name, wrong=tuple(wrong)))
    return findings


def _cell_differences(line: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    if None in line or None in line.values():
        return ["its line in the CSV has a different number of cells than the first line"]
    return [
        f"{name} is {line[name]!r} in the CSV, but its signed record gives {expected[name]!r}"
        for name in line
        if line[name] != expected[name]
    ]

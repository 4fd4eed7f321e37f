"""Every change of results after their worker signed them is found."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protocol.errors import CampaignError
from protocol.formats.chain import launch_seed
from protocol.values.attempt import TaskEvent, TaskState
from protocol.values.lease import Fence
from protocol.values.record import (
    DeviceFacts,
    LaunchOutput,
    LoadSample,
    Record,
    RunFacts,
    SignedRecord,
    Timing,
    pack_samples,
    read_record,
    record_body,
    record_message,
)
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from protocol.words import Reason, RunOutcome
from results.analysis.verify import check_results
from results.export.csv import csv_lines
from results.export.raw import RawResult, json_lines, raw_result, read_raw
from results.row.make import make_row
from results.row.replicas import compare_replicas
from results.row.witness import LaunchNote, WitnessAccount
from scheduler.cli.analysis import app
from scheduler.core.commands import CommitTo, RecordGrant
from scheduler.models.describe import sha256_of
from scheduler.output.comparisons import read_source
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.net.identity import Identity
from tests.results.row.test_together import record as together

TOGETHER = together()
WORKER = Identity.from_seed("worker")
MODEL = b"a model"
TASK = Task(
    campaign="c-1",
    task="c-1/1",
    scheduler=Identity.from_seed("scheduler").peer_id,
    model=Model(name="m.onnx", sha256=hashlib.sha256(MODEL).hexdigest(), size=len(MODEL)),
    unit="CPU (ONNX)",
    requirement=Requirement(),
    measure=Measure(runs=30, loads=6),
    timeouts=Timeouts(),
)


def record(task: Task = TASK, **changes: object) -> Record:
    chance = random.Random(task.task)
    facts: dict[str, object] = {
        "campaign": task.campaign,
        "task": task.task,
        "attempt": 1,
        "fence": Fence(incarnation=1, number=1),
        "worker": WORKER.peer_id,
        "task_sha256": hashlib.sha256(task_body(task)).hexdigest(),
        "model_sha256": task.model.sha256,
        "outcome": RunOutcome.COMPLETE,
        "device": DeviceFacts(device="dev", name="mini", soc="Chip", ram=2**33, os="Linux 6.1", cores=4),
        "ran": RunFacts(unit=task.unit, driver="onnx", runtime="r 1", agrees=True, shapes={"x": (1, 3)}),
        "loads": (LoadSample(ns=9, kind="cold"), *(LoadSample(ns=5),) * 5, LoadSample(ns=2, kind="warm")),
        "timings": tuple(
            Timing(
                samples=pack_samples([chance.randint(10**6, 11 * 10**5) for _ in range(5)]),
                warmup=pack_samples([9, 8]),
                cpu_s=0.1,
                wall_s=0.1,
            )
            for _ in range(6)
        ),
    }
    return Record.model_validate(facts | changes)


def result(task: Task = TASK, found: Record | None = None, *, signer: Identity = WORKER) -> RawResult:
    found = found or record(task)
    body = record_body(found)
    signed = SignedRecord(body=body, signature=signer.sign(record_message(body)))
    return raw_result(make_row(task, TaskState.SUCCEEDED, found), task_body(task), signed)


def lost() -> RawResult:
    task = TASK.model_copy(update={"task": "c-1/2"})
    row = make_row(
        task, TaskState.FAILED, reason=Reason.GAVE_UP, detail="three times", attempt=3, device="mini"
    )
    return raw_result(row, task_body(task), None)


def text(*results: RawResult) -> str:
    return "".join(json_lines("c-1", results))


def wrongs(*results: RawResult, **how: str) -> list[str]:
    return [wrong for finding in check_results("c-1", results, **how) for wrong in finding.wrong]


def test_what_a_worker_signed_holds_and_what_nobody_signed_is_reported_as_such() -> None:
    messages = [result(), lost()]
    first, second = check_results("c-1", messages, text=text(*messages), model_sha256=TASK.model.sha256)
    assert (first.task, first.wrong, first.signed, first.worker) == ("c-1/1", (), True, WORKER.peer_id)
    assert first.fingerprint == messages[0].row.fingerprint != ""
    assert (second.task, second.wrong, second.signed) == ("c-1/2", (), False)


def test_the_ratio_of_two_units_is_computed_again_from_what_the_worker_signed() -> None:
    torch = "CPU (Torch)"
    task = TASK.model_copy(update={"beside": (TASK.model,), "beside_units": (torch,)})
    turns = {name: getattr(TOGETHER, name) for name in ("loads", "timings", "rounds", "ran")}
    beside = RunFacts(unit=torch, driver="torch", runtime="r", shapes={"x": (1,)})
    made = result(task, record(task, **turns, ran_beside=(beside,)))
    assert (made.row.against_unit, made.row.compare_verdict) == (torch, "SLOWER")
    assert wrongs(made) == []
    for change in ({"ratio": 0.9}, {"against_unit": TASK.unit}, {"cpu_ratio_high": 9.0}):
        assert wrongs(made.model_copy(update={"row": made.row.model_copy(update=change)})) != []
    here = result(task, record(task, **turns, ran_beside=(beside.model_copy(update={"unit": TASK.unit}),)))
    assert any("a model to compare with was requested" in wrong for wrong in wrongs(here))


@pytest.mark.parametrize("made", [result(), lost()], ids=["complete", "failed"])
def test_how_often_a_task_gave_way_is_the_schedulers_own_account(made: RawResult) -> None:
    row = made.row.model_copy(update={"preempted": 2})
    assert wrongs(made.model_copy(update={"row": row})) == []


@pytest.mark.parametrize("cell", [',"Runs":30', ',"Simulated":null'])
def test_a_file_that_lacks_a_column_does_not_hold(cell: str) -> None:
    cut = text(result()).replace(cell, "")
    assert cut != text(result())
    (read,) = read_raw(cut.encode())
    assert wrongs(read, text=cut) != []


def test_a_task_that_is_there_twice_does_not_hold() -> None:
    assert wrongs(result(), result()) == ["it is in the file more than once"]
    lines = list(csv_lines([result().row]))
    assert wrongs(result(), table="".join([*lines, lines[1]])) == [
        "line 3 of the CSV repeats the task of an earlier line"
    ]


@pytest.mark.parametrize("signature", ["", "ab" * 63, "zz", "AB" * 64])
def test_a_malformed_signature_is_refused_with_the_form_it_must_have(signature: str) -> None:
    forged = result().model_copy(update={"signature": signature})
    words = "the signature is not 64 bytes in lower-case hexadecimal"
    assert wrongs(forged) == [f"its record cannot be read: {words}"]


def test_a_failure_that_a_worker_signed_holds() -> None:
    failed = record(outcome=RunOutcome.FAILED, reason=Reason.CRASHED, detail="signal 9")
    body = record_body(failed)
    signed = SignedRecord(body=body, signature=WORKER.sign(record_message(body)))
    row = make_row(TASK, TaskState.FAILED, failed, reason=Reason.GAVE_UP, detail="three times")
    assert wrongs(raw_result(row, task_body(TASK), signed)) == []


def test_replicas_that_were_compared_hold() -> None:
    tasks = [TASK.model_copy(update={"task": f"c-1/{n}", "replica": n}) for n in (1, 2)]
    messages = [
        result(task, record(task, device=DeviceFacts(device=f"dev-{task.replica}", name="w")))
        for task in tasks
    ]
    rows = compare_replicas([item.row for item in messages])
    assert rows[0].agreement != "alone"
    messages = [item.model_copy(update={"row": row}) for item, row in zip(messages, rows, strict=True)]
    assert wrongs(*messages) == []


def test_any_flipped_byte_is_found() -> None:
    whole = text(result(), lost()).encode()
    chance = random.Random(1)
    begin = whole.index(b'"c-1/2"')  # nobody signed what follows from the lost task
    unsigned = whole.index(b'"DeviceKey":"') + len('"DeviceKey":"')  # stated by the scheduler alone
    places = {*range(160), *chance.sample(range(begin), 500)} - {*range(unsigned, unsigned + 52)}
    missed = []
    for place in sorted(places):
        changed = bytearray(whole)
        changed[place] ^= 1 << chance.randrange(8)
        try:
            flipped = changed.decode()
            outcome = check_results("c-1", read_raw(bytes(changed)), text=flipped)
        except ValueError:  # no longer text, JSON or results
            continue
        if not any(finding.wrong for finding in outcome):
            missed.append((place, whole[place - 20 : place + 20]))
    assert missed == []


def test_a_record_under_another_key_is_found() -> None:
    assert "not signed by the worker" in wrongs(result(signer=Identity.from_seed("thief")))[0]


def test_numbers_that_do_not_follow_from_the_samples_are_found_column_by_column() -> None:
    good = result()
    better = good.row.model_copy(update={"inference_ms_median": 0.5, "verdict": "valid!"})
    outcome = wrongs(good.model_copy(update={"row": better}))
    assert outcome[0].startswith("InferenceMsMedian is 0.5, but its signed record gives 1.0")
    assert len(outcome) == 2
    assert wrongs(good.model_copy(update={"inference_ns": (1, 2)})) == [
        "inference_ns differs from the record"
    ]


def test_a_record_of_another_task_or_model_is_found() -> None:
    other = TASK.model_copy(update={"measure": Measure(runs=30, loads=6, seed=1)})
    good = result()
    outcome = wrongs(good.model_copy(update={"task": base64.b64encode(task_body(other)).decode()}))
    assert "another task's sha256" in outcome[0]
    assert "but the measured one had" in wrongs(good, model_sha256="0" * 64)[0]


def test_a_record_that_is_not_whole_cannot_be_complete() -> None:
    for changes, words in (
        ({"timings": record().timings[:5]}, "25 inferences, but the task asks for 30"),
        ({"outcome": RunOutcome.FAILED, "reason": Reason.CRASHED}, "its record says failed"),
        ({"ran": RunFacts(unit="GPU (ONNX)", driver="onnx", runtime="r")}, "GPU (ONNX) ran the model"),
    ):
        assert words in wrongs(result(TASK, record(**changes)))[0]
    naked = result().model_copy(update={"record": "", "signature": ""})
    assert wrongs(naked) == ["it is Complete, but no worker signed a record of it"]


OPENING, REVEAL = b"o" * 32, b"r" * 32


def stranger(seen: WitnessAccount | None, state: TaskState = TaskState.SUCCEEDED) -> RawResult:
    """A stranger's witnessed run, as its scheduler stores it."""
    outputs = [LaunchOutput(sha256=f"{n:064x}") for n in range(6)]
    timings = tuple(
        timing.model_copy(update={"output": output})
        for timing, output in zip(record().timings, outputs, strict=True)
    )
    ran = RunFacts(unit=TASK.unit, driver="onnx", runtime="r 1", agrees=True, seed=launch_seed(OPENING, 1))
    found = record(ran=ran, timings=timings, opening=OPENING, reveal=REVEAL)
    body = record_body(found)
    signed = SignedRecord(body=body, signature=WORKER.sign(record_message(body)))
    reason = None if state is TaskState.SUCCEEDED else Reason.WRONG_OUTPUTS
    row = make_row(TASK, state, found, trust="stranger", account=seen, reason=reason)
    return raw_result(row, task_body(TASK), signed, seen)


def witnessed(**changes: object) -> WitnessAccount:
    notes = tuple(
        LaunchNote(launch=n, digest=LaunchOutput(sha256=f"{n - 1:064x}").digest().hex(), at_s=n)
        for n in range(1, 7)
    )
    facts = {"opening": OPENING.hex(), "reveal": REVEAL.hex(), "notes": notes, "result_s": 7.0}
    return WitnessAccount.model_validate(facts | changes)


def test_what_was_witnessed_is_held_against_the_record_again() -> None:
    assert wrongs(stranger(witnessed())) == []
    assert "arrived 0.1 s after the reveal" in wrongs(stranger(witnessed(notes=(), result_s=0.1)))[0]
    assert "do not follow from what was revealed" in wrongs(stranger(witnessed(reveal="00" * 32)))[0]
    other = LaunchNote(launch=1, digest="0" * 64, at_s=1.0)
    assert "launch 1 reported other outputs" in wrongs(stranger(witnessed(notes=(other,))))[0]


def test_a_stranger_does_not_become_ones_own_by_a_word_in_the_file() -> None:
    good = stranger(witnessed())
    row = make_row(TASK, TaskState.SUCCEEDED, read_record(base64.b64decode(good.record)), trust="own")
    cleaned = good.model_copy(update={"row": row, "account": None})
    assert wrongs(cleaned) == ["its run was witnessed, as only strangers' runs are, but Trust is own"]


def test_without_what_was_witnessed_a_strangers_row_is_unwitnessed() -> None:
    good = stranger(witnessed())
    assert any("Verdict" in wrong for wrong in wrongs(good.model_copy(update={"account": None})))
    assert (stranger(None).row.verdict, wrongs(stranger(None))) == ("unwitnessed", [])


def test_a_whole_measurement_is_not_made_a_failure() -> None:
    found = record()
    signed = SignedRecord(body=record_body(found), signature=WORKER.sign(record_message(record_body(found))))
    row = make_row(TASK, TaskState.FAILED, found, reason=Reason.CRASHED, detail="it crashed")
    words = "it is Failed, but its record is a complete measurement of what the task asks for"
    assert wrongs(raw_result(row, task_body(TASK), signed)) == [words]
    assert (
        wrongs(stranger(witnessed(), TaskState.FAILED)) == []
    )  # its outputs were wrong: only the scheduler can say so


def test_a_csv_with_a_column_twice_or_without_trust_does_not_hold() -> None:
    """A reader may use either of the two columns, and strangers' rows would look like the user's own."""
    table = list(csv.reader(io.StringIO("".join(csv_lines([result().row])))))
    at = table[0].index("InferenceMsMedian")
    shown = io.StringIO()
    csv.writer(shown).writerows(
        [[*table[0], table[0][at]], [*table[1][:at], "0.5", *table[1][at + 1 :], table[1][at]]]
    )
    assert wrongs(result(), table=shown.getvalue()) == [
        "the CSV has the column InferenceMsMedian more than once"
    ]
    good = stranger(witnessed())
    cut = io.StringIO()
    csv.writer(cut).writerows(line[:17] for line in csv.reader(io.StringIO("".join(csv_lines([good.row])))))
    assert "lacks the column Trust" in wrongs(good, table=cut.getvalue())[0]


def test_a_csv_is_held_against_the_rows_cell_by_cell() -> None:
    messages = [result(), lost()]
    table = "".join(csv_lines([item.row for item in messages]))
    assert wrongs(*messages, table=table) == []
    lines = table.splitlines(keepends=True)
    assert wrongs(*messages, table="".join([lines[0], lines[2]])) == []
    median = next(iter(json.loads(messages[0].row.model_dump_json(include={"inference_ms_median"})).values()))
    assert wrongs(*messages, table=table.replace(str(median), "1.0", 1))
    assert wrongs(*messages, table=table.replace("c-1/2", "c-1/9"))[0].endswith(
        "belongs to no task in these results"
    )
    assert wrongs(*messages, table=table.replace("JobId", "Job", 1)) == [
        "the CSV does not begin with the 17 columns of results"
    ]
    assert wrongs(*messages, table=lines[0] + "Complete,c-1/1\r\n")[0].startswith(
        "its line in the CSV has a different"
    )
    assert wrongs(*messages, table=lines[0] + "x" * 200_000)[0].startswith(
        "the CSV cannot be read: field larger"
    )


# -- sources of results -------------------------------------------------------------------------------------------------------------


def test_results_are_read_from_a_raw_file_and_from_a_csv(tmp_path: Path) -> None:
    messages = [result(), lost()]
    home = Home.at(tmp_path)
    (tmp_path / "raw.json").write_text(text(*messages))
    (tmp_path / "rows.csv").write_text("".join(csv_lines([item.row for item in messages])), newline="")
    raw = read_source(str(tmp_path / "raw.json"), home)
    assert (raw.campaign, raw.results) == ("c-1", tuple(messages))
    assert [len(entry.launches) for entry in raw.entries()] == [6, 0]
    assert sum(messages[0].launches, ()) == messages[0].inference_ns
    table = read_source(str(tmp_path / "rows.csv"), home)
    assert "".join(csv_lines(entry.row for entry in table.entries())) == table.text


@pytest.mark.parametrize(
    "content", ["", "{", "{}", '{"format": "x"}', "a,b\n1,2\n", "\x00", "x" * 200_000], ids=len
)
def test_a_file_of_something_else_is_refused_in_a_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(CampaignError, match="file"):
        read_source(str(path), Home.at(tmp_path))


def test_launches_cannot_share_their_samples_so_that_a_small_file_stays_small(tmp_path: Path) -> None:
    shared = json.loads(text(result()))
    shared["results"][0]["samples"] = [30, -30] * 1000
    (tmp_path / "raw.json").write_text(json.dumps(shared))
    with pytest.raises(CampaignError, match="its structure is wrong"):
        read_source(str(tmp_path / "raw.json"), Home.at(tmp_path))


def test_neither_file_nor_campaign_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match=r"there is no file nothing\.json"):
        read_source("nothing.json", Home.at(tmp_path))


def test_a_model_is_named_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(MODEL)
    assert sha256_of(tmp_path / "m") == TASK.model.sha256
    with pytest.raises(CampaignError, match="cannot read the model"):
        sha256_of(tmp_path / "gone")


def stored(home: Home) -> None:
    """Store a campaign of two replicas on two devices, as the scheduler would."""
    tasks = [TASK.model_copy(update={"task": f"c-1/{n}", "replica": n}) for n in (1, 2)]
    home.store.parent.mkdir(parents=True, exist_ok=True)
    with Store(home.store) as store:
        new = NewCampaign(id="c-1", name="one", scheduler=TASK.scheduler, spec="{}")
        store.campaigns.create(new, [NewModel("m.onnx", TASK.model.sha256, len(MODEL))], tasks)
        for task in tasks:
            fence = Fence(incarnation=1, number=task.replica or 0)
            outcome = record(
                task, fence=fence, device=DeviceFacts(device=f"dev-{task.replica}", name=f"w{task.replica}")
            )
            body = record_body(outcome)
            store.attempts.begin([CommitTo(task.task, 1, task.task, WORKER.peer_id, "w", 1)])
            store.attempts.record_grant(
                RecordGrant(task.task, 1, lease=f"l{fence.number}", fence=fence, queued=False)
            )
            store.attempts.record_result(
                task=task.task,
                attempt=1,
                fence=fence,
                worker=WORKER.peer_id,
                sha256=hashlib.sha256(body).hexdigest(),
                body=body,
                signature=WORKER.sign(record_message(body)),
                event=TaskEvent.SUCCEED,
                reason=None,
            )


@pytest.mark.parametrize(("name", "shown"), [("c-1", "2 signed results"), ("c-1/2", "1 signed result")])
def test_what_this_home_stores_is_verified_by_campaign_and_by_task(
    tmp_path: Path, name: str, shown: str
) -> None:
    home = Home.at(tmp_path)
    stored(home)
    source = read_source(name, home)
    assert {result.row.agreement for result in source.results} <= {"agrees", "disagrees"}
    done = CliRunner().invoke(app, ["verify", name], obj=home)
    assert done.exit_code == 0, done.output
    assert f"verified {shown}: signatures, hashes and all numbers" in done.output
    with pytest.raises(CampaignError, match="no task 9 of c-1 has ended"):
        read_source("c-1/9", home)


def test_an_exported_campaign_is_verified_with_its_csv(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    stored(home)
    results = read_source("c-1", home).results
    (tmp_path / "raw.json").write_text(text(*results))
    (tmp_path / "rows.csv").write_text("".join(csv_lines([item.row for item in results])), newline="")
    (tmp_path / "m.onnx").write_bytes(MODEL)
    requests = ["--csv", str(tmp_path / "rows.csv"), "--model", str(tmp_path / "m.onnx")]
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "raw.json"), *requests], obj=home)
    assert done.exit_code == 0, done.output

"""Rows and their files: the contract's columns, empty where nothing was measured, and harmless whatever a peer wrote."""

from __future__ import annotations

import csv
import io
import json
import re
from base64 import b64decode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from protocol.errors import ResourceError
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from protocol.values.record import (
    DeviceFacts,
    HostLoad,
    LoadSample,
    Record,
    RunFacts,
    SignedRecord,
    StageTime,
    Timing,
    pack_samples,
    read_record,
    record_body,
)
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from protocol.words import Reason, RunOutcome
from results.export.csv import csv_cell, csv_lines, show_number
from results.export.raw import json_lines, raw_result, read_raw, write_lines
from results.row.make import make_row
from results.row.row import COLUMNS, CONTRACT, Row, RowStatus, column_meanings
from scheduler.output.results_table import MAX_REMARKS, legend, plain_lines, remarks, show_results
from swarm.base.text import is_safe, safe_text

PEER = "12D3KooW" + "W" * 44
MIB = 1024 * 1024
HEADER = (
    "Status,JobId,FileName,FileSize,ComputeUnits,DeviceName,Soc,Ram,DeviceOs,LoadMsMedian,LoadMsAverage,LoadMsStdDev,"
    "PeakLoadRamUsage,InferenceMsMedian,InferenceMsAverage,InferenceMsStdDev,PeakInferenceRamUsage"
)
TASK = Task(
    campaign="c-1",
    task="c-1/3",
    scheduler=PEER,
    model=Model(name="m.onnx", sha256="a" * 64, size=1234),
    unit="CPU (ONNX)",
    requirement=Requirement(),
    measure=Measure(),
    timeouts=Timeouts(),
)


def timing(times: list[int], **changes: object) -> Timing:
    facts: dict[str, object] = {
        "samples": pack_samples(times),
        "warmup": pack_samples([9_000_000, 3_000_000]),
        "cpu_s": 1.5,
        "wall_s": 1.0,
        "baseline": 50 * MIB,
        "peak": 80 * MIB,
        "timer_ns": 45,
        "switches": 0,
    }
    return Timing.model_validate(facts | changes)


def record(**changes: object) -> Record:
    facts: dict[str, object] = {
        "campaign": "c-1",
        "task": "c-1/3",
        "attempt": 2,
        "fence": Fence(incarnation=1, number=4),
        "worker": PEER,
        "task_sha256": "b" * 64,
        "model_sha256": "a" * 64,
        "outcome": RunOutcome.COMPLETE,
        "device": DeviceFacts(
            device="dev-1",
            name="mini",
            soc="Chip 1",
            ram=16 * 1024**3,
            os="Linux 6.1",
            arch="x86_64",
            cores=4,
            version="0.1",
        ),
        "ran": RunFacts(
            unit="CPU (ONNX)",
            driver="onnx",
            runtime="onnxruntime 1.31.1",
            providers=("CPUExecutionProvider",),
            threads=4,
            shapes={"x": (1, 3, 8), "n": ()},
            dtypes={"x": "float32"},
            seed=7,
            notes=("timed by the C interface",),
            output_sha256="c" * 64,
            agrees=True,
            max_error=2.5e-7,
            tolerance=1e-5,
        ),
        "loads": tuple(
            LoadSample(ns=ms * 1_000_000, baseline=50 * MIB, peak=(50 + ms) * MIB) for ms in (12, 10, 11)
        ),
        "timings": (timing([2_000_000, 4_000_000, 3_000_000, 3_000_000, 3_000_000, 3_000_000]),) * 6,
        "stages": (StageTime(stage="fetch", seconds=0.25),),
    }
    return Record.model_validate(facts | changes)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


# -- rows -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "others", "verdict", "remarks"),
    [
        (3, 0.01, "valid", "waiting 10%"),
        (3, 0.1, "valid", "waiting 10%; host busy 10%"),
        (4, 0.01, "valid", ""),
        (4, None, "valid", "waiting 10%"),
        (4, 0.3, "busy-host", ""),
        (5, None, "valid", ""),
        (5, 0.3, "busy-host", ""),
    ],
)
def test_threads_that_fill_the_cores_wait_for_each_other_where_others_are_seen_to_take_little(
    threads: int, others: float | None, verdict: str, remarks: str
) -> None:
    blocks = pack_samples([6, 10**9, 10**9, 10**8 + 1, 1])  # a process waited a tenth of the time
    one = timing([3_000_000] * 6, blocks=blocks, host=HostLoad(others=others))
    ran = record().ran
    assert ran is not None
    made = record(ran=ran.model_copy(update={"threads": threads}), timings=(one,) * 6)
    row = make_row(TASK, TaskState.SUCCEEDED, made)
    assert (row.verdict, row.remarks) == (verdict, remarks)


def test_the_median_without_waiting_is_that_of_a_processor_and_not_of_another_unit() -> None:
    blocks = pack_samples(
        [6, 18_000_000, 9_000_001, 1, 1]
    )  # half of the time its one thread had no processor
    one = timing([3_000_000] * 6, blocks=blocks)
    ran = record().ran
    assert ran is not None
    for unit, verdict in (("CPU (ONNX)", "busy-host"), ("GPU (CoreML)", "valid")):
        made = record(ran=ran.model_copy(update={"threads": 1, "unit": unit}), timings=(one,) * 6)
        row = make_row(TASK.model_copy(update={"unit": unit}), TaskState.SUCCEEDED, made)
        assert row.verdict == verdict


def test_a_complete_row_has_every_number_of_the_record() -> None:
    row = make_row(TASK, TaskState.SUCCEEDED, record())
    assert (row.status, row.job_id, row.file_name, row.file_size) == (
        RowStatus.COMPLETE,
        "c-1/3",
        "m.onnx",
        1234,
    )
    assert (row.device_name, row.soc, row.ram, row.device_os) == ("mini", "Chip 1", 16.0, "Linux 6.1")
    assert (row.load_ms_median, row.load_ms_average, row.load_ms_std_dev) == (11.0, 11.0, 1.0)
    assert (row.load_ms_first, row.load_ms_min, row.load_ms_max, row.loads) == (12.0, 10.0, 12.0, 3)
    assert (row.peak_load_ram_usage, row.peak_load_ram_total) == (12.0, 62.0)
    assert (row.inference_ms_median, row.inference_ms_average) == (3.0, 3.0)
    assert row.inference_ms_std_dev == pytest.approx((12 / 35) ** 0.5)
    assert (row.inference_ms_median_low, row.inference_ms_median_high) == (3.0, 3.0)
    assert (row.launches, row.half_width_percent, row.launch_spread_percent) == (6, 0.0, 0.0)
    assert (row.inference_ms_first, row.inference_ms_p50, row.inference_ms_p90) == (9.0, 3.0, None)
    assert (row.peak_inference_ram_usage, row.peak_inference_ram_total) == (30.0, 80.0)
    assert (row.runs, row.warmups, row.cpu_percent, row.timer_overhead_ns) == (36, 12, 150.0, 45)
    assert (row.involuntary_switches, row.threads, row.seed, row.attempt) == (0, 4, 7, 2)
    assert (row.shapes, row.dtypes) == ("x 1x3x8; n scalar", "x float32")
    assert (row.providers, row.runtime) == ("CPUExecutionProvider", "onnxruntime 1.31.1")
    assert (row.verdict, row.max_error) == ("valid", 2.5e-7)
    assert (row.worker_id, row.device_id, row.stages) == (PEER, "dev-1", "fetch 0.250")


def test_one_load_and_one_run_have_no_deviation() -> None:
    one = record(loads=(LoadSample(ns=10),), timings=(timing([5]),))
    row = make_row(TASK, TaskState.SUCCEEDED, one)
    assert (row.load_ms_std_dev, row.inference_ms_std_dev, row.peak_load_ram_usage) == (None, None, None)
    assert row.verdict == "few-runs"


def test_what_a_device_cannot_measure_is_empty_and_not_zero() -> None:
    blind = record(
        timings=(timing([5] * 9, baseline=None, peak=None, timer_ns=0, switches=None, wall_s=0.0),), loads=()
    )
    row = make_row(TASK, TaskState.SUCCEEDED, blind)
    for name in (
        "load_ms_median",
        "load_ms_std_dev",
        "peak_load_ram_usage",
        "peak_inference_ram_usage",
        "peak_inference_ram_total",
        "cpu_percent",
        "timer_overhead_ns",
        "involuntary_switches",
    ):
        assert getattr(row, name) is None, name


def test_a_peak_without_a_baseline_is_shown_in_total_but_not_above_it() -> None:
    row = make_row(TASK, TaskState.SUCCEEDED, record(timings=(timing([5] * 9, baseline=None),)))
    assert (row.peak_inference_ram_usage, row.peak_inference_ram_total) == (None, 80.0)


def test_a_failed_row_keeps_model_device_and_reason_and_no_number() -> None:
    failed = record(
        outcome=RunOutcome.FAILED, reason=Reason.WRONG_UNIT, permanent=True, detail="ran on the CPU"
    )
    row = make_row(TASK, TaskState.FAILED, failed)
    assert (row.status, row.file_name, row.device_name) == (RowStatus.FAILED, "m.onnx", "mini")
    assert (row.reason, row.detail, row.verdict) == ("wrong-unit", "ran on the CPU", "")
    measured = [name for name in Row.model_fields if "_ms_" in name or name.startswith("peak_")]
    assert [getattr(row, name) for name in measured] == [None] * len(measured)


def test_a_share_of_processor_time_that_is_no_number_is_not_shown() -> None:
    for cpu, wall in (
        (3e7, 1e-308),
        (1.0, 0.0),
        (0.0, 0.0),
        (0.0, 0.19),
        (0.19, 0.19),
    ):  # too short for ticks
        row = make_row(TASK, TaskState.SUCCEEDED, record(timings=(timing([1] * 6, cpu_s=cpu, wall_s=wall),)))
        assert row.cpu_percent is None
        assert Row.model_validate_json(row.model_dump_json()) == row


def test_a_task_that_never_ran_is_a_row_too() -> None:
    row = make_row(
        TASK, TaskState.FAILED, reason=Reason.NOTHING_FITS, detail="no device", attempt=1, device="mini"
    )
    assert (row.status, row.reason, row.detail, row.device_name) == (
        RowStatus.FAILED,
        "nothing-fits",
        "no device",
        "mini",
    )
    assert make_row(TASK, TaskState.CANCELLED).status is RowStatus.CANCELLED
    assert make_row(TASK, TaskState.QUEUED).status is RowStatus.PENDING
    assert make_row(TASK, TaskState.RUNNING).status is RowStatus.RUNNING


def test_the_reason_of_the_scheduler_stands_before_that_of_the_record() -> None:
    crashed = record(outcome=RunOutcome.FAILED, reason=Reason.CRASHED, detail="signal 11")
    row = make_row(TASK, TaskState.FAILED, crashed, reason=Reason.GAVE_UP, detail="3 attempts")
    assert (row.reason, row.detail) == ("gave-up", "3 attempts")


def test_samples_that_cannot_be_read_give_a_row_that_says_so() -> None:
    row = make_row(TASK, TaskState.SUCCEEDED, record(timings=(timing([1], samples=b"junk"),)))
    assert (row.verdict, row.inference_ms_median) == ("unreadable", None)
    assert "samples" in row.verdict_reason


def test_every_state_of_a_task_has_a_status() -> None:
    adopted = make_row(TASK, TaskState.CANCELLED, reason=Reason.ADOPTED).status
    assert {make_row(TASK, state).status for state in TaskState} | {adopted} == set(RowStatus)


# -- CSV ------------------------------------------------------------------------------------------------------------------------


def test_the_contract_s_columns_come_first_in_order() -> None:
    header = next(iter(csv_lines([])))
    assert header.startswith(HEADER + ",")
    assert header.endswith("\r\n")
    assert HEADER.split(",") == list(COLUMNS[:CONTRACT])
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_a_csv_reads_back_as_what_was_written() -> None:
    text = "".join(
        csv_lines([make_row(TASK, TaskState.SUCCEEDED, record()), make_row(TASK, TaskState.CANCELLED)])
    )
    complete, cancelled = rows_of(text)
    assert list(complete) == list(COLUMNS)
    assert complete["InferenceMsMedian"] == "3"
    assert complete["InferenceMsStdDev"] == "0.58554"
    assert complete["Ram"] == "16"
    assert float(complete["MaxError"]) == pytest.approx(2.5e-7)
    assert cancelled["Status"] == "Cancelled"
    assert {cancelled[name] for name in COLUMNS if "Ms" in name or "Ram" in name} == {""}


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        " =1",
        "\u200b=1",
        "＝1",
        '=HYPERLINK("http://x")',
        "%\x00=1",
    ],
)
def test_no_text_from_a_peer_is_a_formula(text: str) -> None:
    row = make_row(TASK, TaskState.FAILED, detail=text)
    (result,) = rows_of("".join(csv_lines([row])))
    assert not re.match(r"\s*[=+\-@＝＋－＠\t\r]", result["Detail"])


def test_a_sheet_that_cuts_at_semicolons_finds_no_formula_either() -> None:
    assert csv_cell("a;=1+1") == '"a;\'=1+1"'
    assert csv_cell("a; +1") == '"a; \'+1"'


@given(st.text(max_size=60))
def test_any_text_stays_one_cell_of_one_line(text: str) -> None:
    row = make_row(TASK, TaskState.FAILED, detail=text, device=text)
    written = "".join(csv_lines([row]))
    assert written.count("\r\n") == written.count("\n") == 2
    (result,) = rows_of(written)
    assert result["Status"] == "Failed"
    assert is_safe(result["Detail"])
    assert not result["Detail"].startswith(("=", "+", "-", "@"))


@given(st.floats(0, 1e12))
def test_a_number_is_plain_digits_that_read_back(value: float) -> None:
    text = show_number(value)
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)?", text)
    assert float(text) == pytest.approx(value, rel=1e-3, abs=1e-12)


def test_a_csv_takes_the_place_of_an_older_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    write_lines(path, csv_lines([make_row(TASK, TaskState.CANCELLED)] * 3))
    write_lines(path, csv_lines([make_row(TASK, TaskState.SUCCEEDED, record())]))
    assert len(rows_of(path.read_bytes().decode())) == 1
    assert [item.name for item in path.parent.iterdir()] == ["results.csv"]


def test_a_csv_that_fails_midway_leaves_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("old")

    def broken() -> object:
        yield make_row(TASK, TaskState.CANCELLED)
        raise OSError(28, "No space left on device")

    with pytest.raises(ResourceError, match="No space left on device"):
        write_lines(path, csv_lines(broken()))  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["results.csv"]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot write"):
        write_lines(tmp_path / "file" / "results.csv", csv_lines([]))


def test_no_folder_is_made_for_a_file_of_results(tmp_path: Path) -> None:
    nowhere = tmp_path / "no" / "such"
    with pytest.raises(ResourceError, match=f"there is no folder {re.escape(str(nowhere))}"):
        write_lines(nowhere / "x.csv", csv_lines([]))
    assert not list(tmp_path.iterdir())


def test_every_column_is_named_once_and_described_where_its_name_does_not_say_it() -> None:
    meanings = column_meanings()
    assert list(meanings) == list(COLUMNS)
    for name in ("FileSize", "Ram", "PeakLoadRamUsage", "PeakInferenceRamUsage", "CpuPercent", "Verdict"):
        assert meanings[name]


# -- raw results and tables -----------------------------------------------------------------------------------------------------


def test_raw_results_carry_all_that_is_needed_to_make_the_numbers_again(tmp_path: Path) -> None:
    observed = record()
    signed = SignedRecord(body=record_body(observed), signature=b"s" * 64)
    row = make_row(TASK, TaskState.SUCCEEDED, observed)
    lost = make_row(TASK, TaskState.FAILED, reason=Reason.GAVE_UP)
    path = tmp_path / "raw.json"
    results = [raw_result(row, task_body(TASK), signed), raw_result(lost, task_body(TASK), None)]
    write_lines(path, json_lines("c-1", results))
    first, second = read_raw(path.read_bytes())
    assert first.row == row
    assert first.inference_ns == (2_000_000, 4_000_000, 3_000_000, 3_000_000, 3_000_000, 3_000_000) * 6
    assert (first.samples, first.warmups, first.per_sample) == ((6,) * 6, (2,) * 6, (1,) * 6)
    assert (first.warmup_ns, first.loads_ns) == (
        (9_000_000, 3_000_000) * 6,
        (12_000_000, 10_000_000, 11_000_000),
    )
    assert first.load_kinds == ("fresh",) * 3
    assert first.ran is not None
    assert first.ran.shapes == {"x": (1, 3, 8), "n": ()}
    assert read_record(b64decode(first.record)) == observed
    assert b64decode(first.task) == task_body(TASK)
    assert bytes.fromhex(first.signature) == b"s" * 64
    assert (second.row.reason, second.record) == ("gave-up", "")
    assert json.loads(path.read_text())["campaign"] == "c-1"


def test_a_record_that_cannot_be_read_is_still_handed_out(tmp_path: Path) -> None:
    row = make_row(TASK, TaskState.FAILED)
    result = raw_result(row, b"", SignedRecord(body=b"junk", signature=b"s" * 64))
    assert b64decode(result.record) == b"junk"
    assert result.inference_ns == ()


def test_other_files_are_not_taken_for_raw_results() -> None:
    with pytest.raises(ValueError, match="not a file of raw results"):
        read_raw(b"[]")


def test_rows_are_the_same_in_json_and_in_csv() -> None:
    row = make_row(TASK, TaskState.SUCCEEDED, record())
    assert list(row.model_dump(mode="json")) == list(COLUMNS)
    assert Row.model_validate_json(row.model_dump_json()) == row


def shown(rows: list[Row], *, terminal: bool) -> str:
    out = io.StringIO()
    show_results(rows, Console(file=out, force_terminal=terminal, width=80, color_system=None))
    return out.getvalue()


def test_the_table_fits_eighty_columns_and_tells_why_a_task_failed() -> None:
    nasty = make_row(
        TASK, TaskState.FAILED, reason=Reason.CRASHED, detail="[red]x[/] \x1b[2J\u202egone", device="a" * 60
    )
    text = shown([make_row(TASK, TaskState.SUCCEEDED, record()), nasty], terminal=True)
    table = text.split("c-1/3 failed")[0]
    assert max(len(line) for line in table.splitlines()) <= 80
    assert "3.000 ±0.0%" in table
    assert "c-1/3 failed: crashed: [red]x[/] [2Jgone" in text
    assert "\x1b[2J" not in text


def test_what_is_piped_is_plain_and_whole() -> None:
    rows = [make_row(TASK, TaskState.SUCCEEDED, record())] * 2
    text = shown(rows, terminal=False)
    assert text.splitlines() == [*plain_lines(rows), legend(rows)]
    assert text.splitlines()[1].split() == (
        [
            "3",
            "m.onnx",
            "x",
            "1×3×8",
            "+1",
            "CPU",
            "(ONNX)",
            "mini",
            "11.00",
            "3.000",
            "±0.0%",
            "30.0",
            "valid",
        ]
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ((2.14, 39.6), "2.1 to 40 s"),
        ((3600.0, 3600.4), "3600 s"),
        ((0.000_062_3, 0.012), "62.3 µs to 12 ms"),
        ((0.012, 0.0873), "12 to 87.3 ms"),
    ],
)
def test_the_legend_says_for_when_the_intervals_hold(seconds: tuple[float, float], words: str) -> None:
    row = make_row(TASK, TaskState.SUCCEEDED, record())
    spans = [row.model_copy(update={"horizon_s": span}) for span in seconds]
    assert legend(spans) == f"Medians in ms; ±: half of their 95 % interval, which holds for these {words}."
    assert legend([make_row(TASK, TaskState.CANCELLED)]) == "Medians in ms; ±: half of their 95 % interval."


@pytest.mark.parametrize(
    ("median", "shown"),
    [
        (0.002053, "0.00205"),
        (0.0157, "0.0157"),
        (0.1004, "0.100"),
        (1.0, "1.000"),
        (12.345, "12.35"),
        (0.0, "0.000"),
    ],
)
def test_times_below_a_tenth_of_a_millisecond_have_three_digits_that_say_something(
    median: float, shown: str
) -> None:
    row = make_row(TASK, TaskState.SUCCEEDED, record()).model_copy(
        update={"inference_ms_median": median, "half_width_percent": None}
    )
    assert shown in plain_lines([row])[1].split()


def test_below_the_table_stands_why_a_row_is_not_simply_valid() -> None:
    valid = make_row(TASK, TaskState.SUCCEEDED, record())
    noisy = valid.model_copy(
        update={"job_id": "c-1/4", "verdict": "noisy", "verdict_reason": "varies\x1b[2J by 9 %", "notes": "x"}
    )
    assert remarks([valid, noisy]) == [legend([valid, noisy]), "4 noisy: varies[2J by 9 %"]
    many = remarks([noisy] * 20)
    assert (len(many), many[-1]) == (MAX_REMARKS + 2, "and 8 more: see Notes and AgreementReason in the CSV")
    assert remarks([make_row(TASK, TaskState.CANCELLED)]) == []


def test_the_last_column_is_the_verdict_where_every_row_has_one() -> None:
    complete = make_row(TASK, TaskState.SUCCEEDED, record())
    assert plain_lines([complete])[0].endswith("Verdict")
    assert plain_lines([complete, make_row(TASK, TaskState.CANCELLED)])[0].endswith("Result")


@given(st.text(max_size=400), st.integers(2, 50))
def test_safe_text_is_one_short_line_of_visible_characters(text: str, limit: int) -> None:
    result = safe_text(text, limit)
    assert is_safe(result)
    assert len(result) <= limit
    assert safe_text(result, limit) == result


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a\x1b[31mb", "a[31mb"),
        ("a\u202eb\u2066c\u200bd\ufeffe", "abcde"),
        ("a\x9b31mb", "a31mb"),
        ("one\ntwo\tthree\u2028four", "one two three four"),
        ("Größe 漢字 ✓", "Größe 漢字 ✓"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_safe_text_drops_what_moves_hides_or_turns(text: str, safe: str) -> None:
    assert safe_text(text) == safe

"""JSON Lines and Parquet: every column with its type and unit, every sample, and no control characters for a terminal."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from protocol.errors import ResourceError
from results.export.columnar import (
    GROUP,
    SAMPLES,
    jsonl_lines,
    parquet_bytes,
    unit_of,
    write_parquet,
)
from results.export.raw import write_lines
from results.row.row import COLUMNS, Row
from tests.scheduler.report_parts import complete, failed, unplaced

HOSTILE = "<img src=x onerror=alert(1)>\u202e=cmd|\u009b31mred\x07"
RESULTS = [complete(1), complete(2, ms=0.5, device=1), failed(3), unplaced(4)]


def test_each_line_is_the_row_with_its_samples_launch_by_launch() -> None:
    lines = [json.loads(line) for line in jsonl_lines(RESULTS)]
    assert [line["Status"] for line in lines] == ["Complete", "Complete", "Failed", "Failed"]
    assert list(lines[0]) == [*COLUMNS, *SAMPLES]
    assert lines[0]["InferenceMsMedian"] == RESULTS[0].row.inference_ms_median
    assert [len(launch) for launch in lines[0]["InferencesNs"]] == [17] * 6
    assert [ns for launch in lines[0]["InferencesNs"] for ns in launch] == list(RESULTS[0].inference_ns)
    assert [len(launch) for launch in lines[0]["WarmupsNs"]] == [5] * 6
    assert lines[0]["LoadKinds"] == ["cold"] + ["fresh"] * 5
    assert lines[3]["InferenceMsMedian"] is None
    assert lines[3]["InferencesNs"] == []


def test_a_parquet_file_has_a_typed_column_for_each_of_the_csvs_and_all_samples() -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(parquet_bytes("c-1", RESULTS)))
    assert table.column_names == [*COLUMNS, *SAMPLES]
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert types["InferenceMsMedian"] == "double"
    assert types["Runs"] == "int64"
    assert types["OnBattery"] == "bool"
    assert types["Status"] == types["FileName"] == "string"
    assert types["InferencesNs"].startswith("list<")
    for outcome, result in zip(table.to_pylist(), RESULTS, strict=True):
        for name, column in zip(Row.model_fields, COLUMNS, strict=True):
            value = getattr(result.row, name)
            assert outcome[column] == (None if value == "" else value), column
    assert [ns for launch in table["InferencesNs"][1].as_py() for ns in launch] == list(
        RESULTS[1].inference_ns
    )


def test_each_parquet_column_says_its_unit_and_its_meaning() -> None:
    schema = pyarrow.parquet.read_schema(io.BytesIO(parquet_bytes("c-1", RESULTS)))
    assert schema.metadata[b"campaign"] == b"c-1"
    values = {field.name: field.metadata for field in schema}
    assert values["InferenceMsMedian"][b"unit"] == b"ms"
    assert values["EnergyPerInferenceJ"][b"unit"] == b"J"
    assert values["InferencesNs"][b"unit"] == b"ns"
    assert b"unit" not in values["FileName"]
    assert all(values[name][b"description"] for name in COLUMNS)


def test_every_measured_number_has_a_unit_unless_it_is_a_count_or_a_share() -> None:
    bare = {
        name
        for name, field in Row.model_fields.items()
        if field.annotation in (float | None, float) and not unit_of(name)
    }
    assert bare == {
        *("max_error", "tolerance", "output_tokens", "rouge1", "rouge2", "rouge_l"),
        *("ratio", "ratio_low", "ratio_high", "cpu_ratio", "cpu_ratio_low", "cpu_ratio_high"),
    }
    assert unit_of("load_ms_first") == unit_of("warm_load_ms") == "ms"
    assert unit_of("clock_mhz") == "MHz"
    assert unit_of("peak_load_ram_usage") == unit_of("vram_mb") == "MB"
    assert unit_of("idle_power_w") == "W"
    assert not any(unit_of(name) for name in ("runs", "shapes", "worker_id", "threads", "on_battery"))


def test_the_same_results_make_the_same_bytes_and_many_make_several_row_groups() -> None:
    assert parquet_bytes("c-1", RESULTS) == parquet_bytes("c-1", RESULTS)
    many = parquet_bytes("c-1", (RESULTS[3] for _ in range(GROUP + 1)))
    file = pyarrow.parquet.ParquetFile(io.BytesIO(many))
    assert (file.metadata.num_rows, file.num_row_groups) == (GROUP + 1, 2)


def test_hostile_texts_and_numbers_are_harmless_in_both() -> None:
    result = complete(1)
    row = result.row.model_copy(update={"file_name": HOSTILE, "detail": "one\ntwo", "device_name": "é"})
    hostile = result.model_copy(update={"row": row, "warmup_ns": (2**64, *result.warmup_ns[1:])})
    (line,) = jsonl_lines([hostile])
    assert line.isascii()
    assert line.count("\n") == 1
    assert "\\u202e" not in line
    assert "\\u009b" not in line
    assert json.loads(line)["DeviceName"] == "é"
    (outcome,) = pyarrow.parquet.read_table(io.BytesIO(parquet_bytes(HOSTILE, [hostile]))).to_pylist()
    assert outcome["FileName"] == "<img src=x onerror=alert(1)>=cmd|31mred"
    assert outcome["Detail"] == "one two"
    assert outcome["WarmupsNs"][0][0] is None
    assert outcome["WarmupsNs"][0][1] == result.warmup_ns[1]


def test_without_pyarrow_one_line_says_what_to_install_and_no_file_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ResourceError, match="Parquet needs the package pyarrow") as raised:
        write_parquet(tmp_path / "x.parquet", "c-1", RESULTS)
    assert "sark-node[report]" in raised.value.hint
    with pytest.raises(ResourceError, match="pyarrow"):
        parquet_bytes("c-1", RESULTS)
    assert list(tmp_path.iterdir()) == []


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    write_lines(tmp_path / "x.jsonl", jsonl_lines(RESULTS))
    write_parquet(tmp_path / "x.parquet", "c-1", RESULTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.jsonl", "x.parquet"]
    assert len((tmp_path / "x.jsonl").read_text("ascii").splitlines()) == 4
    with pytest.raises(ResourceError, match="no folder"):
        write_parquet(tmp_path / "none" / "x.parquet", "c-1", RESULTS)

"""A comparison on a terminal of 80 columns: one line a pair, what all share above, reasons below."""

from __future__ import annotations

from results.analysis.pairs import pair_up
from scheduler.output.compare_table import compare_lines
from tests.results.analysis.test_pairs import entry, row


def test_each_pair_has_one_line_and_what_all_share_stands_above() -> None:
    names = ["resnet50-v2-7-with-a-rather-long-name.onnx", "vad.onnx", "short.onnx"]
    a = [entry(row(name, "one", shapes="x 1x3x224x224")) for name in names]
    b = [entry(row(name, "two", 4.0, shapes="x 1x3x224x224")) for name in names[:2]]
    lines = [line.plain for line in compare_lines(pair_up(a, b, across_devices=True), 80)]
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "1×3×224×224 · CPU (ONNX), 1 thread"
    assert [line.split()[0] for line in lines[2:5]] == ["SLOWER", "SLOWER", "–"]
    assert "resnet50" in lines[2]
    assert lines[3].endswith("vad.onnx · one → two")
    assert lines[4].endswith("short.onnx · one [1]")
    assert lines[-1] == "[1] not compared: only A has it"


def test_other_shapes_are_refused_with_both() -> None:
    pairs = pair_up([entry(row(shapes="x 1x3"))], [entry(row(shapes="x 1x4"))])
    lines = [line.plain for line in compare_lines(pairs, 80)]
    assert lines[1].startswith("–")
    assert lines[-1] == "[1] not compared: the input shapes differ: x 1x3 and x 1x4"

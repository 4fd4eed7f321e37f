"""A comparison on a terminal of 80 columns: one line a pair below its model, reasons below all."""

from __future__ import annotations

from results.analysis.pairs import pair_up
from scheduler.output.compare_table import compare_lines
from tests.results.analysis.test_pairs import entry, row


def test_each_pair_has_one_line_below_its_model_and_shape() -> None:
    names = ["resnet50-v2-7-with-a-rather-long-name.onnx", "vad.onnx", "short.onnx"]
    a = [entry(row(name, "one", shapes="x 1x3x224x224")) for name in names]
    b = [entry(row(name, "two", 4.0, shapes="x 1x3x224x224")) for name in names[:2]]
    lines = [line.plain for line in compare_lines(pair_up(a, b, across_devices=True), 80)]
    assert all(len(line) <= 80 for line in lines)
    assert [line for line in lines if "1×3×224×224" in line and "[1]" not in line] == [
        f"{name}  1×3×224×224  CPU (ONNX) ×1" for name in names
    ]
    rows = [line for line in lines if line.startswith(("SLOWER", "–"))]
    assert [line.split()[0] for line in rows] == ["SLOWER", "SLOWER", "–"]
    assert [
        line.endswith(end)
        for line, end in zip(rows, ("  one → two", "  one → two", "  one [1]"), strict=True)
    ]
    assert lines[-1] == "[1] not compared: only A has it"


def test_other_shapes_are_refused_with_both() -> None:
    pairs = pair_up([entry(row(shapes="x 1x3"))], [entry(row(shapes="x 1x4"))])
    lines = [line.plain for line in compare_lines(pairs, 80)]
    assert lines[2].startswith("–")
    assert lines[-1] == "[1] not compared: the input shapes differ: x 1x3 and x 1x4"

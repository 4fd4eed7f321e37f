"""The matrix on a terminal of 80 columns: the place of each value, the marks, and that every line fits with whole words."""

from __future__ import annotations

from collections.abc import Sequence

from results.analysis.matrix import MatrixCell, make_matrix
from scheduler.output.matrix_table import matrix_lines
from tests.results.analysis.test_pairs import row

DEVICES = ("mini", "zen4-workstation-in-the-lab-upstairs", "rpi-5", "jetson-orin-nano", "galaxy")


def cell(device: str = "mini", ms: float | None = 2.0, **changes: object) -> MatrixCell:
    facts: dict[str, object] = {
        "model": "m.onnx", "unit": "CPU (ONNX)", "shapes": "x 1x3", "verdict": "valid",
        "low_ms": ms and 0.99 * ms, "high_ms": ms and 1.01 * ms,
    }  # fmt: skip
    return MatrixCell(device=device, median_ms=ms, **(facts | changes))  # type: ignore[arg-type]


def drawn(cells: Sequence[MatrixCell], base: str = "", width: int = 80) -> list[str]:
    return [line.plain for line in matrix_lines(cells, base, width)]


def test_devices_are_columns_in_blocks_that_fit_and_words_stay_whole() -> None:
    why = "busy-host: {}% of the processors' time went to other work; the median is known within ±41.5%"
    cells = [
        cell(device, 3.0 + at, model=model, remark=why.format(30 + at + n) if at == 2 else "")
        for n, model in enumerate(("resnet50.onnx", "vad.onnx"))
        for at, device in enumerate(DEVICES)
    ]
    lines = drawn(cells)
    assert all(len(line) <= 80 for line in lines)
    heads = [line for line in lines if line.startswith(" " * 12)]
    assert len(heads) > 1, "more columns than fit stand below"
    assert all(sum(name in line for line in heads) == 1 for name in ("mini", "rpi-5", "galaxy"))
    assert "zen4-works…ab-upstairs" in " ".join(heads), "both ends of a long name are seen"
    assert sum("resnet50.onnx  1×3" in line for line in lines) == len(heads)
    reasons = " ".join(line.strip() for line in lines if "[1]" in line or line.startswith("    "))
    assert "[1] busy-host: 32% of the processors' time" in reasons
    assert reasons.endswith("(resnet50.onnx on rpi-5, and 1 more like it)")
    assert not any("[2]" in line for line in lines), "what differs in figures alone is one kind"


def test_the_quickest_is_marked_with_what_cannot_be_told_from_it_but_no_wrong_outputs() -> None:
    cells = [
        cell("a", 1.0, verdict="mismatch", remark="mismatch: 8% differ"),
        cell("b", 2.0),
        cell("c", 2.01),
        cell("d", 2.1),
        cell("e", 0.1, verdict="simulated", remark="simulated: nothing was measured"),
        cell("a", 5.0, model="alone.onnx"),
    ]
    text = "\n".join(drawn(cells, width=200))
    assert "*2 ±1%  *2.01 ±1%  2.1 ±1%" in text
    assert "  1 ±1% [1]" in text
    assert "*0.1" not in text
    assert "*5" not in text, "there was nothing to choose from"


def test_threads_make_rows_only_where_one_device_has_several() -> None:
    own = drawn([cell("a", 1.0, threads=4), cell("b", 2.0, threads=16)])
    assert [line for line in own if "CPU" in line] == ["  CPU (ONNX)  *1 ±1%  2 ±1%"]
    both = drawn([cell("a", 1.0, threads=1), cell("a", 0.5, threads=4), cell("b", 2.0, threads=4)])
    assert [line for line in both if "CPU" in line] == [
        "  CPU (ONNX), 1 thread      1 ±1%",
        "  CPU (ONNX), 4 threads  *0.5 ±1%  2 ±1%",
    ]
    twice = drawn([cell("a", 1.0), cell("a", 3.0)])
    assert len([line for line in twice if "CPU" in line]) == 2, "a second run hides no first"


def test_shapes_batches_and_what_was_not_run_have_their_places() -> None:
    lines = drawn(
        [
            cell("a", 1.0),
            cell("", None, shapes="", unit="GPU (ONNX)", remark="Failed, nothing-fits: no device has it"),
            cell("a", 9.0, batch=8, shapes="x 8x3", per_s=888.9),
            cell("a", 7.0, shapes="x 1x5"),
        ]
    )
    assert [line for line in lines if line.startswith("m.onnx")] == [
        *("m.onnx  1×3", "m.onnx  1×5", "m.onnx  batch 8  8×3"),
        *("m.onnx  1×3", "m.onnx  1×5", "m.onnx  batch 8  8×3"),
    ], "of the times, and of the inputs in a second"
    assert "no device" in lines[0]
    assert any(line.startswith("  GPU (ONNX)") and line.endswith("[1]") for line in lines)
    assert "Inputs per second" in lines


def test_a_row_with_wrong_outputs_is_no_base() -> None:
    rows = [row("m", "one", 1.0, verdict="mismatch"), row("m", "two", 2.0)]
    by = {found.device: found for found in make_matrix(rows, base="one")}
    assert by["two"].ratio is None
    assert "no base" in by["two"].remark
    assert "2 ±0% ×–" in "\n".join(drawn(list(by.values()), base="one"))


def test_inferences_per_watt_say_who_read_the_energy_and_that_sources_do_not_compare() -> None:
    one = cell(per_watt=3.0, joules=1 / 3, energy_source="rapl package")
    other = cell(device="lab", per_watt=2.0, joules=0.5, energy_source="csv wall")
    assert any("second per watt (rapl package)" in line for line in drawn([one]))
    both = " ".join(drawn([one, other]))
    assert "by csv wall, rapl package: compare only values of one source" in both


def test_runtimes_that_call_a_models_inputs_otherwise_stand_together() -> None:
    cells = [cell(), cell(unit="CPU (LiteRT)", shapes="args_0 1x3"), cell(unit="CPU (Torch)", shapes="x 1x5")]
    lines = [str(line) for line in matrix_lines(cells, "", 80)]
    assert [line for line in lines if line.startswith("m.onnx")] == ["m.onnx  1×3", "m.onnx  1×5"]
    assert sum("CPU (LiteRT)" in line for line in lines[:4]) == 1

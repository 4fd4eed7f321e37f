"""Where operators ran, as in a record: which fell back, what share of the time they took, and the sentence about it."""

from __future__ import annotations

from protocol.values.operators import OperatorUse
from protocol.values.record import RunFacts
from results.report.drawing import Box
from results.report.operators import operators_chart
from results.row.operators import NO_REASON, operator_uses
from scheduler.output.operators_table import operators_lines

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def ran(*operators: OperatorUse, own: str = CUDA) -> RunFacts:
    return RunFacts(
        unit="GPU (ONNX)", driver="onnx", runtime="r", providers=(own,), operators=operators or None
    )


MIXED = ran(
    OperatorUse(op="Conv", provider=CUDA, nodes=20, ran=20, ns=6_000_000, issued=True),
    OperatorUse(op="NonZero", provider=CPU, nodes=3, ran=3, ns=2_000_000, why="3 × no kernel"),
    OperatorUse(op="Loop", provider=CPU, nodes=1, ran=1, ns=0),
    OperatorUse(op="Relu", provider=CUDA, nodes=20),
)


def test_a_record_without_operators_tells_nothing() -> None:
    assert operator_uses(ran()) is None
    assert operator_uses(None) is None
    assert operators_chart(None) is None
    assert operators_lines("net on x", None) == ["net on x: its record does not say where its operators ran"]


def test_what_fell_back_is_marked_with_its_share_and_its_reason() -> None:
    uses = operator_uses(MIXED)
    assert uses is not None
    assert [(line.op, line.fell_back, line.share, line.why) for line in uses.lines] == [
        ("Conv", False, 0.75, ""),
        ("NonZero", True, 0.25, "3 × no kernel"),
        ("Loop", True, 0.0, NO_REASON),
        ("Relu", False, None, ""),
    ]
    assert uses.summary == (
        "20 of 24 operators ran on CUDA, 4 on CPU (25% of the host's time). Slowest to issue: Conv (75%), NonZero (25%)."
    )
    assert uses.issued


def test_without_times_operators_are_counted_by_the_graph() -> None:
    """Such as in CoreML's plan."""
    plan = ran(
        OperatorUse(op="conv", provider="NeuralEngine", nodes=9),
        OperatorUse(op="topk", provider="CPU", nodes=1),
        own="NeuralEngine",
    )
    uses = operator_uses(plan)
    assert uses is not None
    assert uses.summary == "9 of 10 operators ran on NeuralEngine, 1 on CPU."
    drawing = operators_chart(uses)
    assert drawing is not None
    assert [round(mark.width) for mark in drawing.marks if isinstance(mark, Box)] == [352, 38]


def test_the_bar_has_a_part_for_each_type_by_its_time() -> None:
    drawing = operators_chart(operator_uses(MIXED))
    assert drawing is not None
    parts = {mark.hint.split(":")[0]: mark for mark in drawing.marks if isinstance(mark, Box)}
    assert sorted(parts) == ["Conv", "NonZero"]  # an operator that took no time has no part
    assert abs(parts["Conv"].width / parts["NonZero"].width - 3) < 0.05
    assert parts["Conv"].tone != parts["NonZero"].tone
    assert "CPU: 2.000 ms, 25%, fell back" in drawing.description


def test_the_table_fits_80_columns_and_shows_all_that_fell_back() -> None:
    many = [
        OperatorUse(op=f"Operator{at}", provider=CUDA, nodes=1, ran=1, ns=1000 * (99 - at))
        for at in range(30)
    ]
    last = OperatorUse(op="Last" * 20, provider=CPU, nodes=1, ran=1, ns=1)
    lines = operators_lines("net.onnx on GPU (ONNX)", operator_uses(ran(*many, last)))
    table = [line for line in lines[1:] if not line.startswith("! LastLast")]
    assert max(map(len, table)) <= 80
    assert any(line.startswith("! Last") for line in lines)
    assert "  18 more types:" in "\n".join(lines)
    assert lines[-1].endswith(NO_REASON)

"""The ExecuTorch driver on any system: programs, sizes, refusals and the check are real; the runtime is a double."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import (
    CheckReport,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    OutOfMemory,
    OutputReport,
    ProgressReport,
    Unfit,
    Unshaped,
    WorkOrder,
    WrongUnit,
)
from drivers.executorch.driver import ExecuTorchDriver
from drivers.executorch.program import BOUNDED
from drivers.executorch.samples import SampleCall, SampleValue, chain, double, write
from drivers.executorch.units import CPU, library
from protocol.formats.model_files import ModelFormat, read_format
from tests.drivers.executorch.doubles import DoubledLibrary, doubled


def program(sizes: tuple[int, ...] = (1, 4), **changes: Any) -> bytes:
    """A program that computes y from x with one operator."""
    made = {"dynamism": 0, "type": 6, "call": SampleCall((0, 1, 2, 2)), "keywords": ("x",), **changes}
    x = SampleValue(sizes, dynamism=made["dynamism"], type=made["type"])
    weights = SampleValue(
        (4, 4), b"" if made.get("external") else bytes(64), external=made.get("external", "")
    )
    values = [x, weights, SampleValue(sizes, dynamism=made["dynamism"])]
    return write(values, [made["call"]], [0], [2], made.get("method", "forward"), made["keywords"])


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    def save(content: bytes) -> Path:
        path = tmp_path / "m.pte"
        path.write_bytes(content)
        return path

    return save


def run(model: Path, library: DoubledLibrary | None = None, unit: str = CPU, **changes: Any) -> list[Event]:
    order = WorkOrder(str(model), unit, **{"runs": 5, "loads": 1, "warmup": 2, **changes})
    return list(ExecuTorchDriver(doubled(library)).run(order))


def one(events: list[Event], kind: type[Any]) -> Any:
    return next(event for event in events if isinstance(event, kind))


def test_the_unit_is_offered_where_a_program_has_just_run() -> None:
    offered = ExecuTorchDriver(doubled()).units()
    assert [(info.unit, info.detail) for info in offered] == [(CPU, "XNNPACK, ExecuTorch kernels")]
    without = ExecuTorchDriver(doubled(DoubledLibrary(backends=()))).units()
    assert [info.detail for info in without] == ["ExecuTorch kernels"]
    assert ExecuTorchDriver(doubled(DoubledLibrary(gain=3))).units() == ()
    assert ExecuTorchDriver(doubled(DoubledLibrary(fails="error: 0x:23"))).units() == ()


def test_a_run_tells_its_whole_story(saved: Any) -> None:
    library = DoubledLibrary()
    events = run(saved(program()), library, threads=1)
    kinds = [type(event) for event in events if not isinstance(event, ProgressReport)]
    assert kinds == [LoadReport, OutputReport, ModelDescription, MeasureReport, CheckReport]
    described = one(events, ModelDescription)
    assert (described.unit, described.providers, described.threads) == (CPU, ("ExecuTorch kernels",), 1)
    assert (described.shapes, described.dtypes) == ({"x": (1, 4)}, {"x": "float"})
    assert [(each.op, each.provider, each.nodes) for each in described.operators] == [
        ("aten::mm.out", "ExecuTorch kernels", 1)
    ]
    assert len(one(events, MeasureReport).samples_ns) == 5
    assert library.loaded == [str(saved(program()))]
    assert library.threads == [4, 1]
    copied = [copied for _, copied in library.calls]
    assert copied[:7] == [False] * 7, (
        "the first inference, one more to warm up, and five timed take the outputs as they are"
    )
    assert set(copied[7:]) == {True}


def test_there_is_nothing_to_compare_with_unless_outputs_depend_on_what_memory_held(saved: Any) -> None:
    checked = one(run(saved(program())), CheckReport)
    assert checked.agrees is None
    assert "no other kernels for this program" in checked.note
    open_ = saved(program((2, 4), dynamism=BOUNDED))
    smaller = run(open_, DoubledLibrary(fixed=8), batch=1)
    checked = one(smaller, CheckReport)
    assert checked.agrees is False
    assert "depend on values left in memory" in checked.note
    assert "x 2×4 and does not say which axes are open" in checked.note
    assert one(run(open_, DoubledLibrary(fixed=8)), CheckReport).agrees is None


def test_a_program_with_a_state_is_not_compared(saved: Any) -> None:
    checked = one(run(saved(program()), DoubledLibrary(state=1.0)), CheckReport)
    assert (checked.agrees, "differently each time" in checked.note) == (None, True)
    copying = saved(program(call=SampleCall((0, 1, 2), "aten::copy_", "")))
    events = run(copying)
    assert "keeps a state" in one(events, CheckReport).note
    assert any("keeps a state" in note for note in one(events, ModelDescription).notes)


def test_open_inputs_have_their_largest_size_or_the_orders(saved: Any) -> None:
    model = saved(program((8, 4), dynamism=BOUNDED))
    largest = one(run(model), ModelDescription)
    assert largest.shapes == {"x": (8, 4)}
    assert "sizes: the program's largest (x 8×4); no others were given" in largest.notes
    for given in (
        {"batch": 3},
        {"dims": {"x[0]": 3}},
        {"shapes": {"x": (3, 4)}},
        {"batch": 3, "batch_dim": "x[0]"},
    ):
        described = one(run(model, **given), ModelDescription)
        assert described.shapes == {"x": (3, 4)}, given
        assert any(
            note.startswith("sizes: as given; the program takes up to x 8×4") for note in described.notes
        )


def test_sizes_that_the_program_cannot_have_are_refused_before_it_is_loaded(saved: Any) -> None:
    library = DoubledLibrary()
    with pytest.raises(Unshaped, match=r"x is 1×4: its axis 1 is 4, not 3"):
        run(saved(program()), library, shapes={"x": (1, 3)})
    with pytest.raises(Unshaped, match=r"the batch of the model is fixed and cannot be 2"):
        run(saved(program()), library, batch=2)
    model = saved(program((8, 4), dynamism=BOUNDED))
    with pytest.raises(
        Unshaped, match=r"x is 9×4, but the program takes at most 8×4: its axis 0 is at most 8"
    ):
        run(model, library, batch=9)
    with pytest.raises(
        Unshaped, match=r"no dynamic dimension 'batch'.*name an axis by its place, such as x\[0\]"
    ):
        run(model, library, dims={"batch": 2}, own_dims=("batch",))
    assert library.loaded == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"call": SampleCall((0, 2), backend="QnnBackend")},
            r"leaves parts of it to QnnBackend.*XnnpackPartitioner",
        ),
        ({"call": SampleCall((0, 2), backend="OpenvinoBackend")}, r"leaves parts of it to OpenvinoBackend"),
        (
            {"call": SampleCall((0, 2), "mine::op")},
            r"operators that this runtime lacks: mine::op\.out; export",
        ),
        ({"external": "net.weight"}, r"'net\.weight' are in another file \(\.ptd\): export"),
        ({"type": 8}, r"input 'x' is of ExecuTorch's type 8, which cannot be generated"),
    ],
)
def test_what_this_runtime_cannot_run_is_refused_with_what_to_do(saved: Any, changes: Any, told: str) -> None:
    library = DoubledLibrary()
    with pytest.raises(Unfit, match=told):
        run(saved(program(**changes)), library)
    assert library.loaded == []


def test_parts_of_xnnpack_are_named(saved: Any) -> None:
    model = saved(program(call=SampleCall((0, 2), backend="XnnpackBackend")))
    described = one(run(model), ModelDescription)
    assert described.providers == ("XNNPACK",)
    assert [(each.op, each.provider) for each in described.operators] == [("XnnpackBackend", "XNNPACK")]
    assert "parts of the program on XNNPACK: 1; operators on ExecuTorch kernels: 0" in described.notes
    with pytest.raises(Unfit, match="export it without a partitioner"):
        run(model, DoubledLibrary(backends=()))


def test_other_units_formats_and_errors_of_the_runtime_are_refused(saved: Any, tmp_path: Path) -> None:
    with pytest.raises(WrongUnit, match=r"unknown unit 'GPU \(ExecuTorch\)'"):
        run(saved(program()), unit="GPU (ExecuTorch)")
    other = tmp_path / "m.onnx"
    other.write_bytes(b"\x08\x07" * 64)
    with pytest.raises(Unfit, match=r"runs \.pte programs; this is not one \(other file\)"):
        run(other)
    with pytest.raises(Unfit, match="there is no such file"):
        run(tmp_path / "missing.pte")
    failing = DoubledLibrary(fails="Failed to load program,\n error: 0x:23")
    with pytest.raises(
        Unfit, match=r"^ExecuTorch: Failed to load program, error: 0x:23 \(the program is broken\)$"
    ):
        run(saved(program()), failing)
    with pytest.raises(OutOfMemory, match="no memory"):
        run(saved(program()), DoubledLibrary(fails="load_method('forward') failed with error 0x21"))


def test_the_samples_are_executorch_programs(tmp_path: Path) -> None:
    for number, content in enumerate((double(), chain(192, 4))):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(content)
        assert read_format(path) is ModelFormat.EXECUTORCH
    assert [one.name for one in ExecuTorchDriver(doubled()).samples()] == ["tiny.pte", "chain.pte"]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("1.4.0", "_portable_lib"),
        ("1.5.0", "_C"),
        ("1.5.1", "_C"),
        ("1.10.0", "_C"),
        ("2.0.0", "_C"),
        ("", "_C"),
    ],
)
def test_the_runtime_is_imported_by_the_name_that_it_has_in_its_version(version: str, name: str) -> None:
    assert library(version) == f"executorch.extension.pybindings.{name}"

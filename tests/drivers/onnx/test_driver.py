"""The ONNX driver with generated, real and malicious models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper

from drivers.contract.base import (
    MIB,
    CheckReport,
    Crashed,
    DriverError,
    Limits,
    LoadKind,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    TimedOut,
    Unfit,
    Unshaped,
    WorkOrder,
)
from drivers.contract.hardware import logical_cpus
from drivers.inputs.synthetic import Input, make
from drivers.launch.launch import Zygote, measure
from drivers.onnx.session import TINY_MODEL, provider_for, verify_provider
from drivers.onnx.units import CPU
from drivers.testing.conformance import Subject, check_all
from tests.drivers.onnx_models import (
    BOOL,
    DOUBLE,
    FLOAT,
    FLOAT16,
    INT32,
    INT64,
    STRING,
    OnnxModels,
    node,
    value,
)

UNIT = "CPU (ONNX)"
LIMITS = Limits(load_s=30, run_s=60)


class Row:
    """The events of one order."""

    def __init__(self, events: list[Any]) -> None:
        self.loads = [
            event for event in events if isinstance(event, LoadReport) and event.kind is not LoadKind.WARM
        ]
        (self.described,) = [event for event in events if isinstance(event, ModelDescription)]
        (self.measured,) = [event for event in events if isinstance(event, MeasureReport)]
        (self.checked,) = [event for event in events if isinstance(event, CheckReport)]


def run(zygote: Zygote, model: str, limits: Limits = LIMITS, **order: Any) -> Row:
    """Run one order on the CPU: one launch of three runs, unless the order says otherwise."""
    result: dict[str, Any] = {"runs": 3, "loads": 1, "warmup": 1, "threads": 1} | order
    return Row(list(measure(WorkOrder(model, UNIT, **result), limits, zygote)))


def test_the_onnx_driver_keeps_the_contract(models: OnnxModels) -> None:
    check_all(Subject("onnx", UNIT, models.nano()))


def test_samples_are_as_many_as_runs_and_the_warm_up_is_apart(zygote: Zygote, models: OnnxModels) -> None:
    row = run(zygote, models.nano(), runs=137, warmup=9)
    assert len(row.measured.samples_ns) == 137
    assert len(row.measured.warmup_ns) == 9
    assert min(row.measured.samples_ns) > 0
    assert sum(row.measured.samples_ns) <= row.measured.wall_s * 1e9
    assert row.measured.timer_overhead_ns > 0


def test_left_to_itself_the_warm_up_has_a_floor_and_says_how_it_ended(
    zygote: Zygote, models: OnnxModels
) -> None:
    row = run(zygote, models.nano(), warmup=None)
    assert len(row.measured.warmup_ns) >= 5
    assert any(note.startswith("warm-up: ") for note in row.described.notes)


def test_a_row_tells_what_really_ran(zygote: Zygote, models: OnnxModels) -> None:
    row = run(zygote, models.nano(), threads=2, seed=7)
    described = row.described
    assert described.providers == (CPU,)
    assert described.runtime.startswith("onnxruntime 1.")
    assert (described.unit, described.driver, described.threads, described.seed) == (UNIT, "onnx", 2, 7)
    assert (described.shapes, described.dtypes) == ({"x": (1, 8)}, {"x": "float"})


def test_memory_is_measured_phase_by_phase(zygote: Zygote, models: OnnxModels) -> None:
    weight = helper.make_tensor("size", INT64, [1], [32 * MIB // 4])
    nodes = [
        node("ConstantOfShape", ["n"], ["big"]),
        node("ReduceSum", ["big"], ["sum"], keepdims=0),
        node("Add", ["sum", "x"], ["y"]),
    ]
    nodes.insert(0, node("Mul", ["size", "mask"], ["n"]))
    inputs = [value("x", FLOAT, [1]), value("mask", INT64, [1])]
    model = models.put("spike", nodes, inputs, [value("y", FLOAT, [1])], weight)
    (load,) = (row := run(zygote, model)).loads
    assert load.baseline_bytes is not None
    assert load.peak_bytes is not None
    assert row.measured.peak_bytes is not None
    assert load.baseline_bytes <= load.peak_bytes < load.baseline_bytes + 30 * MIB
    assert row.measured.peak_bytes < load.peak_bytes + 200 * MIB


def test_memory_that_only_failed_integers_took_is_in_no_figure(zygote: Zygote, models: OnnxModels) -> None:
    """The first generated integers are too large for the table, and fail after taking a megabyte each."""
    each = helper.make_tensor("each", INT64, [1], [250_000])
    table = helper.make_tensor("table", FLOAT, [10], [1.0] * 10)
    nodes = [
        node("Mul", ["n", "each"], ["size"]),
        node("ConstantOfShape", ["size"], ["wide"]),
        node("ReduceSum", ["wide"], ["sum"], keepdims=0),
        node("Abs", ["n"], ["row"]),
        node("Gather", ["table", "row"], ["found"]),
        node("Add", ["found", "sum"], ["y"]),
    ]
    model = models.put("guesses", nodes, [value("n", INT64, [1])], [value("y", FLOAT, None)], each, table)
    seed = next(seed for seed in range(100) if make(Input("n", "int64", (1,)), (1,), seed, 100)[0] > 80)
    row = run(zygote, model, seed=seed)
    assert "generated integers are below 10" in row.described.notes
    (load,) = row.loads
    assert load.baseline_bytes is not None
    assert row.measured.peak_bytes is not None
    assert row.measured.peak_bytes - load.baseline_bytes < 50 * MIB


def test_more_threads_than_the_device_runs_are_not_taken_and_the_row_says_so(
    zygote: Zygote, models: OnnxModels
) -> None:
    described = run(zygote, models.nano(), threads=8192).described
    assert described.threads == logical_cpus()
    assert f"threads: 8192 requested, this device runs {described.threads} at once" in described.notes


def test_threads_do_not_buy_memory(zygote: Zygote, models: OnnxModels) -> None:
    with pytest.raises(Crashed, match="out of memory"):
        run(zygote, models.greedy(), Limits(load_s=30, run_s=30, memory_bytes=256 * MIB), threads=8192)


@pytest.mark.parametrize("what", ["long", "many", "odd"])
def test_names_that_nobody_can_show_are_the_models_fault(
    zygote: Zygote, models: OnnxModels, what: str
) -> None:
    names = {"long": ["i" * 3000], "many": [f"a{n}" for n in range(5000)], "odd": ["qqqq"]}[what]
    model = models.put(
        f"names-{what}",
        [node("Sum", names, ["y"])],
        [value(n, FLOAT, [1]) for n in names],
        [value("y", FLOAT, [1])],
    )
    if what == "odd":
        Path(model).write_bytes(Path(model).read_bytes().replace(b"qqqq", b"q\xff\xfeq"))
    with pytest.raises(Unfit, match="the model has"):
        run(zygote, model)


def test_the_same_seed_gives_the_same_answer_and_another_another(zygote: Zygote, models: OnnxModels) -> None:
    first, again, other = (run(zygote, models.nano(), seed=seed).checked.output_sha256 for seed in (1, 1, 2))
    assert first == again != other


def test_token_ids_stay_within_their_table_and_masks_are_one(zygote: Zygote, models: OnnxModels) -> None:
    described = run(zygote, models.embedding(), dims={"sequence": 12}).described
    assert described.shapes == {"input_ids": (1, 12), "attention_mask": (1, 12)}
    assert "ids of 'input_ids' are below 10, the number of rows of their table" in described.notes


def test_a_scalar_a_state_and_a_signal_run_together(zygote: Zygote, models: OnnxModels) -> None:
    row = run(zygote, models.speech())
    assert row.described.shapes == {"input": (1, 576), "state": (2, 1, 128), "sr": ()}
    assert row.checked.agrees


def test_a_size_that_is_not_given_is_asked_for_and_never_guessed(zygote: Zygote, models: OnnxModels) -> None:
    weights = helper.make_tensor("w", FLOAT, [48, 2], [0.1] * 96)
    model = models.put(
        "features",
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", FLOAT, ["batch", "features"])],
        [value("y", FLOAT, None)],
        weights,
        metadata={"features": "48"},
    )
    with pytest.raises(
        Unshaped, match="input x is batch×features: give the sizes; such as --shape 'x=1,128'"
    ):
        run(zygote, model)
    assert run(zygote, model, shapes={"x": (3, 48)}).described.shapes == {"x": (3, 48)}
    assert run(zygote, model, dims={"features": 48, "of_another": 7}).described.shapes == {"x": (1, 48)}
    with pytest.raises(
        Unshaped, match="no dynamic dimension 'feature': x is batch×features; did you mean features"
    ):
        run(zygote, model, dims={"features": 48, "feature": 7}, own_dims=("feature",))
    with pytest.raises(Unfit, match="MatMul"):
        run(zygote, model, dims={"features": 47})


def test_the_batch_is_laid_on_the_inputs_and_stands_in_the_row(zygote: Zygote, models: OnnxModels) -> None:
    described = run(zygote, models.embedding(), batch=4, dims={"sequence": 6}).described
    assert described.batch == 4
    assert set(described.shapes.values()) == {(4, 6)}
    with pytest.raises(Unshaped, match=r"cannot be 4 .x begins with 1"):
        run(zygote, models.nano(), batch=4)


def test_a_shape_that_is_fixed_inside_fails_with_the_batch_in_words(
    zygote: Zygote, models: OnnxModels
) -> None:
    model = models.put(
        "inside",
        [node("Constant", [], ["to"], value_ints=[1, 8]), node("Reshape", ["x", "to"], ["y"])],
        [value("x", FLOAT, ["batch", 8])],
        [value("y", FLOAT, [1, 8])],
    )
    assert run(zygote, model, batch=1).described.shapes == {"x": (1, 8)}
    with pytest.raises(Unshaped, match=r"it failed with x 3×8: .*; if these sizes are wrong, give ones that"):
        run(zygote, model, batch=3)


NARROW = ("INT8", "UINT8", "INT16", "UINT16", "UINT32", "UINT64", "BFLOAT16", "FLOAT8E4M3FN")
DTYPES = [
    FLOAT,
    FLOAT16,
    DOUBLE,
    INT32,
    INT64,
    BOOL,
    STRING,
    *(getattr(TensorProto, name) for name in NARROW),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda number: TensorProto.DataType.Name(number).lower())
def test_every_element_type_runs(zygote: Zygote, models: OnnxModels, dtype: int) -> None:
    name = f"identity{dtype}"
    model = models.put(
        name, [node("Identity", ["x"], ["y"])], [value("x", dtype, [2, 3])], [value("y", dtype, [2, 3])]
    )
    if dtype == TensorProto.FLOAT8E4M3FN:  # came with opset 19
        graph = helper.make_graph(
            [node("Cast", ["x"], ["y"], to=FLOAT)], "g", [value("x", dtype, [4])], [value("y", FLOAT, [4])]
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
        made.ir_version = 9
        Path(model).write_bytes(made.SerializeToString())
    assert run(zygote, model).checked.agrees


def test_output_shapes_that_depend_on_values_run(zygote: Zygote, models: OnnxModels) -> None:
    nodes = [
        node("RandomUniformLike", ["x"], ["r"]),
        node("Round", ["r"], ["bits"]),
        node("NonZero", ["bits"], ["y"]),
    ]
    model = models.put("nonzero", nodes, [value("x", FLOAT, [1_000_000])], [value("y", INT64, None)])
    row = run(zygote, model)
    assert any("output shapes change" in note for note in row.described.notes)
    assert row.checked.agrees is None
    assert "differently each time" in row.checked.note


def test_a_scalar_output_runs(zygote: Zygote, models: OnnxModels) -> None:
    model = models.put(
        "scalar",
        [node("ReduceSum", ["x"], ["y"], keepdims=0)],
        [value("x", FLOAT, [8])],
        [value("y", FLOAT, [])],
    )
    assert run(zygote, model).checked.agrees


def test_a_sequence_of_maps_as_output_runs_and_is_compared(zygote: Zygote, models: OnnxModels) -> None:
    zipped = node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[1, 2, 3])
    kind = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    output = helper.make_value_info("y", helper.make_sequence_type_proto(kind))
    row = run(
        zygote, models.put("zipmap", [zipped], [value("x", FLOAT, [1, 3])], [output], domains=["ai.onnx.ml"])
    )
    assert row.checked.agrees
    assert any("cannot be bound" in note for note in row.described.notes)


def test_an_answer_that_is_not_a_number_anywhere_fails_the_check(zygote: Zygote, models: OnnxModels) -> None:
    nodes = [node("Sub", ["x", "x"], ["zero"]), node("Div", ["zero", "zero"], ["y"])]
    row = run(zygote, models.put("nan", nodes, [value("x", FLOAT, [4])], [value("y", FLOAT, [4])]))
    assert row.checked.agrees is False
    assert "contains only NaN or infinite values" in row.checked.note


def test_no_check_is_made_when_none_is_asked_for(zygote: Zygote, models: OnnxModels) -> None:
    checked = run(zygote, models.nano(), check=False).checked
    assert (checked.agrees, checked.note) == (None, "not asked for")
    assert len(checked.output_sha256) == 64


def test_a_sequence_as_input_is_refused_by_name(zygote: Zygote, models: OnnxModels) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    model = models.put(
        "sequence",
        [node("SequenceLength", ["s"], ["y"])],
        [helper.make_value_info("s", kind)],
        [value("y", INT64, [])],
    )
    with pytest.raises(Unfit, match=r"input 's' is of type seq\(tensor\(float\)\)"):
        run(zygote, model)


@pytest.mark.parametrize("unit", ["GPU (ONNX)", "DirectML (ONNX)"])
def test_a_unit_that_is_not_here_is_never_taken_over_by_the_cpu(
    zygote: Zygote, models: OnnxModels, unit: str
) -> None:
    with pytest.raises(Unfit, match=r"asked for .* has only .*CPUExecutionProvider"):
        list(measure(WorkOrder(models.nano(), unit, 1, 1), LIMITS, zygote))


def test_a_session_that_fell_back_is_refused() -> None:
    with pytest.raises(Unfit, match=r"asked for GPU \(ONNX\), session runs on CPUExecutionProvider"):
        verify_provider("GPU (ONNX)", "CUDAExecutionProvider", [CPU])
    verify_provider(UNIT, CPU, [CPU])


def test_a_units_provider_is_the_first_that_this_runtime_has() -> None:
    assert provider_for("GPU (ONNX)", ["MIGraphXExecutionProvider", CPU]) == "MIGraphXExecutionProvider"
    with pytest.raises(Unfit, match="unknown unit 'GPU'"):
        provider_for("GPU", [CPU])


def test_the_one_line_model_is_what_it_says() -> None:
    import onnx

    made = onnx.load_model_from_string(TINY_MODEL)
    onnx.checker.check_model(made)
    assert [one.op_type for one in made.graph.node] == ["Add"]


def test_a_loop_without_end_is_timed_out(zygote: Zygote, models: OnnxModels) -> None:
    with pytest.raises(TimedOut, match="still running"):
        run(zygote, models.endless(), Limits(load_s=30, run_s=0.5))


def test_a_hundred_bytes_that_want_sixteen_gibibytes_are_out_of_memory(
    zygote: Zygote, models: OnnxModels
) -> None:
    with pytest.raises(Crashed, match="out of memory"):
        run(zygote, models.greedy(), Limits(load_s=30, run_s=30, memory_bytes=1024 * MIB))


def test_a_custom_operator_is_refused_by_name(zygote: Zygote, models: OnnxModels) -> None:
    with pytest.raises(Unfit, match=r"com\.acme:Thing.* never loaded"):
        run(zygote, models.custom())


@pytest.mark.parametrize(
    "location", ["weights.bin", "../weights.bin", "absolute", "model.onnx/../weights.bin"]
)
def test_weights_outside_the_file_are_never_read(zygote: Zygote, models: OnnxModels, location: str) -> None:
    weights = models.folder / "weights.bin"
    weights.write_bytes(np.ones(4, np.float32).tobytes())
    with pytest.raises(Unfit, match=r"weights in another file|SystemError : 20"):
        run(zygote, models.external(str(weights) if location == "absolute" else location))


def test_a_model_cut_short_is_refused_at_every_length(
    zygote: Zygote, magika_model: str, tmp_path: Path
) -> None:
    whole = Path(magika_model).read_bytes()
    for length in (0, 1, 1000, len(whole) // 2, len(whole) - 1):
        cut = tmp_path / "cut.onnx"
        cut.write_bytes(whole[:length])
        with pytest.raises(Unfit, match=r"corrupt or cut short|onnxruntime: "):
            run(zygote, str(cut))


def test_bytes_turned_over_end_in_an_error_of_ours_or_a_row(
    zygote: Zygote, models: OnnxModels, tmp_path: Path
) -> None:
    whole = Path(models.embedding()).read_bytes()
    for index in range(0, len(whole), 37):
        broken = tmp_path / "broken.onnx"
        broken.write_bytes(whole[:index] + bytes([whole[index] ^ 0xFF]) + whole[index + 1 :])
        try:
            run(zygote, str(broken), Limits(load_s=10, run_s=10))
        except DriverError as why:
            assert str(why)  # noqa: PT017 – either end is fine, silence is not


def test_a_real_classifier_runs_and_agrees(zygote: Zygote, magika_model: str) -> None:
    row = run(zygote, magika_model, loads=2)
    assert len(row.loads) == 2
    assert row.described.shapes == {"bytes": (1, 2048)}
    assert row.checked.agrees
    assert row.checked.max_error is not None
    assert row.checked.max_error < 1e-3


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet"])
def test_a_full_size_graph_runs(zygote: Zygote, light_models: Path, name: str) -> None:
    row = run(zygote, str(light_models / f"{name}.onnx"), runs=2)
    assert next(iter(row.described.shapes.values())) == (1, 3, 224, 224)
    assert row.checked.agrees


def test_nothing_is_left_of_all_that(zygote: Zygote) -> None:
    for pid in zygote.pids:
        _, alive = psutil.wait_procs(psutil.Process(pid).children(recursive=True), timeout=2)
        assert alive == []
        assert psutil.Process(pid).num_threads() == 1


def test_progress_never_runs_ahead(zygote: Zygote, models: OnnxModels) -> None:
    events = list(measure(WorkOrder(models.nano(), UNIT, 50, 1), LIMITS, zygote))
    lines = [event for event in events if isinstance(event, ProgressReport) and event.total is not None]
    assert all(event.done <= event.total for event in lines if event.total is not None)


def folder_model(models: OnnxModels, folder: Path, location: str = "weights.bin") -> Path:
    """A model with its weights in a second file."""
    folder.mkdir()
    Path(models.external(location)).replace(folder / "model.onnx")
    (folder / "weights.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    return folder


def test_a_folder_with_its_weights_beside_the_model_runs(
    zygote: Zygote, models: OnnxModels, tmp_path: Path
) -> None:
    row = run(zygote, str(folder_model(models, tmp_path / "folder")))
    assert row.checked.agrees is True
    assert row.described.shapes == {"x": (4,)}


def test_weights_outside_the_folder_are_not_read(zygote: Zygote, models: OnnxModels, tmp_path: Path) -> None:
    folder = folder_model(models, tmp_path / "folder", "../secret.bin")
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    with pytest.raises(Unfit):
        run(zygote, str(folder))


def test_a_folder_with_a_link_or_without_a_model_is_refused(
    zygote: Zygote, models: OnnxModels, tmp_path: Path
) -> None:
    folder = folder_model(models, tmp_path / "folder")
    (folder / "more.bin").symlink_to("/etc/passwd")
    with pytest.raises(Unfit, match=r"holds 'more\.bin', which is not a regular file"):
        run(zygote, str(folder))
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unfit, match=r"a folder with 0 \.onnx files"):
        run(zygote, str(tmp_path / "empty"))

"""The native loop: built once, verified before use, identified by its sources, and trusted only where nobody else can write."""

from __future__ import annotations

import importlib
import shutil
from array import array
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from drivers.contract.base import Limits, MeasureReport, ModelDescription, WorkOrder
from drivers.contract.boot import VARIABLE, clean_environment
from drivers.launch.launch import Zygote, measure
from drivers.native import library as native
from drivers.native.loop import BoundSession, bytes_of
from drivers.native.ort_api import InvalidProtobuf, NativeError, Runtime
from tests.drivers.onnx_models import FLOAT, INT64, OnnxModels, node, value


def no_compiler(name: str) -> None:
    """A device without a compiler."""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    """The best runtime that this device can build."""
    made = native.prepare(tmp_path_factory.mktemp("native") / "cache")
    assert made is not None
    runtime = Runtime(made.library, made.loop)
    runtime.start()
    return runtime


@pytest.fixture(scope="module", params=["best", "ctypes"])
def either(request: pytest.FixtureRequest, runtime: Runtime) -> Runtime:
    """The runtime with the compiled loop, if there is a compiler, and without it."""
    library = native.library()
    assert library is not None
    return runtime if request.param == "best" else Runtime(library, None)


def inference(runtime: Runtime, model: str) -> BoundSession:
    """An inference of a model with 8 inputs."""
    return BoundSession(runtime.open(model, 1), {"x": ("float", (1, 8), np.ones((1, 8), np.float32))})


def test_what_was_prepared_is_found_and_not_made_again(tmp_path: Path) -> None:
    made = native.prepare(tmp_path / "native")
    assert made is not None
    assert (made.loop is not None) == (native.compiler() is not None)
    before = {path: path.stat().st_ino for path in (tmp_path / "native").iterdir()}
    assert native.prepare(tmp_path / "native") == native.find(tmp_path / "native") == made
    assert {path: path.stat().st_ino for path in (tmp_path / "native").iterdir()} == before


def test_without_a_compiler_the_calls_alone_are_proved(tmp_path: Path) -> None:
    made = native.prepare(tmp_path / "native", no_compiler)
    assert made is not None
    assert made.loop is None


def test_a_compiler_that_fails_costs_no_more_than_the_loop(tmp_path: Path) -> None:
    made = native.prepare(tmp_path / "native", lambda name: shutil.which("false"))
    assert made is not None
    assert made.loop is None


def test_nothing_is_found_where_nothing_was_prepared(tmp_path: Path) -> None:
    assert native.find(tmp_path / "native") is None


def test_what_others_could_have_written_is_not_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "native"
    assert native.prepare(folder, no_compiler) is not None
    folder.chmod(0o777)
    assert native.find(folder, no_compiler) is None
    folder.chmod(0o700)
    (proof,) = folder.glob("*.proved")
    proof.chmod(0o666)
    assert native.find(folder, no_compiler) is None


def test_where_others_may_write_nothing_is_compiled_or_run(tmp_path: Path) -> None:
    folder = tmp_path / "native"
    folder.mkdir()
    folder.chmod(0o777)
    assert native.prepare(folder, no_compiler) is None
    assert list(folder.iterdir()) == []


def test_a_loop_that_failed_its_proof_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "native"
    assert native.prepare(folder, no_compiler) is not None
    (proof,) = folder.glob("*.proved")
    proof.chmod(0o600)
    proof.write_text(native.NOTHING)
    assert native.find(folder, no_compiler) is None
    assert native.prepare(folder, no_compiler) is None


def test_the_version_is_that_of_the_files_whichever_distribution_wrote_them(tmp_path: Path) -> None:
    """For example where onnxruntime-gpu was installed over onnxruntime."""
    runtime = tmp_path / "libonnxruntime.so.1"
    runtime.write_bytes(b"")
    assert native.version_of(runtime) == ""
    unknown = native.key(runtime, None)
    told = tmp_path / "build_and_package_info.py"
    told.write_text("package_name = 'onnxruntime-gpu'\n__version__ = '1.24.1+cu13'\ncuda_version = '13.0'\n")
    assert native.version_of(runtime) == "1.24.1"
    assert native.key(runtime, None) != unknown, "what was proved for another version is proved again"
    installed = native.library()
    assert installed is not None
    assert native.version_of(installed) == importlib.import_module("onnxruntime").__version__


def test_children_get_the_path_of_the_library() -> None:
    assert clean_environment({"HOME": "/home/ann"})[VARIABLE].startswith("/home/ann")
    assert clean_environment({"HOME": "/home/ann", VARIABLE: "/x"})[VARIABLE] == "/x"


def test_every_sample_is_filled_and_no_other(either: Runtime, models: OnnxModels) -> None:
    bound = inference(either, models.nano())
    bound.run()
    samples = array("q", [-1] * 30)
    bound.time(samples, 10, 20, 1)
    bound.time(samples, 20, 25, 50)
    assert list(samples[:10]) == [-1] * 10
    assert all(0 < sample < 10**9 for sample in samples[10:25])
    assert list(samples[25:]) == [-1] * 5
    assert 0 <= bound.overhead_ns() < 10**6


def test_outputs_are_those_of_the_package(either: Runtime, models: OnnxModels) -> None:
    bound = inference(either, models.nano())
    bound.run()
    ((element, shape, held),) = bound.outputs()
    assert (element, shape) == ("float", (1, 8))
    assert np.allclose(np.frombuffer(held, np.float32), 0.8)


def test_an_error_inside_the_loop_is_raised_and_ends_it(either: Runtime, models: OnnxModels) -> None:
    session = either.open(models.nano(), 1)
    bound = BoundSession(session, {"x": ("float", (1, 9), np.ones((1, 9), np.float32))})
    samples = array("q", [-1] * 5)
    with pytest.raises(NativeError, match="invalid dimensions"):
        bound.time(samples, 0, 5, 1)
    assert samples[4] == -1


def test_a_session_describes_its_model(runtime: Runtime, models: OnnxModels) -> None:
    model = models.put(
        "described",
        [node("Relu", ["x"], ["y"])],
        [value("x", FLOAT, ["batch", None, 3])],
        [value("y", FLOAT, None)],
        metadata={"batch": "2", "käse": "ja"},
    )
    session = runtime.open(model, 1)
    (taken,) = session.get_inputs()
    assert (taken.name, taken.type, taken.shape) == ("x", "tensor(float)", ("batch", None, 3))
    assert session.get_modelmeta().custom_metadata_map == {"batch": "2", "käse": "ja"}
    assert session.plain
    assert session.load_ns > 0


def test_errors_keep_their_kind_and_words(runtime: Runtime, tmp_path: Path) -> None:
    (rubbish := tmp_path / "rubbish.onnx").write_bytes(b"rubbish")
    with pytest.raises(InvalidProtobuf):
        runtime.open(str(rubbish), 1)
    with pytest.raises(NativeError, match=r"nowhere\.onnx"):
        runtime.open(str(tmp_path / "nowhere.onnx"), 1)


def test_outputs_whose_shape_changes_are_allocated_anew(either: Runtime, models: OnnxModels) -> None:
    bound = inference(either, models.nano())
    bound.run()
    bound.allocate_each_time()
    bound.time(array("q", bytes(80)), 0, 10, 3)
    assert bound.outputs()[0][1] == (1, 8)


@pytest.mark.parametrize(
    ("element", "shape", "size"),
    [("float", (), 4), ("int4", (3,), 2), ("bool", (2, 3), 6), ("int64", (0, 9), 0)],
)
def test_tensors_take_as_much_as_they_take(element: str, shape: tuple[int, ...], size: int) -> None:
    assert bytes_of(element, shape) == size


def test_the_row_says_which_loop_ran(zygote: Zygote, models: OnnxModels) -> None:
    order = WorkOrder(models.nano(), "CPU (ONNX)", runs=3, loads=1, warmup=1, threads=1)
    events = list(measure(order, Limits(), zygote))
    (result,) = [event for event in events if isinstance(event, ModelDescription)]
    by = "compiled" if native.compiler() else "ctypes"
    assert any(note.startswith(f"timed by the C interface, loop: {by}") for note in result.notes)


@pytest.mark.parametrize("odds", [0.5, 0.9995], ids=["at once", "later, while it is timed"])
def test_shapes_that_change_from_run_to_run_do_not_stop_it(
    zygote: Zygote, models: OnnxModels, odds: float
) -> None:
    model = models.put(
        "dice",
        [
            node("RandomUniformLike", ["x"], ["noise"]),
            node("Greater", ["noise", "half"], ["over"]),
            node("NonZero", ["over"], ["y"]),
        ],
        [value("x", FLOAT, [64])],
        [value("y", INT64, None)],
        helper.make_tensor("half", FLOAT, [], [odds]),
    )
    order = WorkOrder(model, "CPU (ONNX)", runs=400, loads=1, warmup=2, threads=1)
    events = list(measure(order, Limits(), zygote))
    (result,) = [event for event in events if isinstance(event, ModelDescription)]
    (measured,) = [event for event in events if isinstance(event, MeasureReport)]
    assert any("output shapes change" in note for note in result.notes)
    assert len(measured.samples_ns) == 400

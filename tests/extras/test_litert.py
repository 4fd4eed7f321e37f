"""The LiteRT driver with the real runtime, through the child processes that a node uses. Most models are generated; one is in common
use: a quantised model with state, from pymicro-wakeword's package."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import (
    CheckReport,
    Crashed,
    DriverError,
    Event,
    Limits,
    LoadKind,
    LoadReport,
    MeasureReport,
    ModelDescription,
    Unfit,
    Unshaped,
    WorkOrder,
    WrongUnit,
)
from drivers.launch.launch import Zygote, measure
from drivers.litert.samples import SampleOperator, SampleTensor, perceptron, write
from drivers.testing.conformance import Subject, check_all

CPU = "CPU (LiteRT)"
LIMITS = Limits(load_s=60, run_s=60)
INT32, INT8 = 2, 9
GATHER, GATHER_OPTIONS = 36, 23


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("litert").start() as started:
        yield started


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def dynamic() -> bytes:
    """A matrix product with a dynamic batch."""
    tensors = [
        SampleTensor("x", (1, 8), signature=(-1, 8)),
        SampleTensor("w", (4, 8), floats(*(at / 32 for at in range(32)))),
        SampleTensor("y", (1, 4), signature=(-1, 4)),
    ]
    return write(tensors, [SampleOperator((0, 1, -1), (2,))], [0], [2], signed=True)


def quantised() -> bytes:
    """A matrix product in int8."""
    weights = bytes((at * 37) % 256 for at in range(32 * 64))
    tensors = [
        SampleTensor("x", (1, 64), type=INT8, scale=(0.05, -3)),
        SampleTensor("w", (32, 64), weights, type=INT8, scale=(0.01, 0)),
        SampleTensor("y", (1, 32), type=INT8, scale=(0.5, 10)),
    ]
    return write(tensors, [SampleOperator((0, 1, -1), (2,))], [0], [2], signed=True)


def table(rows: int) -> bytes:
    """A lookup of rows by number, which XNNPACK does not run."""
    tensors = [
        SampleTensor("w", (rows, 4), floats(*(at / 8 for at in range(rows * 4)))),
        SampleTensor("ids", (16,), type=INT32),
        SampleTensor("y", (16, 4)),
    ]
    return write(tensors, [SampleOperator((0, 1), (2,), GATHER, GATHER_OPTIONS)], [1], [2])


def custom() -> bytes:
    tensors = [SampleTensor("x", (1, 4)), SampleTensor("y", (1, 4))]
    return write(tensors, [SampleOperator((0,), (1,), options=0, custom="MyOwn")], [0], [1])


def huge() -> bytes:
    """A model that declares an input of 16 TiB."""
    tensors = [
        SampleTensor("x", (1 << 21, 1 << 21)),
        SampleTensor("w", (1, 1), floats(1.0)),
        SampleTensor("y", (1, 1)),
    ]
    return write(tensors, [SampleOperator((0, 1, -1), (2,))], [0], [2])


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    def save(content: bytes) -> Path:
        tmp_path.chmod(0o755)  # a node of root runs models as nobody
        path = tmp_path / "m.tflite"
        path.write_bytes(content)
        path.chmod(0o644)
        return path

    return save


def run(model: Path, zygote: Zygote, **changes: Any) -> list[Event]:
    order = replace(WorkOrder(str(model), CPU, runs=8, loads=2, warmup=2, threads=1), **changes)
    return list(measure(order, LIMITS, zygote))


def one(events: list[Event], kind: type[Any]) -> Any:
    return next(event for event in events if isinstance(event, kind))


def test_the_driver_keeps_its_contract(saved: Any) -> None:
    check_all(Subject("litert", unit=CPU, model=str(saved(perceptron(64, 2)))))


def test_a_chain_runs_on_xnnpack_with_the_threads_that_were_asked_for(saved: Any, zygote: Zygote) -> None:
    model = saved(perceptron(64, 3))
    for threads in (1, 2):
        events = run(model, zygote, threads=threads)
        described = one(events, ModelDescription)
        assert (described.unit, described.providers, described.threads) == (CPU, ("XNNPACK",), threads)
        assert [(op.op, op.nodes) for op in described.operators] == [("FULLY_CONNECTED", 3)]
        assert one(events, CheckReport).agrees is True
        assert LoadKind.WARM in {each.kind for each in events if isinstance(each, LoadReport)}
        assert sum(len(each.samples_ns) for each in events if isinstance(each, MeasureReport)) == 8


def test_an_open_batch_is_that_of_the_order(saved: Any, zygote: Zygote) -> None:
    model = saved(dynamic())
    assert one(run(model, zygote, batch=5), ModelDescription).shapes == {"x": (5, 8)}
    assert one(run(model, zygote, dims={"x[0]": 3}), ModelDescription).shapes == {"x": (3, 8)}
    checked = one(run(model, zygote, shapes={"x": (64, 8)}), CheckReport)
    assert checked.agrees is True
    assert "256 values" in checked.compared
    with pytest.raises(Unshaped, match="its axis 1 is 8, not 9"):
        run(model, zygote, shapes={"x": (1, 9)})


def test_quantised_inputs_are_bytes_and_outputs_are_compared_by_what_they_stand_for(
    saved: Any, zygote: Zygote
) -> None:
    events = run(saved(quantised()), zygote)
    described, checked = one(events, ModelDescription), one(events, CheckReport)
    assert described.dtypes == {"x": "int8"}
    assert any("int8 in steps of 0.5" in note for note in described.notes)
    assert checked.agrees is True
    assert checked.note == ""


@pytest.mark.parametrize("rows", [50, 5000])
def test_numbers_of_rows_are_found_and_kernels_besides_xnnpack_are_named(
    saved: Any, zygote: Zygote, rows: int
) -> None:
    events = run(saved(table(rows)), zygote)
    assert one(events, ModelDescription).providers == ("built-in kernels",)
    assert one(events, CheckReport).agrees is True


def test_a_model_that_people_have_runs(saved: Any, zygote: Zygote) -> None:
    package = find_spec("pymicro_wakeword")
    assert package is not None
    assert package.origin is not None
    events = run(saved((Path(package.origin).parent / "models/okay_nabu.tflite").read_bytes()), zygote)
    described, checked = one(events, ModelDescription), one(events, CheckReport)
    assert (described.shapes, described.dtypes) == ({"input_audio": (1, 3, 40)}, {"input_audio": "int8"})
    assert described.providers == ("XNNPACK", "built-in kernels")
    assert {op.op for op in described.operators if op.provider == "built-in kernels"} >= {"ASSIGN_VARIABLE"}
    assert any("keeps a state" in note for note in described.notes)
    assert checked.agrees is True


def test_operators_of_somebodys_own_are_named(saved: Any, zygote: Zygote) -> None:
    with pytest.raises(Unfit, match=r"custom operator 'MyOwn'.* only built-in operators"):
        run(saved(custom()), zygote)


def test_there_is_no_gpu(saved: Any, zygote: Zygote) -> None:
    with pytest.raises(WrongUnit, match="no GPU delegate"):
        run(saved(dynamic()), zygote, unit="GPU (LiteRT)")


WHOLE = perceptron(64, 2)
HOSTILE = {
    "nothing but a head": WHOLE[:8] + bytes(512),
    "random bytes": WHOLE[:8] + random.Random(1).randbytes(4096),
    "half of a file": WHOLE[: len(WHOLE) // 2],
    "another mark": WHOLE[:4] + b"TFL4" + WHOLE[8:],
    "empty": b"",
}


@pytest.mark.parametrize("what", list(HOSTILE))
def test_broken_files_are_refused(saved: Any, zygote: Zygote, what: str) -> None:
    with pytest.raises(Unfit, match=r"LiteRT"):
        run(saved(HOSTILE[what]), zygote)


def test_a_declared_size_beyond_all_memory_is_refused_within_the_limits(saved: Any, zygote: Zygote) -> None:
    with pytest.raises((Unfit, Crashed)):
        run(saved(huge()), zygote)
    assert one(run(saved(dynamic()), zygote), CheckReport).agrees is True


@pytest.mark.parametrize("seed", range(12))
def test_bytes_that_were_changed_cost_a_child_at_most(saved: Any, zygote: Zygote, seed: int) -> None:
    drawn, content = random.Random(seed), bytearray(dynamic())
    for _ in range(3):
        content[drawn.randrange(8, len(content))] = drawn.randrange(256)
    with contextlib.suppress(DriverError):  # any other error is a bug of ours
        run(saved(bytes(content)), zygote, loads=1)
    assert one(run(saved(dynamic()), zygote, loads=1), CheckReport).agrees is True

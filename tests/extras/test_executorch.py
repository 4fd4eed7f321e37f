"""The ExecuTorch driver with the real runtime, through the child processes that a node uses. Programs are exported on the spot."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
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
)
from drivers.executorch.samples import SampleCall, SampleValue, chain, write
from drivers.executorch.units import LIBRARY_BEFORE_1_5, installed, library
from drivers.launch.launch import Zygote, measure
from drivers.testing.conformance import Subject, check_all

CPU = "CPU (ExecuTorch)"
LIMITS = Limits(load_s=60, run_s=60)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("executorch").start() as started:
        yield started


class Programs(dict[str, Path]):
    """Files by name, each exported at its first use, because an export takes seconds."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        folder.chmod(0o755)  # a node of root runs models as nobody

    def __missing__(self, name: str) -> Path:
        self[name] = path = self.folder / f"{name}.pte"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own warnings
            path.write_bytes(export(name))
        return path


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("programs"))


def export(name: str) -> bytes:
    import torch

    from tests.extras.executorch_nets import RunningSum, TokenScores, exported, quantised, resnet

    net, images = resnet(8, 1, 10), torch.rand(2, 3, 32, 32)
    open_ = ({0: torch.export.Dim("batch", min=1, max=8)},)
    match name:
        case "fixed":
            return exported(net, (images,))
        case "open":
            return exported(net, (images,), shapes=open_)
        case "kernels":
            return exported(net, (images,), shapes=open_, xnnpack=False)
        case "nhwc":
            return exported(net, (images.to(memory_format=torch.channels_last),))
        case "int8":
            return exported(quantised(net, (images,)), (images,))
        case "half":
            return exported(torch.nn.Linear(8, 4).bfloat16(), (torch.rand(2, 8).bfloat16(),), xnnpack=False)
        case "state":
            return exported(RunningSum().eval(), (torch.ones(1, 4),), xnnpack=False)
        case _:
            ids = torch.ones(1, 6, dtype=torch.long)
            given = {"input_ids": ids, "attention_mask": torch.ones(1, 6), "scale": 2.0}
            return exported(TokenScores().eval(), (), given)


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    def save(content: bytes) -> Path:
        tmp_path.chmod(0o755)
        path = tmp_path / "m.pte"
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
    check_all(Subject("executorch", unit=CPU, model=str(saved(chain(64, 2)))))


def test_a_network_runs_on_xnnpack_with_the_threads_that_were_asked_for(
    programs: Programs, zygote: Zygote
) -> None:
    for threads in (1, 2):
        events = run(programs["fixed"], zygote, threads=threads)
        described = one(events, ModelDescription)
        assert (described.unit, described.threads) == (CPU, threads)
        assert described.providers[0] == "XNNPACK"
        nodes = {(op.op, op.provider): op.nodes for op in described.operators}
        assert (nodes["Conv2d", "XNNPACK"], nodes["Add", "XNNPACK"]) == (12, 4)
        assert described.shapes == {"input0": (2, 3, 32, 32)}
        checked = one(events, CheckReport)
        assert (checked.agrees, "no other kernels" in checked.note) == (None, True)
        assert LoadKind.WARM in {each.kind for each in events if isinstance(each, LoadReport)}
        assert sum(len(each.samples_ns) for each in events if isinstance(each, MeasureReport)) == 8


def test_the_outputs_are_those_of_torch(programs: Programs) -> None:
    import numpy as np
    import torch

    from drivers.executorch.driver import ExecuTorchDriver
    from tests.extras.executorch_nets import resnet

    for name in ("fixed", "open", "kernels", "nhwc"):
        model = ExecuTorchDriver().open(WorkOrder(str(programs[name]), CPU, runs=1, loads=1, warmup=1))
        model.load()
        prepared = model.prepare()
        with torch.inference_mode():
            expected = resnet(8, 1, 10)(torch.from_numpy(prepared.feeds["input0"])).numpy()
        assert np.allclose(prepared.outputs()["output0"], expected, atol=1e-5), name


def test_an_open_batch_is_that_of_the_order_up_to_the_largest(programs: Programs, zygote: Zygote) -> None:
    for name in ("open", "kernels"):
        described = one(run(programs[name], zygote, batch=3), ModelDescription)
        assert (described.shapes, described.batch) == ({"input0": (3, 3, 32, 32)}, 3)
    assert one(run(programs["open"], zygote), ModelDescription).shapes == {"input0": (8, 3, 32, 32)}
    with pytest.raises(Unshaped, match=r"at most 8×3×32×32: its axis 0 is at most 8, not 9"):
        run(programs["open"], zygote, batch=9)
    with pytest.raises(Unshaped, match=r"fixed and cannot be 3"):
        run(programs["fixed"], zygote, batch=3)


def test_a_smaller_size_where_the_program_fixes_it_gives_no_number_that_looks_right(
    programs: Programs, zygote: Zygote
) -> None:
    """XNNPACK before 1.5 reports no error, and computes with the memory behind the input. Newer versions stop."""
    wrong = {"shapes": {"input0": (8, 2, 32, 32)}}
    if library(installed()) == LIBRARY_BEFORE_1_5:
        checked = one(run(programs["open"], zygote, **wrong), CheckReport)
        assert checked.agrees is False
        assert "depend on values left in memory" in checked.note
    else:
        stopped = (
            r"failed with input0 8×2×32×32: ExecuTorch: .*error 0x1 \(an internal error\); if these sizes"
        )
        with pytest.raises(Unshaped, match=stopped):
            run(programs["open"], zygote, **wrong)
    with pytest.raises(Unshaped, match=r"failed with input0 8×2×32×32: ExecuTorch: .*an invalid argument"):
        run(programs["kernels"], zygote, **wrong)


def test_tokens_are_found_by_their_names_and_plain_values_are_those_of_the_export(
    programs: Programs, zygote: Zygote
) -> None:
    events = run(programs["ids"], zygote)
    described = one(events, ModelDescription)
    assert described.dtypes == {"input_ids": "int64", "attention_mask": "float"}
    assert "inputs that are plain values keep the values of the export: scale = 2.0" in described.notes
    assert set(described.providers) == {"XNNPACK", "ExecuTorch kernels"}


def test_bfloat16_runs(programs: Programs, zygote: Zygote) -> None:
    assert one(run(programs["half"], zygote), ModelDescription).dtypes == {"input0": "bfloat16"}


def test_a_quantised_network_runs_on_xnnpack(programs: Programs, zygote: Zygote) -> None:
    described = one(run(programs["int8"], zygote), ModelDescription)
    assert (described.providers, described.dtypes) == (("XNNPACK",), {"input0": "float"})
    assert {op.op: op.nodes for op in described.operators}["Conv2d"] == 12


def test_a_state_is_named(programs: Programs, zygote: Zygote) -> None:
    events = run(programs["state"], zygote)
    assert any("keeps a state" in note for note in one(events, ModelDescription).notes)
    assert one(events, CheckReport).agrees is None


WHOLE = chain(64, 2)
HUGE = write(
    [SampleValue((1 << 15, 1 << 15)), SampleValue((4, 4), bytes(64)), SampleValue((1 << 15, 1 << 15))],
    [SampleCall((0, 1, 2, 2))],
    [0],
    [2],
)
HOSTILE = {
    "nothing but a head": WHOLE[:8] + bytes(512),
    "random bytes": WHOLE[:8] + random.Random(1).randbytes(4096),
    "half of a file": WHOLE[: len(WHOLE) // 2],
    "another mark": WHOLE[:4] + b"XX12" + WHOLE[8:],
    "empty": b"",
}


@pytest.mark.parametrize("what", list(HOSTILE))
def test_broken_files_are_refused(saved: Any, zygote: Zygote, what: str) -> None:
    with pytest.raises(Unfit):
        run(saved(HOSTILE[what]), zygote)


def test_a_declared_size_beyond_all_memory_is_refused_within_the_limits(saved: Any, zygote: Zygote) -> None:
    with pytest.raises((Unfit, Crashed)):
        run(saved(HUGE), zygote)
    assert one(run(saved(WHOLE), zygote), MeasureReport)


@pytest.mark.parametrize("seed", range(12))
def test_bytes_that_were_changed_cost_a_child_at_most(
    saved: Any, programs: Programs, zygote: Zygote, seed: int
) -> None:
    drawn = random.Random(seed)
    content = bytearray(programs["fixed"].read_bytes() if seed % 2 else WHOLE)
    for _ in range(3):
        content[drawn.randrange(8, min(len(content), 8192))] = drawn.randrange(256)
    with contextlib.suppress(DriverError):  # any other error is a bug of ours
        run(saved(bytes(content)), zygote, loads=1)
    assert one(run(saved(WHOLE), zygote, loads=1), MeasureReport)

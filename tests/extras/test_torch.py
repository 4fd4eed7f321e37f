"""The Torch driver with a real torch, through the child processes that a node uses."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import (
    CheckReport,
    Event,
    Limits,
    LoadKind,
    LoadReport,
    MeasureReport,
    ModelDescription,
    Unfit,
    WorkOrder,
    WrongUnit,
)
from drivers.launch.launch import Zygote, measure
from drivers.testing.conformance import Subject, check_all
from drivers.torch.architectures import ARCHITECTURES, read_declaration

CPU = "CPU (Torch)"
LIMITS = Limits(load_s=120, run_s=120)
X = {"input": "float32[batch, 8]"}


def run(model: Path, zygote: Zygote, **changes: Any) -> list[Event]:
    order = replace(WorkOrder(str(model), CPU, runs=8, loads=2, warmup=2, threads=1), **changes)
    return list(measure(order, LIMITS, zygote))


def one(events: list[Event], kind: type[Any]) -> Any:
    return next(event for event in events if isinstance(event, kind))


def test_a_declared_network_keeps_the_drivers_contract(torch_models: dict[str, Path]) -> None:
    check_all(Subject("torch", unit=CPU, model=str(torch_models["alone.safetensors"])))


def test_an_exported_program_keeps_the_drivers_contract(torch_models: dict[str, Path]) -> None:
    check_all(Subject("torch", unit=CPU, model=str(torch_models["program.pt2"])))


def test_every_format_of_one_network_runs_and_gives_the_same_answer(
    torch_models: dict[str, Path], torch_zygote: Zygote
) -> None:
    hashes = set()
    for name in ("traced.pt", "scripted.pt", "program.pt2", "alone.safetensors", "folder"):
        inputs = X if name.endswith(".pt") else {}
        if name == "traced.pt":
            inputs = {"input": "float32[2, 8]"}
        dims = {"input[0]": 2, "s77": 2, "batch": 2}
        events = run(torch_models[name], torch_zygote, inputs=inputs, dims=dims)
        described, checked = one(events, ModelDescription), one(events, CheckReport)
        assert described.unit == CPU
        assert described.providers == ("cpu",)
        assert described.threads == 1
        assert list(described.shapes.values()) == [(2, 8)]
        assert checked.agrees is True
        assert sum(len(each.samples_ns) for each in events if isinstance(each, MeasureReport)) == 8
        kinds = {each.kind for each in events if isinstance(each, LoadReport)}
        assert LoadKind.WARM in kinds
        hashes.add((next(iter(described.shapes)), checked.output_sha256))
    assert len({sha for name, sha in hashes if name == "input"}) == 1
    assert len({sha for name, sha in hashes if name == "x"}) == 1


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_floating_types_are_checked_against_more_digits(
    torch_models: dict[str, Path], torch_zygote: Zygote, dtype: str
) -> None:
    checked = one(run(torch_models[f"{dtype}.safetensors"], torch_zygote), CheckReport)
    assert checked.agrees is True
    assert checked.tolerance == (1e-6 if dtype == "float64" else 2e-2)


@pytest.mark.parametrize("name", ["weights.pt", "whole.pt", "legacy.pt"])
def test_pickles_are_refused_for_everybody(
    torch_models: dict[str, Path], torch_zygote: Zygote, name: str
) -> None:
    with pytest.raises(Unfit, match=r"pickle.*torch.export.save"):
        run(torch_models[name], torch_zygote)


@pytest.mark.parametrize("name", ["traced.pt", "program.pt2"])
def test_programs_are_refused_from_strangers_whatever_they_are_called(
    torch_models: dict[str, Path], torch_zygote: Zygote, name: str, tmp_path: Path
) -> None:
    harmless = shutil.copy(torch_models[name], tmp_path / "net.safetensors")
    with pytest.raises(Unfit, match="contains a program"):
        run(Path(harmless), torch_zygote, inputs=X, trusted=False)


def test_a_strangers_declared_network_runs(torch_models: dict[str, Path], torch_zygote: Zygote) -> None:
    assert one(run(torch_models["folder"], torch_zygote, trusted=False), CheckReport).agrees is True


def test_a_torchscript_model_wants_its_inputs_declared(
    torch_models: dict[str, Path], torch_zygote: Zygote
) -> None:
    with pytest.raises(Unfit, match=r"declare them in the campaign.*inputs: \{input:"):
        run(torch_models["scripted.pt"], torch_zygote)
    with pytest.raises(Unfit, match="declares the input 'y'"):
        run(torch_models["scripted.pt"], torch_zygote, inputs=X | {"y": "int64[1]"})
    with pytest.raises(Unfit, match="torch"):
        run(torch_models["scripted.pt"], torch_zygote, inputs={"input": "float32[3, 9]"})


def test_a_gpu_that_is_not_there_is_never_replaced(
    torch_models: dict[str, Path], torch_zygote: Zygote
) -> None:
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(WrongUnit, match="finds no GPU"):
            run(torch_models["folder"], torch_zygote, unit="GPU (Torch)")
    else:
        events = run(torch_models["folder"], torch_zygote, unit="GPU (Torch)")
        assert one(events, ModelDescription).providers[0].startswith(("cuda: ", "rocm: "))
        assert one(events, CheckReport).agrees is True


def test_sample_inputs_that_would_be_unpickled_without_restraint_are_refused(
    torch_models: dict[str, Path], torch_zygote: Zygote, tmp_path: Path
) -> None:
    import pickle

    class Harm:
        def __reduce__(self) -> Any:
            return (print, ("it ran",))

    bad = tmp_path / "bad.pt2"
    with zipfile.ZipFile(torch_models["program.pt2"]) as source, zipfile.ZipFile(bad, "w") as target:
        for member in source.infolist():
            harm = "/data/sample_inputs/" in member.filename
            target.writestr(member, pickle.dumps(Harm()) if harm else source.read(member))
    with pytest.raises(Unfit, match="a pickle with more than tensors"):
        run(bad, torch_zygote)


@pytest.mark.parametrize(
    "fields",
    [
        {"architecture": "mlp", "inputs": 5, "hidden": [7, 3], "outputs": 2, "activation": "tanh"},
        {"architecture": "cnn", "channels": [3, 4, 8], "image": [16, 20], "kernel": 5, "outputs": 10},
        {"architecture": "transformer-encoder", "width": 16, "heads": 4, "layers": 2, "feedforward": 32},
    ],
    ids=list(ARCHITECTURES),
)
def test_declared_weights_are_those_that_torch_builds(
    fields: dict[str, Any], torch_zygote: Zygote, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import save_file

    from drivers.torch.models import build

    declaration = read_declaration(fields)
    state = build(torch, declaration).state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == declaration.weights()
    import json

    save_file(state, tmp_path / "w.safetensors")
    (tmp_path / "model.json").write_text(json.dumps(fields))
    tmp_path.chmod(0o755)  # a node of root runs models as nobody
    (tmp_path / "w.safetensors").chmod(0o644)
    shape = tuple(size if isinstance(size, int) else 3 for size in declaration.input_shape())
    events = run(tmp_path, torch_zygote, trusted=False, shapes={"x": shape})
    assert one(events, CheckReport).agrees is True
    assert one(events, ModelDescription).shapes["x"] == shape

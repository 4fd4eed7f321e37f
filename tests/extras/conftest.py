"""Models generated with the runtimes of the optional extras. Run with `make test-extras`; not part of `make test`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drivers.launch.launch import Zygote


@pytest.fixture(scope="session")
def torch_zygote() -> Iterator[Zygote]:
    """A zygote of the Torch driver."""
    with Zygote("torch").start() as started:
        yield started


@pytest.fixture(scope="session")
def torch_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same network in each format, and as checkpoints."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    x = torch.rand(2, 8)
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        made[name] = folder / name
        return folder / name

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated but widely used
        torch.jit.save(torch.jit.trace(net, x), str(path("traced.pt")))
        torch.jit.save(torch.jit.script(net), str(path("scripted.pt")))
    batch = torch.export.Dim("batch", max=64)
    program: Any = torch.export.export(net, (x,), dynamic_shapes=({0: batch},))
    torch.export.save(program, str(path("program.pt2")))
    torch.save(net.state_dict(), path("weights.pt"))
    torch.save(net, path("whole.pt"))
    torch.save(net.state_dict(), path("legacy.pt"), _use_new_zipfile_serialization=False)
    text = '{"architecture": "mlp", "inputs": 8, "hidden": [16], "outputs": 4}'
    save_file(net.state_dict(), path("alone.safetensors"), metadata={"declaration": text})
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        state = {name: tensor.to(dtype) for name, tensor in net.state_dict().items()}
        save_file(state, path(f"{str(dtype)[6:]}.safetensors"), metadata={"declaration": text})
    pairs = path("folder")
    pairs.mkdir()
    save_file(net.state_dict(), pairs / "weights.safetensors")
    (pairs / "model.json").write_text(text)
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)  # a node of root runs models as nobody
    return made

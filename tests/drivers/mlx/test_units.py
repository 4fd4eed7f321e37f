"""Where MLX computes, and one sequence in a model, with doubles of MLX and mlx-lm. `tests/extras` runs the real ones on the processor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from drivers.contract.base import OutOfMemory, Unfit, WrongUnit
from drivers.mlx.driver import MlxDriver
from drivers.mlx.model import MlxSession, translated
from drivers.mlx.units import CPU, GPU, device_for, provider, verify_device, working_units


class MlxDouble:
    """`mlx.core` on a computer whose `gpu` is `metal`, `cuda` or none. `computes`: its result for 21 + 21."""

    cpu, gpu = "cpu", "gpu"

    def __init__(self, gpu: str = "", computes: float = 42.0) -> None:
        self._gpu, self._computes = gpu, computes
        self.metal = SimpleNamespace(is_available=lambda: gpu == "metal")
        self.default = self.Device("cpu", 0)

    @staticmethod
    def Device(kind: str, index: int) -> Any:  # noqa: N802
        return SimpleNamespace(type=kind, index=index)

    def is_available(self, kind: str) -> bool:
        return kind == "cpu" or bool(self._gpu)

    def device_info(self, device: Any) -> dict[str, str]:
        return {"device_name": "Apple M3 Max"} if self._gpu == "metal" else {}

    def default_device(self) -> Any:
        return self.default

    def array(self, value: Any) -> Any:
        return np.array(value)

    def add(self, a: Any, b: Any, stream: Any) -> Any:
        if self._computes < 0 and stream.type == "gpu":
            raise RuntimeError("[metal::device] no device")
        return np.array(42.0 if stream.type == "cpu" else self._computes)


def offered(mx: Any) -> list[tuple[str, str]]:
    return [(one.unit, one.detail) for one in working_units(mx, "mlx", "mlx 0")]


def test_a_unit_is_offered_if_something_has_just_been_computed_on_its_device() -> None:
    on_cpu = (CPU, "cpu")
    assert offered(MlxDouble()) == [on_cpu]
    assert offered(MlxDouble("metal")) == [on_cpu, (GPU, "metal: Apple M3 Max")]
    assert offered(MlxDouble("cuda")) == [on_cpu, (GPU, "cuda")]
    assert offered(MlxDouble("metal", computes=41)) == [on_cpu]
    assert offered(MlxDouble("metal", computes=-1)) == [on_cpu]


def test_where_mlx_is_not_installed_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivers.mlx.driver.find_spec", lambda name: None)
    assert MlxDriver().units() == ()


def test_a_unit_without_its_device_is_refused_and_never_taken_over_by_the_processor() -> None:
    with pytest.raises(WrongUnit, match="this MLX finds no GPU"):
        device_for(MlxDouble(), GPU)
    with pytest.raises(WrongUnit, match="unknown unit 'NPU"):
        device_for(MlxDouble("metal"), "NPU (MLX)")
    mx = MlxDouble("metal")
    device = device_for(mx, GPU)
    assert provider(mx, device) == "metal: Apple M3 Max"
    with pytest.raises(WrongUnit, match=r"asked for GPU \(MLX\), but MLX computes on"):
        verify_device(mx, GPU, device)
    mx.default = device
    verify_device(mx, GPU, device)


class Sequence:
    """mlx-lm's cache and a model that writes to it: the tokens of the sequence."""

    def __init__(self, trims: bool) -> None:
        self.trims, self.evaluated = trims, 0
        self.seen: list[int] = []

    @property
    def state(self) -> Any:
        return self

    def make_prompt_cache(self, model: Any) -> list[Any]:
        self.seen = []
        return [self]

    def can_trim_prompt_cache(self, cache: list[Any]) -> bool:
        return self.trims

    def trim_prompt_cache(self, cache: list[Any], tokens: int) -> None:
        del self.seen[len(self.seen) - tokens :]

    def model(self, batch: Any, cache: list[Any]) -> Any:
        self.seen += batch[0].tolist()
        return np.zeros((1, batch.shape[1], 4), np.float32)

    def eval(self, *values: Any) -> None:
        self.evaluated += 1


@pytest.mark.parametrize("trims", [True, False])
def test_a_session_leads_back_to_its_prefix_and_computes_each_step(trims: bool) -> None:
    kept = Sequence(trims)
    mx = SimpleNamespace(array=np.array, eval=kept.eval, float32=np.float32)
    session = MlxSession(mx, kept.model, kept)
    session.fill(np.array([1, 2]))
    first, second = session.batches(np.array([3, 4]), 1)
    before = kept.evaluated
    session.step(first)
    session.step(second)
    assert kept.evaluated == before + 2, "MLX computes nothing before it is asked for values"
    assert kept.seen == [1, 2, 3, 4]
    for _ in range(2):
        session.rewind()
        assert kept.seen == [1, 2]
    session.decode(np.array([5, 6, 7]))
    assert kept.seen == [1, 2, 5, 6, 7]
    assert session.logits().shape == (4,)


def test_what_mlx_raises_is_told_in_one_line() -> None:
    for text, kind in (
        ("[metal::malloc] Unable to allocate 1 bytes", OutOfMemory),
        ("Missing 3\nparameters", Unfit),
    ):
        with pytest.raises(kind, match=r"^MLX: [^\n]+$"), translated():
            raise ValueError(text)

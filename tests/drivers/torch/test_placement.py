"""Which device ran a model, from the operators seen by torch's dispatcher. With a real torch: `tests/extras/test_torch_on_gpu.py`."""

from __future__ import annotations

import pytest

from drivers.local.model import ExecutionPlace
from drivers.torch.placement import Operand, device_of, unit_that_ran
from drivers.torch.units import CPU, GPU

SHOWN = "cuda: NVIDIA H200"
FEW, MANY = Operand("cpu", 1), Operand("cpu", 2)
HERE = Operand("cuda", 1)


@pytest.mark.parametrize(
    ("name", "given", "taken", "where"),
    [
        ("relu", [HERE], [HERE], "cuda"),
        ("relu", [MANY], [MANY], "cpu"),
        ("sum", [FEW], [MANY], "cpu"),
        ("scalar_tensor", [FEW], [], ""),
        ("mul", [HERE], [HERE, FEW], "cuda"),
        ("_to_copy", [MANY], [HERE], ""),
        ("_local_scalar_dense", [], [HERE], ""),
    ],
)
def test_an_operator_ran_where_its_outputs_are_unless_it_only_moves_or_makes_a_number(
    name: str, given: list[Operand], taken: list[Operand], where: str
) -> None:
    assert device_of(name, given, taken) == where


def test_a_model_that_computes_on_the_cpu_did_not_run_on_the_gpu() -> None:
    assert unit_that_ran(GPU, "cuda:0", SHOWN, {"cpu": 3}) == ExecutionPlace(CPU, ("cpu",))
    assert unit_that_ran(GPU, "mps", "mps", {"cpu": 3}).unit == CPU


def test_operators_that_ran_elsewhere_are_reported() -> None:
    result = unit_that_ran(GPU, "cuda:0", SHOWN, {"cpu": 3, "cuda": 5})
    assert result == ExecutionPlace(GPU, (SHOWN, "cpu"), ("3 of 8 operators ran on the cpu",))
    assert unit_that_ran(GPU, "cuda:0", SHOWN, {"cuda": 5}) == ExecutionPlace(GPU, (SHOWN,))


def test_what_torch_does_not_report_is_said() -> None:
    result = unit_that_ran(GPU, "cuda:0", SHOWN, {})
    assert (result.unit, result.providers) == (GPU, (SHOWN,))
    assert "does not report" in result.notes[0]

"""Micro-benchmarks with a real torch on the processor. A GPU runs the same code with another clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drivers.contract.base import Crashed, Unfit
from drivers.micro.micro import run_micro
from drivers.micro.on_torch import make_product, measure, numbers
from drivers.micro.plan import MIB, MicroPlan, check_product

TINY = MicroPlan(sizes=(MIB,), gemm=(16, 64), block_s=0.001, blocks=2, spread=0.5, total_s=4.0)


def test_sizes_and_precisions_have_figures_of_their_own() -> None:
    figures = measure(TINY, "cpu").figures
    assert {"fp32_gflops_16", "fp32_gflops_64", "fp64_gflops_max", "triad_gb_s_1_mib"} <= figures.keys()
    assert figures["fp32_gflops_16"] != figures["fp32_gflops_64"]
    assert not any(name.startswith(("fp16", "bf16", "int8", "fp8")) for name in figures)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"])
def test_the_product_of_each_precision_is_right_and_a_wrong_one_is_seen(precision: str) -> None:
    import torch

    product = make_product(torch, "cpu", precision, 64)
    made = product.call()

    def check(off: float) -> None:
        check_product(replace(product, call=lambda: made.double() + off), 64, numbers, precision)

    check(0.0)
    with pytest.raises(Crashed, match="wrong at row"):
        check(1e4)


def test_where_torch_sees_no_gpu_there_is_nothing_to_measure() -> None:
    with pytest.raises(Unfit, match="finds no GPU"):
        run_micro("cuda", replace(TINY, total_s=1.0), 1)

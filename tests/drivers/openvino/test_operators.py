"""OpenVINO's profile, as lines of a record."""

from __future__ import annotations

from drivers.contract.base import MAX_OPERATORS, OperatorReport
from drivers.openvino.operators import ProfiledKernel, kernels_of, operators_of, types_note
from drivers.openvino.runtime import in_one_line, to_driver_error
from tests.drivers.openvino.doubles import profiled

PROFILE = [
    profiled("Parameter", "unknown_f32", 1),
    profiled("Convolution", "brgconv_avx512_bf16", 800),
    profiled("Relu", "undef", 0, "NOT_RUN"),
    profiled("Convolution", "brgconv_avx512_bf16", 100),
    profiled("Reorder", "jit_uni_f32", 100),
]


def test_what_ran_is_counted_with_its_time_beside_what_the_model_has() -> None:
    kernels = kernels_of(PROFILE)
    assert kernels[0] == ProfiledKernel("Convolution", "brgconv_avx512_bf16", 800_000)
    assert operators_of(kernels, ["Parameter", "Convolution", "Convolution", "Relu", "Result"], "CPU") == (
        OperatorReport("Convolution", "CPU", nodes=2, ran=2, ns=900_000),
        OperatorReport("Reorder", "CPU", nodes=0, ran=1, ns=100_000),
        OperatorReport("Relu", "CPU", nodes=1, ran=0, ns=None),
    )


def test_there_are_never_more_lines_than_a_record_takes() -> None:
    assert len(operators_of([], [f"Op{number}" for number in range(500)], "CPU")) == MAX_OPERATORS


def test_the_types_in_which_the_time_went_are_told() -> None:
    assert types_note(kernels_of(PROFILE)) == "kernels by time: 90% bf16, 10% f32"
    assert types_note([]) == ""


def test_errors_are_one_line_without_places_in_sources() -> None:
    text = (
        "Exception from src/inference/src/cpp/core.cpp:84:\n"
        "Check 'is_valid_weights_range(size, offset)' failed at src/core/xml_util.cpp:900:\nIncorrect weights in bin file!\n\n"
    )
    assert in_one_line(text) == "Incorrect weights in bin file!"
    assert (
        in_one_line("Exception from a.cpp:1:\nCheck 'a == b' failed at c.cpp:2:\n")
        == "the check a == b failed"
    )
    assert type(to_driver_error(RuntimeError("std::bad_alloc"))).__name__ == "OutOfMemory"
    assert str(to_driver_error(TypeError())) == "OpenVINO: TypeError"

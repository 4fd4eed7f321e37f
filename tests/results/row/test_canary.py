"""Comparing sketches, and what a repeated inference says about a stranger's."""

from __future__ import annotations

import math

import pytest

from protocol.formats.chain import launch_seed
from protocol.values.record import LaunchOutput, OutputSketch
from results.row.canary import CanaryOutcome, judge_canary, seed_of
from results.row.sketches import TOLERANCE, distance, read, show
from tests.results.row.witness_parts import OPENING, REVEAL, output, record, sketch, timing


def put_out(*sketches: OutputSketch, sha256: str = "a" * 64) -> LaunchOutput:
    return LaunchOutput(sha256=sha256, sketches=sketches)


OWN = put_out(sketch(1.0))
DECOY = put_out(sketch(0.0, 1.0), sha256="d" * 64)


def said(*sketches: OutputSketch) -> LaunchOutput:
    return put_out(*sketches, sha256="b" * 64)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (put_out(), put_out(), 0.0),
        (put_out(), said(), None),
        (OWN, said(), None),
        (OWN, said(sketch(1.0), sketch(1.0)), math.inf),
        (OWN, said(sketch(1.0, dtype="float16")), math.inf),
        (OWN, said(sketch(1.0, count=99)), math.inf),
        (OWN, said(sketch(1.0)), 0.0),
        (OWN, said(sketch(0.9)), 0.1),
        (OWN, said(sketch(1.0, norm=2.0)), 0.5),
        (put_out(sketch(norm=0.0)), said(sketch(norm=0.0)), 0.0),
        (put_out(sketch(1.0, norm=1e18)), said(sketch(1.0, norm=1e-300)), 1.0),
    ],
)
def test_the_distance_of_outputs(one: LaunchOutput, other: LaunchOutput, apart: float | None) -> None:
    assert distance(one, other) == (None if apart is None else pytest.approx(apart, abs=1e-6))


def test_outputs_come_back_from_a_cell() -> None:
    made = put_out(sketch(0.25, 0.5, norm=1 / 3), sketch(dtype="int64"))
    shown = read(made.sha256, show(made))
    assert shown is not None
    assert distance(shown, made.model_copy(update={"sha256": "c" * 64})) == pytest.approx(0, abs=1e-6)
    assert read(made.sha256, "x y") is None


def test_the_same_outputs_within_the_tolerance_confirm() -> None:
    verdict = judge_canary(2, said(sketch(1.0, TOLERANCE / 2)), OWN, DECOY)
    assert (verdict.outcome, verdict.text) == (CanaryOutcome.CONFIRMED, "launch 2 confirmed")


@pytest.mark.parametrize("wrong", [sketch(0.0, 1.0), sketch(1.0, norm=3.0), sketch(1.0, count=7)])
def test_other_outputs_refute(wrong: OutputSketch) -> None:
    verdict = judge_canary(2, said(wrong), OWN, DECOY)
    assert verdict.outcome is CanaryOutcome.REFUTED
    assert "the outputs of launch 2 differ by" in verdict.why


def test_a_type_with_many_digits_is_held_to_them() -> None:
    own = put_out(sketch(1.0, dtype="float64"))
    decoy = put_out(sketch(0.0, 1.0, dtype="float64"), sha256="d" * 64)
    assert (
        judge_canary(1, said(sketch(1.0, 0.01, dtype="float64")), own, decoy).outcome is CanaryOutcome.REFUTED
    )


def test_a_model_that_puts_out_the_same_for_all_inputs_confirms_nobody() -> None:
    decoy = put_out(sketch(1.0, 0.01), sha256="d" * 64)
    verdict = judge_canary(1, said(sketch(1.0, 0.005)), OWN, decoy)
    assert verdict.outcome is CanaryOutcome.UNCHECKED
    assert verdict.text == "unchecked: the model gives nearly the same outputs for all inputs"
    constant = judge_canary(1, OWN, OWN, OWN)
    assert constant.outcome is CanaryOutcome.UNCHECKED


def test_outputs_whose_size_depends_on_the_inputs_refute_nobody() -> None:
    decoy = put_out(sketch(1.0, count=7), sha256="d" * 64)
    verdict = judge_canary(1, said(sketch(1.0, count=99)), OWN, decoy)
    assert verdict.outcome is CanaryOutcome.UNCHECKED


def test_texts_refute_nobody() -> None:
    assert judge_canary(1, said(), put_out(), DECOY).outcome is CanaryOutcome.UNCHECKED


def test_outputs_that_are_left_out_refute() -> None:
    """Otherwise a liar would only have to leave them out."""
    verdict = judge_canary(2, said(), OWN, DECOY)
    assert (verdict.outcome, verdict.why) == (CanaryOutcome.REFUTED, "launch 2 does not report its outputs")


def test_the_inputs_of_a_launch_follow_from_the_record() -> None:
    assert seed_of(record(), 1) == launch_seed(OPENING, 1)
    assert seed_of(record(), 3) == launch_seed(REVEAL, 3, output(2).digest())
    assert seed_of(record(), 4) is None
    assert seed_of(record(reveal=None), 1) is None
    assert seed_of(record(timings=(timing(1, output=None), timing(2))), 2) is None

"""A canary: an inference of a stranger's run that the scheduler repeats, with outputs that the worker could not know. Pure.

The decoy, the outputs for another input, shows what a close answer is worth: if a model outputs nearly the same for all inputs, anybody can
give the right outputs without running it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.formats.chain import launch_seed
from protocol.values.record import LaunchOutput, Record
from results.row.sketches import distance, same_form, tolerance_of

APART: Final = 4.0
"""The decoy must be at least this many times as far from this home's outputs as the worker's answer is."""


class CanaryOutcome(StrEnum):
    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """The outcome of one canary, and the reason in words."""

    outcome: CanaryOutcome
    why: str

    @property
    def text(self) -> str:
        """The text for a row."""
        return f"{self.outcome}: {self.why}" if self.outcome is CanaryOutcome.UNCHECKED else self.why


def unchecked(why: str) -> CanaryVerdict:
    """A verdict neither for nor against the worker."""
    return CanaryVerdict(CanaryOutcome.UNCHECKED, why)


def seed_of(record: Record, launch: int) -> int | None:
    """The seed of the inputs of a launch, counted from 1. None if the record's chain does not reach that launch."""
    if record.opening is None or record.reveal is None or not 1 <= launch <= len(record.timings):
        return None
    if launch == 1:
        return launch_seed(record.opening, 1)
    before = record.timings[launch - 2].output
    return None if before is None else launch_seed(record.reveal, launch, before.digest())


def judge_canary(launch: int, said: LaunchOutput, own: LaunchOutput, decoy: LaunchOutput) -> CanaryVerdict:
    """`said`: the worker's outputs; `own`: this home's outputs for the same inputs; `decoy`: this home's outputs for other inputs."""
    if own.sketches and not said.sketches and said.sha256 != own.sha256:
        return CanaryVerdict(CanaryOutcome.REFUTED, f"launch {launch} does not report its outputs")
    apart, other = distance(said, own), distance(own, decoy)
    if apart is None or other is None:
        return unchecked("the outputs are not numbers, so only equality could be checked")
    if not same_form(said, own) and not same_form(own, decoy):
        return unchecked("the sizes of its outputs depend on the inputs' values")
    tolerance = tolerance_of(own)
    if apart > tolerance:
        words = f"the outputs of launch {launch} differ by {min(apart, 99):.2g} of their size from what its inputs give"
        return CanaryVerdict(CanaryOutcome.REFUTED, f"{words}; {tolerance:g} is tolerated")
    if apart * APART > other or not other:
        return unchecked("the model gives nearly the same outputs for all inputs")
    return CanaryVerdict(CanaryOutcome.CONFIRMED, f"launch {launch} confirmed")

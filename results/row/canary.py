"""A canary: an inference of a stranger's run that the scheduler repeats, with outputs that the worker could not know. Pure.

Another input's outputs, the decoy, say what a near answer is worth: of a model that puts out nearly the same for all inputs, everybody has
the right outputs without running it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.formats.chain import launch_seed
from protocol.values.record import LaunchOutput, Record
from results.row.sketches import distance, same_form, tolerance_of

APART: Final = 4.0
"""How many times as far as the worker's answer the decoy must be from this home's outputs."""


class CanaryOutcome(StrEnum):
    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """What came of one canary, and why in words."""

    outcome: CanaryOutcome
    why: str

    @property
    def text(self) -> str:
        """For a row."""
        return f"{self.outcome}: {self.why}" if self.outcome is CanaryOutcome.UNCHECKED else self.why


def unchecked(why: str) -> CanaryVerdict:
    """It says nothing for or against the worker."""
    return CanaryVerdict(CanaryOutcome.UNCHECKED, why)


def seed_of(record: Record, launch: int) -> int | None:
    """Seed of the inputs of a launch, from 1; None where the record has no chain to it."""
    if record.opening is None or record.reveal is None or not 1 <= launch <= len(record.timings):
        return None
    if launch == 1:
        return launch_seed(record.opening, 1)
    before = record.timings[launch - 2].output
    return None if before is None else launch_seed(record.reveal, launch, before.digest())


def judge_canary(launch: int, said: LaunchOutput, own: LaunchOutput, decoy: LaunchOutput) -> CanaryVerdict:
    """`said`: what the worker put out; `own`: what this home puts out for the same inputs; `decoy`: for others."""
    if own.sketches and not said.sketches and said.sha256 != own.sha256:
        return CanaryVerdict(CanaryOutcome.REFUTED, f"launch {launch} does not tell what it put out")
    apart, other = distance(said, own), distance(own, decoy)
    if apart is None or other is None:
        return unchecked("the outputs are not numbers, so only equality could be checked")
    if not same_form(said, own) and not same_form(own, decoy):
        return unchecked("the sizes of its outputs depend on the inputs' values")
    tolerance = tolerance_of(own)
    if apart > tolerance:
        words = f"the outputs of launch {launch} are {min(apart, 99):.2g} of their size away from what its inputs give"
        return CanaryVerdict(CanaryOutcome.REFUTED, f"{words}, {tolerance:g} is tolerated")
    if apart * APART > other or not other:
        return unchecked("the model puts out nearly the same whatever its inputs are")
    return CanaryVerdict(CanaryOutcome.CONFIRMED, f"launch {launch} confirmed")

"""What a scheduler witnessed of a stranger's run, and how a record must match it. Pure.

    reveal ──▶ launch 1 ──▶ its digest ──▶ launch 2 ──▶ its digest ──▶ … ──▶ result          on the scheduler's clock
      0 s                     notes[0]                    notes[1]             result_s

A worker knows the inputs of launch k + 1 only once it has the outputs of launch k, and no inputs before the reveal: the times it claims
must fit in between. Notes arrive after the events they report, never before. So a claim that does not fit between the reveal and an arrival
is a lie. A claim that does not fit between two arrivals may be honest, because a network delays notes: it is doubted.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from protocol.formats.chain import launch_seed
from protocol.values.record import Record
from protocol.words import Reason
from results.row.record import RecordView
from swarm.base.text import count

CLOCKS: Final = 0.002
"""Share by which two honest clocks may differ in speed."""
CLOCK_S: Final = 0.001
NOTE_S: Final = 1.0
"""Seconds by which a note's delay may exceed the next note's before the claim is doubted."""
FIXED_S: Final = 0.5
LAUNCH_S: Final = 0.4
"""Seconds that a run takes apart from loads and inferences: `FIXED_S` in total, and `LAUNCH_S` for each launch …"""
UNEXPLAINED: Final = 0.2
"""… and this share of the witnessed time. Above the sum, a row is `unwitnessed`. `benchmarks/measuring/witnessing.py` measures the
distribution."""

Word = Annotated[str, Field(max_length=300)]


class LaunchNote(BaseModel):
    """A launch that a worker reported when it ended."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    launch: int
    digest: str
    at_s: float
    """Seconds from the reveal to the note's arrival."""


class WitnessAccount(BaseModel):
    """What the scheduler witnessed of one attempt of a stranger. The account is the scheduler's own: no worker signs it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    opening: str = ""
    """In hexadecimal, like the reveal."""
    reveal: str = ""
    notes: tuple[LaunchNote, ...] = ()
    result_s: float | None = None
    """From the reveal to the result's arrival. None: unknown."""
    unwitnessed: Word = ""
    """Why the run, or its time, was not witnessed."""
    canary: Word = ""
    """The outcome of the inference that the scheduler repeated."""
    confirmed: bool = False
    """The repeated inference gave the outputs that the worker reported."""
    refuted: bool = False
    """Another task later refuted the worker."""


def refusal(record: Record, observed: RecordView, account: WitnessAccount) -> tuple[Reason, str] | None:
    """Why a complete record contradicts what the scheduler witnessed. None if it does not."""
    if not account.reveal:
        return None
    why = _broken_chain(record, account) or _impossible_times(observed, account)
    return (Reason.NOT_WITNESSED, why) if why else None


def _broken_chain(record: Record, account: WitnessAccount) -> str:
    opening, reveal = bytes.fromhex(account.opening), bytes.fromhex(account.reveal)
    if (record.opening, record.reveal) != (opening, reveal):
        return "its inputs do not follow from what was revealed"
    if record.ran is None or record.ran.seed != launch_seed(opening, 1):
        return "the inputs of its first launch do not follow from what was revealed"
    outputs = [timing.output for timing in record.timings]
    if None in outputs:
        return f"it does not report the outputs of launch {outputs.index(None) + 1}"
    first = outputs[0] if outputs else None
    if first is not None and record.ran.output_sha256 not in (None, first.sha256):
        return "the outputs that it checked are not those of its first launch"
    digests = {number: output.digest().hex() for number, output in enumerate(outputs, start=1) if output}
    for note in account.notes:
        if note.launch not in digests:
            return f"it leaves out launch {note.launch}, which its worker reported"
        if digests[note.launch] != note.digest:
            return f"launch {note.launch} reported other outputs when it ended"
    return ""


def _impossible_times(observed: RecordView, account: WitnessAccount) -> str:
    """Claimed times that do not fit into the time available."""
    claims = claimed_s(observed)
    arrivals = {note.launch: note.at_s for note in account.notes}
    for number in sorted(arrivals):
        until, claimed = arrivals[number], sum(claims[:number])
        if not _fits(claimed, until):
            launches = count(number, "launch", "launches")
            return f"{launches} with {claimed:.3g} s of loads and inferences ended {until:.3g} s after the reveal"
    whole = sum(claims) + _other_loads_s(observed)
    if account.result_s is not None and not _fits(whole, account.result_s):
        return f"it claims {whole:.3g} s, but arrived {account.result_s:.3g} s after the reveal"
    return ""


def _hurried(observed: RecordView, account: WitnessAccount) -> str:
    """A launch that claims more time than passed since the end of the previous one. A delayed note looks the same."""
    arrivals = {note.launch: note.at_s for note in account.notes}
    for number, claimed in enumerate(claimed_s(observed), start=1):
        if number - 1 in arrivals and number in arrivals:
            gap = arrivals[number] - arrivals[number - 1]
            if not _fits(claimed, gap + NOTE_S):
                return f"launch {number} claims {claimed:.3g} s, but ended {gap:.3g} s after the one before"
    return ""


def _fits(claimed_s: float, there_was_s: float) -> bool:
    return claimed_s <= there_was_s * (1 + CLOCKS) + CLOCK_S


def claimed_s(observed: RecordView) -> list[float]:
    """Seconds of load, warm-up and timed inferences that each launch claims."""
    loads = [*observed.loads, *[0] * len(observed.launches)]
    return [
        load / 1e9 + sum(launch.warmup) / 1e9 + launch.wall_s
        for load, launch in zip(loads, observed.launches, strict=False)
    ]


def explained_s(observed: RecordView) -> float:
    """Seconds in which, according to the record, a model was loaded or an inference ran. A launch's window counts by its samples, not by
    its stated length: otherwise a record with samples shorter than the real ones would leave nothing unexplained.
    """
    inferences = sum(
        sum(launch.samples) * launch.per_sample + sum(launch.warmup) for launch in observed.launches
    )
    return (inferences + sum(observed.loads) + sum(observed.warm)) / 1e9


def _other_loads_s(observed: RecordView) -> float:
    """Seconds of launches that only load, and of loads in a warm process."""
    return (sum(observed.loads[len(observed.launches) :]) + sum(observed.warm)) / 1e9


def unexplained_s(observed: RecordView, account: WitnessAccount) -> float | None:
    """Seconds of the witnessed time that nothing in the record explains; None if the witnessed time is unknown."""
    if account.result_s is None:
        return None
    return max(0.0, account.result_s - explained_s(observed))


def unrepeated(account: WitnessAccount | None) -> str:
    """Why its outputs rest on a stranger's word alone. Empty if an inference was repeated here, or the worker is no stranger."""
    if account is None or account.confirmed:
        return ""
    return f"no inference was confirmed here{f' ({account.canary})' if account.canary else ''}"


def witnessed_max_ms(observed: RecordView, account: WitnessAccount) -> float | None:
    """The maximum average milliseconds of a timed inference: whatever the record says of loads and warm-up, all inferences fitted into the
    witnessed time. None if that time is unknown.
    """
    if account.result_s is None or not observed.inferences:
        return None
    return 1000 * account.result_s / observed.inferences


def doubts(observed: RecordView, account: WitnessAccount | None) -> list[str]:
    """Why a stranger's times are not believed although nothing disproves them; empty if they are believed, or need no witness."""
    if account is None:
        return []
    reasons = [account.unwitnessed] if account.unwitnessed else []
    if account.refuted:
        reasons.append("its worker was refuted by another task of this home")
    if not account.reveal:
        return reasons or ["nobody witnessed the run"]
    launches = len(observed.launches)
    missing = launches - len({note.launch for note in account.notes})
    if missing > 0 and not account.unwitnessed:
        reasons.append(
            f"the ends of {missing} of {count(launches, 'launch', 'launches')} were not reported in time"
        )
    if hurried := _hurried(observed, account):
        reasons.append(hurried)
    unexplained = unexplained_s(observed, account)
    if unexplained is None and not reasons:
        reasons.append("its duration is unknown")
    if unexplained is not None and account.result_s:
        starts = max(len(observed.loads), launches)
        allowed = UNEXPLAINED * account.result_s + FIXED_S + LAUNCH_S * starts
        if unexplained > allowed:
            share = unexplained / account.result_s
            reasons.append(f"nothing explains {share:.0%} of the {account.result_s:.3g} s that it took")
    return reasons

"""Do replicas of one task agree? The same model on the same unit, on several devices of one class. Pure.

If a stranger ran one of the replicas, two of them count only if different owners answer for them: workers with one root can agree on a lie.

Two complete replicas disagree
    in their outputs  when their sketches are further apart than the tolerance; if either lacks a sketch, when the outputs differ and either
                      no reference says by how much, or their distances from it (MaxError) are further apart than the tolerance;
    in their times    when the 95 % intervals of their medians do not overlap and the medians differ by more than 5 % of the smaller one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from protocol.values.trust import TrustKind
from results.row.identity import device_identity, trust_root
from results.row.row import Row, RowStatus
from results.row.sketches import distance, read, tolerance_of

APART: Final = 0.05


class Agreement(StrEnum):
    """The result of comparing a replica with the others."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    ALONE = "alone"
    """No other replica of the task is complete on another device."""


def compare_replicas(rows: Sequence[Row]) -> list[Row]:
    """`rows` of one campaign, with the outcome of each replica's comparison; rows without replicas stay unchanged."""
    groups = _groups(row for row in rows if row.status is RowStatus.COMPLETE)
    siblings = {row.job_id: group for group in groups for row in group}
    return [
        row.model_copy(update=_compared(row, siblings[row.job_id])) if row.job_id in siblings else row
        for row in rows
    ]


def _groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Replicas of one task are numbered consecutively: the number before the first replica's identifies the group."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.replica is not None:
            campaign, _, number = row.job_id.rpartition("/")
            first = (int(number) if number.isdecimal() else 0) - row.replica
            groups.setdefault((campaign, first), []).append(row)
    return list(groups.values())


def _compared(row: Row, siblings: Sequence[Row]) -> dict[str, str]:
    others = [
        other
        for other in siblings
        if other.replica != row.replica and device_identity(other) != device_identity(row)
    ]
    why = "no other device has a result of this task"
    if others and any(each.trust == TrustKind.STRANGER for each in siblings):
        others = [other for other in others if trust_root(other) != trust_root(row)]
        why = f"no device that somebody else answers for has a result of this task; trust in this device: {row.trust}"
    if not others:
        return {"agreement": str(Agreement.ALONE), "agreement_reason": why}
    matches = [
        f"against replica {other.replica}: {why}" for other in others for why in differences(row, other)
    ]
    if matches:
        return {"agreement": str(Agreement.DISAGREES), "agreement_reason": "; ".join(matches)}
    text = f"with {len(others)} other replica{'s' if len(others) > 1 else ''}"
    return {"agreement": str(Agreement.AGREES), "agreement_reason": text}


def differences(one: Row, other: Row) -> list[str]:
    """How two replicas disagree, in words; empty if they agree as far as is known."""
    texts = [text] if (text := _outputs_differ(one, other)) else []
    low, high = sorted((one, other), key=lambda row: row.inference_ms_median or 0.0)
    if _apart(low, high) and low.inference_ms_median and high.inference_ms_median:
        share = high.inference_ms_median / low.inference_ms_median - 1
        if share > APART:
            text = f"{one.inference_ms_median:.4g} ms here, {other.inference_ms_median:.4g} ms there"
            texts.append(f"the median is {text} ({share:.0%} apart)")
    return texts


def _outputs_differ(one: Row, other: Row) -> str:
    """How the outputs differ, in words; empty if they do not, or if they are outputs for different inputs."""
    same_inputs = one.seed == other.seed
    if (
        not (one.output_sha256 and other.output_sha256 and same_inputs)
        or one.output_sha256 == other.output_sha256
    ):
        return ""
    outputs = [read(row.output_sha256, row.output_sketch) for row in (one, other)]
    apart = distance(outputs[0], outputs[1]) if outputs[0] and outputs[1] else None
    if outputs[0] and apart is not None:
        tolerance = tolerance_of(outputs[0])
    elif one.max_error is None or other.max_error is None:
        return "the outputs differ, and no reference says by how much"
    else:
        tolerance = min(item.tolerance or 0.0 for item in (one, other))
        apart = abs(one.max_error - other.max_error)
    return (
        f"the outputs differ by {apart:.3g} or more; {tolerance:.3g} is tolerated"
        if apart > tolerance
        else ""
    )


def _apart(low: Row, high: Row) -> bool:
    """Whether both intervals are known and do not overlap."""
    top, bottom = low.inference_ms_median_high, high.inference_ms_median_low
    return top is not None and bottom is not None and bottom > top


def disagreements(rows: Iterable[Row]) -> list[str]:
    """For people: a line for each group of replicas that includes a disagreement."""
    groups = _groups(row for row in rows if row.agreement == Agreement.DISAGREES)
    return [
        f"Replicas {', '.join(row.job_id.rpartition('/')[2] for row in group)} of {group[0].file_name} × "
        f"{group[0].compute_units} disagree: {group[0].agreement_reason}"
        for group in groups
    ]

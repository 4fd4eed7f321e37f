"""How far the answers of a model's runs differ: the same examples, on every unit of every device."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocol.errors import RemoteProtocolError
from protocol.values.record import read_record
from results.export.raw import RawResult
from results.row.row import Row, RowStatus
from results.scoring.drift import drift_between
from results.scoring.packing import outputs_of

if TYPE_CHECKING:
    import numpy as np

Outputs = Sequence["Mapping[str, np.ndarray[Any, Any]] | str"]


@dataclass(frozen=True, slots=True)
class RowDrift:
    """Drift of one run's answers from the reference run's."""

    row: Row
    reference: Row
    """The first complete run of the model with these examples, in the campaign's order."""
    alike: bool = False
    """Both runs gave the same answers, bit for bit."""
    drift: float | None = None
    """Median distance over the examples, as defined in `results.scoring.drift`; None for texts, or for the reason in `why`."""
    drift_max: float | None = None
    why: str = ""
    """Why there is no drift."""


def drifts(results: Sequence[RawResult]) -> list[RowDrift]:
    """Drift of all runs with answers, in order, except the reference run itself."""
    references: dict[tuple[str, str], tuple[Row, Outputs]] = {}
    found: list[RowDrift] = []
    for result in results:
        row = result.row
        if row.status is not RowStatus.COMPLETE or not row.answers_sha256:
            continue
        key = row.file_name, row.examples_sha256
        if key not in references:
            references[key] = row, _outputs(result)
            continue
        reference, outputs = references[key]
        if any(isinstance(output, str) for output in outputs):  # texts are equal or not, with no distance
            found.append(RowDrift(row, reference, alike=row.answers_sha256 == reference.answers_sha256))
            continue
        if row.answers_sha256 == reference.answers_sha256:
            found.append(RowDrift(row, reference, alike=True, drift=0.0, drift_max=0.0))
            continue
        try:
            apart = drift_between(_outputs(result), outputs)
        except ValueError as why:
            found.append(RowDrift(row, reference, why=str(why)))
        else:
            found.append(RowDrift(row, reference, drift=apart["drift"], drift_max=apart["drift_max"]))
    return found


def _outputs(result: RawResult) -> Outputs:
    """The outputs for each example; empty if the record or its answers cannot be read."""
    try:
        record = read_record(base64.b64decode(result.record, validate=True))
        return () if record.answers is None else outputs_of(record.answers)
    except (ValueError, RemoteProtocolError):  # of base64 too
        return ()

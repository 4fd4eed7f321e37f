"""Distinct names of devices in rows, by their workers' keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from results.row.identity import device_identity
from results.row.row import Row
from swarm.base.names import tell_apart


def with_distinct_names(rows: Sequence[Row]) -> list[Row]:
    """The rows for people: where different devices are called the same or look alike, each name ends with a key of its device."""
    names: dict[str, str] = {}
    for row in rows:
        if row.device_name and (device := device_identity(row)):
            names.setdefault(device, row.device_name)
    labels = tell_apart(names)
    shown = [labels.get(device_identity(row), row.device_name) for row in rows]
    return [
        # unchecked: a label may be longer than a name
        row if label == row.device_name else row.model_copy(update={"device_name": label})
        for row, label in zip(rows, shown, strict=True)
    ]

"""Names of devices in rows, told apart by their workers' keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from results.row.row import Row
from swarm.base.names import tell_apart


def told_apart(rows: Sequence[Row]) -> list[Row]:
    """The rows for people: where devices of different keys are called the same or look alike, each name ends with its key."""
    labels = tell_apart({key: row.device_name for row in rows if row.device_name and (key := _key(row))})
    return [
        row
        if (label := labels.get(_key(row), row.device_name)) == row.device_name
        # unchecked: a label may be longer than a name
        else row.model_copy(update={"device_name": label})
        for row in rows
    ]


def _key(row: Row) -> str:
    return row.worker_id or row.device_id

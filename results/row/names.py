"""Distinct names of devices in rows, by their workers' keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from results.row.identity import device_identity
from results.row.row import Row
from swarm.base.names import disambiguate_names


def with_distinct_names(rows: Sequence[Row]) -> list[Row]:
    """The rows for people: if different devices have the same or similar names, each name ends with a key of its device. Workers of one
    device share one name, unless a campaign measured the same on several of them.
    """
    apart = _measured_by_worker(rows)
    keys = [
        f"{row.device_id} {row.worker_id}" if device_identity(row) in apart else device_identity(row)
        for row in rows
    ]
    names: dict[str, str] = {}
    for row, key in zip(rows, keys, strict=True):
        if row.device_name and key:
            names.setdefault(key, row.device_name)
    labels = disambiguate_names(names)
    shown = [labels.get(key, row.device_name) for row, key in zip(rows, keys, strict=True)]
    return [
        # not validated: a label may be longer than a name
        row if label == row.device_name else row.model_copy(update={"device_name": label})
        for row, label in zip(rows, shown, strict=True)
    ]


def _measured_by_worker(rows: Sequence[Row]) -> set[str]:
    """Devices on which a campaign measured the same with several workers: `spread: worker`."""
    asked: dict[tuple[object, ...], str] = {}
    apart = set()
    for row in rows:
        device, campaign = device_identity(row), row.job_id.partition("/")[0]
        model = (row.file_name, row.compute_units, row.threads, row.batch, row.shapes)
        cell = (device, campaign, *model, row.sitting, row.replica)
        if device and row.worker_id and asked.setdefault(cell, row.worker_id) != row.worker_id:
            apart.add(device)
    return apart

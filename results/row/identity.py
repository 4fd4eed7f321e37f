"""Which device a row is of, and who answers for it. Pure.

A worker states its own device id, name and processor, and anybody can claim the same. So a row's device is its id together with a key: the
worker's, or, if the submitter knows several keys as workers of one machine (`scheduler.trust.identities`), the first of them. Rows with
other keys are never rows of that device.
"""

from __future__ import annotations

from typing import Protocol

from protocol.values.trust import TrustKind


class FromDevice(Protocol):
    """The fields of a row that say where it is from."""

    @property
    def device_name(self) -> str: ...

    @property
    def device_id(self) -> str: ...

    @property
    def worker_id(self) -> str: ...

    @property
    def device_key(self) -> str: ...

    @property
    def trust(self) -> str: ...


def device_identity(row: FromDevice) -> str:
    """Device id and key: equal only for rows of one device. Empty if no worker said which device it ran on."""
    return f"{row.device_id} {row.device_key or row.worker_id}".rstrip() if row.device_id else ""


def names_device(name: str, row: FromDevice) -> bool:
    """Whether `name` refers to the row's device: by its name, its id, its key, or id and key."""
    return bool(name) and name in (row.device_name, row.device_id, row.device_key, device_identity(row))


def trust_root(row: FromDevice) -> str:
    """Who answers for the row, as far as the row says. A stranger's row names no network, so all strangers count as one."""
    return row.trust if row.trust == TrustKind.STRANGER else _signer(row)


def _signer(row: FromDevice) -> str:
    if row.trust in ("", TrustKind.OWN):
        return ""
    return row.trust if row.trust.startswith(f"{TrustKind.POOL} ") else row.worker_id

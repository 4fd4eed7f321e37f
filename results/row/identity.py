"""Which device a row is of, and who answers for it. Pure.

A device id, a name and a processor are what a worker says of itself, and anybody can say the same. So a row's device is its id together
with a key: that of its worker, or where the submitter knows several keys as workers of one machine (`scheduler.trust.identities`), the
first of them. Rows of other keys are never of that device.
"""

from __future__ import annotations

from typing import Protocol

from protocol.values.trust import TrustKind


class FromDevice(Protocol):
    """The part of a row that says where it is from."""

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
    """Equal for rows of one device only: the device id and its key. Empty where no worker said on which device it was."""
    return f"{row.device_id} {row.device_key or row.worker_id}".rstrip() if row.device_id else ""


def names_device(name: str, row: FromDevice) -> bool:
    """Whether the user means the row's device by `name`: what it is called, its id, its key, or both."""
    return bool(name) and name in (row.device_name, row.device_id, row.device_key, device_identity(row))


def trust_root(row: FromDevice) -> str:
    """Who answers for the row, as far as it says: of strangers it says no network, so all of them count as one."""
    return row.trust if row.trust == TrustKind.STRANGER else _signer(row)


def _signer(row: FromDevice) -> str:
    if row.trust in ("", TrustKind.OWN):
        return ""
    return row.trust if row.trust.startswith(f"{TrustKind.POOL} ") else row.worker_id

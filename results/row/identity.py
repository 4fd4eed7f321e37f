"""Which device a row is of, and who answers for it. Pure.

A device id, a name and a processor are what a worker says of itself, and anybody can say the same. Rows of different keys are of one device
only where one signer answers for both keys: the home, or a pool. So a row's device is its id together with who answers for it.
"""

from __future__ import annotations

from typing import Protocol

from protocol.values.trust import TrustKind


class FromDevice(Protocol):
    """The part of a row that says where it is from."""

    @property
    def device_id(self) -> str: ...

    @property
    def worker_id(self) -> str: ...

    @property
    def trust(self) -> str: ...


def device_identity(row: FromDevice) -> str:
    """Equal for rows of one device only: `d1`, `d1 pool lab`, or the id with the key of a listed worker or a stranger."""
    signer = _signer(row)
    return f"{row.device_id} {signer}" if row.device_id and signer else row.device_id


def trust_root(row: FromDevice) -> str:
    """Who answers for the row, as far as it says: of strangers it says no network, so all of them count as one."""
    return row.trust if row.trust == TrustKind.STRANGER else _signer(row)


def _signer(row: FromDevice) -> str:
    if row.trust in ("", TrustKind.OWN):
        return ""
    return row.trust if row.trust.startswith(f"{TrustKind.POOL} ") else row.worker_id

"""A campaign was deleted: its scheduler has the workers that ran it forget it. Part of the work protocol."""

from __future__ import annotations

from protocol.values.lease import Epoch
from protocol.wire.base import Count, Id, Message


class Forget(Message, type="forget"):
    """Remove what is kept of this campaign: its records, its manifest, and the models that no other campaign used here. Only the key
    that signed its tasks may ask, and only once nothing of it runs. Asked again, it changes nothing."""

    campaign: Id
    epoch: Epoch
    """Under which the sender led it."""


class Forgotten(Message, type="forgotten"):
    """Nothing of the campaign is kept any more."""

    records: Count = 0
    """Removed now."""
    models: Count = 0
    size: Count = 0
    """Bytes of these models."""

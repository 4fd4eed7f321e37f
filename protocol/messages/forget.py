"""Used when a campaign was deleted: its scheduler has the workers that ran it forget it. Part of the work protocol."""

from __future__ import annotations

from protocol.values.lease import Epoch
from protocol.wire.base import Count, Id, Message


class Forget(Message, type="forget"):
    """Remove everything stored for this campaign: its records, its manifest, and the models that no other campaign used here. Only the key
    that signed its tasks may ask, and only once nothing of it runs. Repeating the call changes nothing."""

    campaign: Id
    epoch: Epoch
    """The epoch under which the sender led it."""


class Forgotten(Message, type="forgotten"):
    """Nothing of the campaign is stored any more."""

    records: Count = 0
    """Number of records removed now."""
    models: Count = 0
    size: Count = 0
    """Bytes of these models."""

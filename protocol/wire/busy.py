"""The answer of a node that has no time for a call. Part of every family."""

from __future__ import annotations

from protocol.wire.base import Message, Seconds


class Busy(Message, type="busy"):
    """The caller's bucket is empty, and nothing was done. The call may be repeated after this time."""

    retry_after_s: Seconds

"""Where the operators of a model ran, by type: part of a record."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from protocol.wire.base import Count, Line, Message

Why = Annotated[str, Field(max_length=400)]


class OperatorUse(Message):
    """The operators of one type that one provider was given or ran, in one inference apart from the timed ones."""

    op: Line
    """Such as `Conv`; what a provider compiled has that provider's name for it."""
    provider: Line
    nodes: Count | None = None
    """Of the model's graph that were given to the provider, before any were fused; None: none, or the runtime does not tell."""
    ran: Count | None = None
    """Kernels of this type that ran, each counted once; None: none."""
    ns: Count | None = None
    """All of them took, without what they called; None: not timed."""
    issued: Literal[True] | None = None
    """`ns` is the host's time to issue them; the device computes meanwhile."""
    why: Why | None = None
    """Why they are not on the unit's own provider; None: they are, or the runtime gives no reason."""
    domain: Line | None = None
    """None: ONNX's own."""

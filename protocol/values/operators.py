"""Which provider ran a model's operators, by type: part of a record."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from protocol.wire.base import Count, Line, Message

Why = Annotated[str, Field(max_length=400)]


class OperatorUse(Message):
    """The operators of one type that one provider was given or ran, in one inference separate from the timed ones."""

    op: Line
    """Such as `Conv`; operators that a provider compiled have that provider's name for them."""
    provider: Line
    nodes: Count | None = None
    """Nodes of the model's graph that the provider was given, before any were fused; None: none, or the runtime does not report it."""
    ran: Count | None = None
    """Kernels of this type that ran, each counted once; None: none."""
    ns: Count | None = None
    """Time that all of them took, without what they called; None: not timed."""
    issued: Literal[True] | None = None
    """`ns` is the host's time to issue them, while the device computes asynchronously."""
    why: Why | None = None
    """Why they are not on the unit's own provider; None: they are, or the runtime gives no reason."""
    domain: Line | None = None
    """None: ONNX's own."""

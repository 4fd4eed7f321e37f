"""The base of the values that are written as JSON, and how instants are written there."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict


class JsonModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def utc(instant: float | None, timespec: str = "seconds") -> str | None:
    """Wall seconds since 1970 for programs."""
    return None if instant is None else datetime.fromtimestamp(instant, UTC).isoformat(timespec=timespec)


def short_shapes(shapes: str) -> str:
    """`Row.shapes` for a table: `1×3×48×320` of one input, `ids 1×128 +2` of several."""
    inputs = [part.rpartition(" ") for part in shapes.split("; ") if part]
    if not inputs:
        return ""
    name, _, sizes = inputs[0]
    first = sizes.replace("x", "×")
    return first if len(inputs) == 1 else f"{name} {first} +{len(inputs) - 1}"

"""The base of the values that are written as JSON, and how instants are written there."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict


class JsonModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def utc(instant: float | None, timespec: str = "seconds") -> str | None:
    """Wall seconds since 1970 for programs."""
    return None if instant is None else datetime.fromtimestamp(instant, UTC).isoformat(timespec=timespec)

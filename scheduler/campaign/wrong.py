"""The error for one value of a campaign file. A separate module, since stored campaigns are read without the file's other checks."""

from __future__ import annotations

from pydantic_core import PydanticCustomError


def campaign_value_error(what: str, hint: str = "") -> PydanticCustomError:
    """An error for one value, with our own text."""
    return PydanticCustomError("campaign", "{what}", {"what": what, "hint": hint})

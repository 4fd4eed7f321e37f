"""The error of one value of a campaign file. A module of its own: stored campaigns are read without the other checks of the file."""

from __future__ import annotations

from pydantic_core import PydanticCustomError


def wrong(what: str, hint: str = "") -> PydanticCustomError:
    """An error of one value, in our words."""
    return PydanticCustomError("campaign", "{what}", {"what": what, "hint": hint})

"""How a model's answers are scored: the scheduler's own account, with the references that no device was given."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class EvaluationAccount(BaseModel):
    """What a model was evaluated by."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    title: str
    """For people: `classification of digits.npz`."""
    metrics: Annotated[tuple[str, ...], Field(max_length=64)]
    references: Annotated[tuple[JsonValue, ...], Field(max_length=10_000)]
    """Of each example, in their order."""

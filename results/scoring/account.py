"""How a model's answers are scored: the scheduler's own account, with the references, which no device receives."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class EvaluationAccount(BaseModel):
    """The metrics and references that a model was evaluated with."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    title: str
    """For people: `classification of digits.npz`."""
    metrics: Annotated[tuple[str, ...], Field(max_length=64)]
    references: Annotated[tuple[JsonValue, ...], Field(max_length=10_000)]
    """The reference of each example, in order."""

    @property
    def references_sha256(self) -> str:
        """The hash of all references as JSON: different labels have a different hash."""
        text = json.dumps(self.references, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

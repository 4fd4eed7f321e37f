"""How a model's answers are scored: the scheduler's own account, with the references that no device was given."""

from __future__ import annotations

import hashlib
import json
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

    @property
    def references_sha256(self) -> str:
        """The hash of all references as JSON: other labels have another one."""
        text = json.dumps(self.references, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

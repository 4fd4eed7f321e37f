"""The files of a campaign that devices need, as found on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from protocol.values.task import Model
from results.scoring.account import EvaluationAccount


class CampaignFile(NamedTuple):
    """A file that devices need."""

    source: Path | bytes | None
    """The file or folder, or its content. None: each device fetches it by its URL."""
    model: Model
    """The file as the protocol describes it."""
    account: EvaluationAccount | None = None
    """For examples: how the answers are scored."""


Models = Mapping[str, CampaignFile]
"""By name: `ModelEntry.key` for a model, `examples_key` for its examples."""

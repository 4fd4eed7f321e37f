"""Whom a campaign uses, by what its file says under `devices.trust`. Without the campaign's model: commands that ask are to start fast."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticCustomError

from protocol.values.trust import MINE, TrustScope
from scheduler.campaign.fields import read_trust


def scope_of(trust: str | tuple[str, ...]) -> TrustScope:
    """`mine`, `anyone` or peer ids, as `read_trust` gives them."""
    return TrustScope(trust == "anyone", frozenset(trust) if isinstance(trust, tuple) else frozenset())


def trust_of_spec(spec: str) -> TrustScope:
    """Whom a stored campaign uses; where that cannot be read, no more than the submitter's own."""
    try:
        campaign: Any = json.loads(spec)
        return scope_of(read_trust(campaign["devices"]["trust"]))
    except (ValueError, KeyError, TypeError, RecursionError, PydanticCustomError):
        return MINE

"""Which devices a campaign uses, from `devices.trust` in its file. Separate from the campaign's model, so that commands start fast."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticCustomError

from protocol.values.trust import MINE, TrustScope
from scheduler.campaign.fields import read_trust


def scope_of(trust: str | tuple[str, ...]) -> TrustScope:
    """The scope for `mine`, `anyone` or peer ids, as `read_trust` returns them."""
    return TrustScope(trust == "anyone", frozenset(trust) if isinstance(trust, tuple) else frozenset())


def trust_of_spec(spec: str) -> TrustScope:
    """The scope of a stored campaign; if it cannot be read, only the submitter's own devices."""
    try:
        campaign: Any = json.loads(spec)
        return scope_of(read_trust(campaign["devices"]["trust"]))
    except (ValueError, KeyError, TypeError, RecursionError, PydanticCustomError):
        return MINE

"""The trust of a stored campaign, read without its model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.values.trust import MINE, TrustScope
from scheduler.campaign.model import Campaign
from scheduler.campaign.trust import trust_of_spec
from tests.scheduler.core_parts import PEERS

MODELS = [{"name": "m", "path": "m.onnx"}]


@pytest.mark.parametrize("trust", ["mine", "anyone", [PEERS[0]], [PEERS[1], PEERS[0], PEERS[1]]])
def test_what_the_model_stores_is_read_as_the_model_reads_it(trust: Any) -> None:
    campaign = Campaign.model_validate_json(
        json.dumps({"campaign": "one", "models": MODELS, "devices": {"trust": trust}})
    )
    spec = campaign.spec()
    assert trust_of_spec(spec) == campaign.trust
    assert campaign.trust == TrustScope(
        trust == "anyone", frozenset(trust if isinstance(trust, list) else ())
    )


@pytest.mark.parametrize(
    "spec",
    ["", "{", "[" * 100_000, "[]", "null", "{}", '{"devices": null}', '{"devices": {}}']
    + [
        json.dumps({"devices": {"trust": trust}})
        for trust in (None, 1, True, "", "everyone", [], {}, ["anyone"], [PEERS[0], 7], [["anyone"]])
    ],
)
def test_of_one_that_cannot_be_read_only_the_submitters_own_are_used(spec: str) -> None:
    assert trust_of_spec(spec) == MINE

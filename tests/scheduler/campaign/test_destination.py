"""`results:` of a campaign: which URLs are accepted, and that neither secrets nor devices appear in them."""

from __future__ import annotations

import json

import pytest

from protocol.errors import CampaignError
from scheduler.campaign.destination import results_of_spec
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.text import campaign_text, spec_for_devices

TEXT = "campaign: t\nmodels: [m.onnx]\nunits: [CPU (ONNX)]\n"


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("gs://bucket", "gs://bucket"),
        ("file:///srv/results", "file:///srv/results"),
        ("memory://x", "memory://x"),
    ],
)
def test_a_place_is_kept_with_the_campaign_and_hidden_from_devices(url: str, kept: str) -> None:
    campaign = parse_campaign(f"{TEXT}results: {url}\n".encode(), "c.yaml")
    spec = campaign.spec()
    assert results_of_spec(spec) == kept
    assert f"results: {kept}" in campaign_text(campaign)
    assert kept not in spec_for_devices(spec)
    assert json.loads(spec_for_devices(spec)) == {
        key: value for key, value in json.loads(spec).items() if key != "results"
    }


def test_a_campaign_without_one_is_given_to_devices_byte_for_byte() -> None:
    spec = parse_campaign(TEXT.encode(), "c.yaml").spec()
    assert spec_for_devices(spec) == spec
    assert "results" not in spec


@pytest.mark.parametrize(
    ("url", "what", "hint"),
    [
        ("s3://key:s3cret@bucket/x", "must not contain a user name or password", "write s3://bucket/prefix"),
        ("s3://key@bucket/x", "must not contain a user name or password", "AWS_ACCESS_KEY_ID"),
        ("az://c/x?sig=s3cret", "not have a query, which may contain a key", "s3://bucket/prefix"),
        ("https://example.org/put", "results cannot be written to https", "s3://bucket/prefix"),
        ("bucket/prefix", "not the URL of a place", "s3://bucket/prefix"),
        ("simplecache::s3://bucket/x", "not the URL of a place", "s3://bucket/prefix"),
        ("s3:///x", "names no bucket", "s3://bucket/prefix"),
        ("s3://bucket/../other", "not have .. in its path", "s3://bucket/prefix"),
        ("file://host/x", "three slashes", "file:///srv/results"),
        ("file:///", "three slashes", "file:///srv/results"),
    ],
)
def test_what_is_no_place_or_holds_a_secret_is_refused_with_the_right_form(
    url: str, what: str, hint: str
) -> None:
    with pytest.raises(CampaignError, match=r"c\.yaml:4") as refused:
        parse_campaign(f'{TEXT}results: "{url}"\n'.encode(), "c.yaml")
    assert what in str(refused.value)
    assert hint in refused.value.hint
    assert "s3cret" not in str(refused.value) + refused.value.hint

"""A deleted campaign leaves nothing on this machine except what others need."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from scheduler.campaign.load import parse_campaign
from scheduler.experiments.confirm import (
    begin_confirmations,
    confirmation_of,
    good_models,
    settle_confirmations,
)
from scheduler.experiments.deletion import delete_campaign
from scheduler.experiments.view import history_view
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.net.identity import load_or_create
from tests.scheduler.core_parts import a_task
from tests.scheduler.experiments.test_confirm import NEW, OLD, Nights, in_turns, nights

__all__ = ["nights"]
URL = "https://example.org/m.onnx"
SPEC = parse_campaign(
    f"campaign: t\nmodels: [{{url: {URL}}}]\nunits: [CPU (ONNX)]\n".encode(), "c.yaml"
).spec()
SHA = "a" * 64


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home.at(tmp_path)
    load_or_create(made.key("scheduler"))
    return made


def ended(home: Home, campaign: str, sha256: str = SHA) -> Path:
    """A campaign without tasks that has ended; returns the copy of its model."""
    with Store(home.store) as store:
        new = NewCampaign(campaign, "t", "me", SPEC)
        store.campaigns.create(new, [NewModel("m.onnx", sha256, 3)], [])
        store.campaigns.end(campaign)
    home.spool.mkdir(parents=True, exist_ok=True)
    copy = home.spool / sha256
    copy.write_bytes(b"abc")
    os.utime(copy, (1, 1))
    return copy


def test_files_models_and_downloads_go_with_their_last_campaign(home: Home) -> None:
    copy = ended(home, "c-one")
    ended(home, "c-two")
    folder = home.cache / "downloads" / hashlib.sha256(URL.encode()).hexdigest()[:32]
    folder.mkdir(parents=True)
    (folder / "model").write_bytes(b"abc")
    written = home.data / "results" / "c-one"
    written.mkdir(parents=True)
    (written / "results.csv").write_text("x,y\n")
    others = home.data / "results" / "c-two"
    others.mkdir()
    with Store(home.store) as store:
        one = delete_campaign(home, store, "c-one")
        assert (one.files, one.size, one.devices, one.run_of) == (1, 4, (), None)
        assert not written.exists()
        assert others.exists()
        assert copy.exists(), "c-two has it too"
        assert store.campaigns.models("c-one") == ()
        two = delete_campaign(home, store, "c-two")
        assert (two.files, two.size) == (2, 6)
        assert not copy.exists()
        assert not (folder / "model").exists()
        with pytest.raises(CampaignError, match="no campaign 'c-two' on this home"):
            delete_campaign(home, store, "c-two")


def test_a_copy_that_a_submit_has_just_touched_stays(home: Home) -> None:
    copy = ended(home, "c-one")
    os.utime(copy)  # as `spool` does for a campaign that is not stored yet
    with Store(home.store) as store:
        delete_campaign(home, store, "c-one")
    assert copy.exists()


def test_a_copy_that_an_open_campaign_needs_stays(home: Home) -> None:
    copy = ended(home, "c-one")
    with Store(home.store) as store:
        store.campaigns.create(
            NewCampaign("c-open", "t", "me", SPEC),
            [NewModel("m.onnx", SHA, 3)],
            [a_task(1, campaign="c-open")],
        )
        delete_campaign(home, store, "c-one")
        assert copy.exists()
        with pytest.raises(CampaignError, match="c-open has not ended"):
            delete_campaign(home, store, "c-open")


def test_a_run_leaves_the_history_and_is_no_base_any_more(nights: Nights) -> None:
    nights.night(OLD, 10)
    good = nights.runs[-1]
    nights.night(OLD, 10)
    deleted = delete_campaign(nights.home, nights.store, good)
    assert deleted.run_of == "nightly@1"
    assert [run.campaign for run in history_view(nights.store, "nightly", limit=9).runs] == nights.runs[1:]
    assert delete_campaign(nights.home, nights.store, nights.runs[1]).run_of == "nightly@1"
    assert good_models(nights.store) == frozenset()


def test_a_run_that_is_measured_again_waits_with_its_deletion_for_the_finding(nights: Nights) -> None:
    nights.night(OLD, 10)
    slower = nights.night(NEW, 13).campaign
    begin_confirmations(nights.home, nights.store)
    again = confirmation_of(slower)
    with pytest.raises(CampaignError, match="is being measured again before nightly reports it"):
        delete_campaign(nights.home, nights.store, slower)
    nights.finish(nights.again(), in_turns(nights.again(), 1.3))
    with pytest.raises(
        CampaignError, match=f"{again} measures {slower} again, and the finding of {slower} waits for it"
    ):
        delete_campaign(nights.home, nights.store, again)
    settle_confirmations(nights.store)
    for campaign in (again, slower):
        delete_campaign(nights.home, nights.store, campaign)
        assert nights.store.campaigns.get(campaign) is None

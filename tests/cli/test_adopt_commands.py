"""Adopting a campaign on another machine: errors in what is typed, and what is on disk afterwards."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from protocol.errors import CampaignError, NotPermitted
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from scheduler.adoption.remote import CurrentLeader
from scheduler.adoption.token import Handover, passed_on, write_handover
from scheduler.cli.adopt import already_here
from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.net.identity import Identity, load_or_create
from swarm.pools.membership import Credential, credentials
from tests.cli.conftest import Typed

ANN, BOB = Identity.from_seed("ann"), Identity.from_seed("bob")
CAMPAIGN = "c-abcdefgh"
NOBODY = f"/ip4/127.0.0.1/tcp/1/p2p/{ANN.peer_id}"


@pytest.mark.parametrize("lasts", ["infd", "nand", "-3d", "0d", "0h", "99999d", "d", "7", "1e9d"])
def test_a_time_that_a_delegation_cannot_last_is_bad_input(typed: Typed, lasts: str) -> None:
    done = typed("delegate", CAMPAIGN, "--to", BOB.peer_id, "--ttl", lasts)
    assert done.code == 2
    assert f"--ttl {lasts}: " in done.err
    assert "2h, 90d" in done.err or "between 1ms and 3650d" in done.err


def test_a_key_does_not_become_this_homes_before_the_campaign_was_found(typed: Typed, tmp_path: Path) -> None:
    file, home = tmp_path / "copied.key", Home.at(typed.home)
    owner = load_or_create(file)
    done = typed("adopt", CAMPAIGN, "--key", file, "--gate", NOBODY)
    assert done.code == 4
    assert not home.key("scheduler").exists()
    mine = load_or_create(home.key("scheduler"))
    assert mine.peer_id != owner.peer_id
    assert typed("adopt", CAMPAIGN, "--key", file, "--gate", NOBODY).code == 4
    assert load_or_create(home.key("scheduler")).peer_id == mine.peer_id


def test_a_token_is_of_no_use_to_another_home(typed: Typed) -> None:
    tokens = passed_on(ANN, (), BOB.peer_id, CAMPAIGN, own=True, lasts_s=60.0, now=time.time())
    text = write_handover(Handover(campaign=CAMPAIGN, owner=ANN.peer_id, tokens=tokens))
    done = typed("adopt", CAMPAIGN, "--token", text, "--gate", NOBODY)
    assert done.code == 5
    assert "is bound to" in done.err


def test_a_campaign_that_another_machine_runs_cannot_be_cancelled_from_here(typed: Typed) -> None:
    done = typed("cancel", CAMPAIGN)
    assert done.code == 2
    assert f"sark-node adopt {CAMPAIGN}" in done.err


def adopted(home: Home, owner: Identity = ANN) -> Store:
    """The store of a home that has adopted a campaign of `owner`."""
    store = Store(home.store)
    task = Task(
        campaign=CAMPAIGN,
        task=f"{CAMPAIGN}/1",
        scheduler=owner.peer_id,
        model=Model(name="m.onnx", sha256="ab" * 32, size=10),
        unit="CPU (ONNX)",
        requirement=Requirement(),
        measure=Measure(),
        timeouts=Timeouts(),
    )
    store.campaigns.create(NewCampaign(CAMPAIGN, "one", owner.peer_id, "{}"), [], [task])
    return store


def speaks(lasts_s: float) -> CurrentLeader:
    """Bob as leader, with a token of Ann's."""
    now = time.time()
    made = passed_on(ANN, (), BOB.peer_id, CAMPAIGN, own=True, lasts_s=lasts_s, now=now)
    held = [
        Credential(issuer=one.issuer, token=one.token, expires=now + lasts_s, campaign=CAMPAIGN)
        for one in made
    ]
    return CurrentLeader(BOB, ANN.peer_id, held, own=False)


def test_a_newer_token_for_a_campaign_that_is_here_is_kept_in_place_of_the_old_one(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    with adopted(home) as store:
        for lasts_s in (600.0, 3600.0):
            result = already_here(home, store, CAMPAIGN, None, speaks(lasts_s), renew=True)
            assert result == "The new token is stored."
    (held,) = credentials(home, now=time.time())
    assert held.expires > time.time() + 3000


def test_without_a_newer_token_or_models_a_campaign_that_is_here_is_not_adopted_again(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    with adopted(home) as store:
        with pytest.raises(CampaignError, match="already on this home"):
            already_here(home, store, CAMPAIGN, None, speaks(60.0), renew=False)
        assert already_here(home, store, "c-another", None, speaks(60.0), renew=True) == ""


def test_a_token_of_somebody_elses_is_not_kept_for_a_campaign(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    with adopted(home, BOB) as store, pytest.raises(NotPermitted, match="not from the owner"):
        already_here(home, store, CAMPAIGN, None, speaks(60.0), renew=True)
    assert credentials(home, now=time.time()) == ()

"""`sark-node delete` as typed."""

from __future__ import annotations

import json

from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from swarm.base.home import Home
from tests.cli.conftest import Typed
from tests.scheduler.core_parts import a_task


def campaigns(typed: Typed, *names: str, running: str = "") -> None:
    home = Home.at(typed.home)
    home.store.parent.mkdir(parents=True)
    with Store(home.store) as store:
        for name in names:
            store.campaigns.create(NewCampaign(name, "t", "somebody", "{}"), [], [])
            store.campaigns.end(name)
        if running:
            store.campaigns.create(NewCampaign(running, "t", "me", "{}"), [], [a_task(1, campaign=running)])


def left(typed: Typed) -> set[str]:
    with Store(Home.at(typed.home).store) as store:
        return {item.campaign.id for item in store.campaigns.summaries()}


def test_it_deletes_what_has_ended_and_nothing_when_one_of_them_runs(typed: Typed) -> None:
    campaigns(typed, "c-one", "c-two", running="c-open")
    refused = typed("delete", "--yes", "c-one", "c-open")
    assert refused.code == 2
    assert "c-open has not ended" in refused.err
    assert "sark-node cancel c-open" in refused.err
    unsure = typed("delete", "c-one")
    assert (unsure.code, "sark-node delete --yes CAMPAIGN" in unsure.err) == (2, True)
    assert typed("delete", "--yes", "c-none").code == 2
    assert left(typed) == {"c-one", "c-two", "c-open"}
    done = typed("delete", "--yes", "c-one")
    assert (done.code, done.out) == (0, "c-one is deleted: 0 tasks, 0 records.\n")
    reply = json.loads(typed("delete", "--yes", "--json", "c-two").out)
    assert [(one["campaign"], one["waits_for"]) for one in reply["deleted"]] == [("c-two", [])]
    assert left(typed) == {"c-open"}

"""`sark-node db` as typed: on a home's file, and moving that file to a server."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path

import pytest

from scheduler.store.retention import FILE, ObservedTime, write_observed
from scheduler.store.rows import NewCampaign
from scheduler.store.store import open_store
from swarm.base.home import Home
from swarm.base.units import DAY_S
from tests.cli.conftest import Typed
from tests.scheduler.core_parts import SCHEDULER, a_task


def a_campaign(typed: Typed, campaign: str, *, ended: bool = True) -> None:
    with open_store(Home.at(typed.home)) as store:
        tasks = [] if ended else [a_task(1, campaign=campaign)]
        store.campaigns.create(NewCampaign(campaign, "one", SCHEDULER, "{}"), [], tasks)
        if ended:
            store.campaigns.end(campaign)


def on(typed: Typed, text: str) -> None:
    """Write these scheduler settings."""
    home = Home.at(typed.home)
    home.config.mkdir(parents=True, exist_ok=True)
    home.config_file.write_text(f"[scheduler]\n{text}\n")


def campaigns(typed: Typed) -> set[str]:
    document = json.loads(typed("campaigns", "--json").out)
    return {item["campaign_id"] for item in document["campaigns"]}


def test_info_and_migrate_say_where_the_store_is_and_what_is_in_it(typed: Typed) -> None:
    assert "was created" in typed("db", "migrate").out
    assert "the current one" in typed("db", "migrate").out
    a_campaign(typed, "c-one", ended=False)
    output = typed("db", "info")
    assert output.code == 0
    assert "store.db" in output.out
    assert "1, 1 open" in output.out
    as_json = json.loads(typed("db", "info", "--json").out)
    assert (as_json["rows"]["campaigns"], as_json["open_campaigns"], as_json["keep"]) == (1, 1, None)


def test_info_says_that_a_clock_far_ahead_is_not_believed(typed: Typed) -> None:
    on(typed, 'keep = "100 d"')
    seen = Home.at(typed.home).folder("scheduler") / FILE
    write_observed(seen, ObservedTime(time.time() - 20 * DAY_S))
    assert "the clock is" not in typed("db", "info").out
    write_observed(seen, ObservedTime(time.time() - 30 * DAY_S))
    output = typed("db", "info").out
    assert "the clock is 30 d" in output
    assert "ahead of the latest time that this home has seen" in output
    assert "sark-node db prune --clock-is-right" in output
    assert json.loads(typed("db", "info", "--json").out)["clock_ahead_s"] >= 30 * DAY_S


@pytest.mark.slow
def test_a_backup_is_put_back_only_where_nothing_is_lost_by_it_unless_that_is_said(
    typed: Typed, tmp_path: Path
) -> None:
    a_campaign(typed, "c-one")
    saved, exported = tmp_path / "saved.db", tmp_path / "all.gz"
    assert "wrote 1 campaign to" in typed("db", "backup", saved).out
    assert saved.stat().st_mode & 0o777 == 0o600
    assert typed("db", "export", exported).code == 0
    again = typed("db", "backup", saved)
    assert (again.code, "already exists" in again.err) == (2, True)
    a_campaign(typed, "c-two")
    refused = typed("db", "restore", saved)
    assert refused.code == 2
    assert "--replace" in refused.err
    for file in (saved, exported):
        assert "restored 1 campaign from" in typed("db", "restore", file, "--replace").out
        assert campaigns(typed) == {"c-one"}
    a_campaign(typed, "c-two")
    assert "imported 0 campaigns; 1 already existed" in typed("db", "import", exported).out
    assert campaigns(typed) == {"c-one", "c-two"}


def test_a_home_moves_to_a_server_and_back(typed: Typed, tmp_path: Path, postgres: str) -> None:
    a_campaign(typed, "c-one")
    a_campaign(typed, "c-open", ended=False)
    file, back = tmp_path / "all.gz", tmp_path / "back.gz"
    typed("db", "export", file)
    on(typed, f'store = "{postgres.replace("sark@", f"sark:{secrets.token_hex(8)}@")}"')
    assert campaigns(typed) == set()
    output = typed("db", "import", file)
    assert "imported 1 campaign" in output.out
    assert "1 unfinished campaign left out" in output.out
    assert "imported 1 campaign; 1 already existed" in typed("db", "import", "--open", file).out
    output = typed("db", "info")
    assert "PostgreSQL" in output.out
    assert "fsync" in output.out, "the server of these tests has it turned off"
    password = Home.at(typed.home).config_file.read_text().split(":")[2].split("@")[0]
    assert password not in output.out
    a_campaign(typed, "c-new")
    assert "wrote 3 campaigns to" in typed("db", "backup", back).out
    on(typed, "")
    typed("db", "restore", "--replace", back)
    assert campaigns(typed) == {"c-one", "c-open", "c-new"}


def test_what_ended_long_ago_is_removed_when_that_is_asked_for(typed: Typed) -> None:
    with open_store(Home.at(typed.home)) as store:
        store.database.wall = lambda: time.time() - 100 * 86_400
        store.campaigns.create(NewCampaign("c-old", "old", SCHEDULER, "{}"), [], [])
        store.campaigns.end("c-old")
        store.campaigns.create(NewCampaign("c-open", "open", SCHEDULER, "{}"), [], None)
    a_campaign(typed, "c-new")
    assert typed("db", "prune").code == 2
    assert typed("db", "prune", "--older-than", "soon").code == 2
    assert typed("db", "prune", "--older-than", "90d", "--dry-run").out == "c-old  old\n"
    assert typed("db", "prune", "--older-than", "1y").out == "deleted 0 campaigns\n"
    assert typed("db", "prune", "--older-than", "90d", "--keep", "5").out == "deleted 0 campaigns\n"
    on(typed, 'keep = "90d"')
    assert typed("db", "prune").out == "deleted 1 campaign\n"
    assert campaigns(typed) == {"c-open", "c-new"}


def test_a_file_that_is_no_backup_changes_nothing(typed: Typed, tmp_path: Path) -> None:
    a_campaign(typed, "c-one")
    junk = tmp_path / "junk"
    junk.write_bytes(b"junk")
    for words in (("restore", "--replace"), ("import",)):
        output = typed("db", *words, junk)
        assert output.code == 2
        assert "gzip" in output.err
    assert typed("db", "import", tmp_path / "nothing").code == 2
    assert campaigns(typed) == {"c-one"}


def test_a_wrong_address_of_a_server_is_reported_without_its_password(typed: Typed) -> None:
    for url in ("postgresql://sark:hunter2@127.0.0.1:1/db", "mysql://sark:hunter2@h/db"):
        on(typed, f'store = "{url}"')
        output = typed("campaigns")
        assert output.code in (2, 6)
        assert "hunter2" not in output.err + output.out
    assert typed("info").code in (0, 2)

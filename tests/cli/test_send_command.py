"""`sark-node results --send` as typed, and a campaign file that this machine could not serve."""

from __future__ import annotations

import json
from pathlib import Path

from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from swarm.base.home import Home
from tests.cli.conftest import Typed


def test_results_are_sent_by_hand_and_a_secret_in_the_url_is_refused(typed: Typed, tmp_path: Path) -> None:
    home = Home.at(typed.home)
    home.store.parent.mkdir(parents=True)
    with Store(home.store) as store:
        store.campaigns.create(NewCampaign("c-one", "t", "me", "{}"), [], [])
        assert typed("results", "c-one", "--send", "file:///x").code == 2, "it has not ended"
        store.campaigns.end("c-one")
    url = f"file://{tmp_path}/out"
    done = typed("results", "c-one", "--send", url)
    assert (done.code, done.err) == (0, f"wrote the results of c-one to {url}/c-one\n")
    assert json.loads((tmp_path / "out" / "c-one" / "index.json").read_text())["campaign"] == "c-one"
    secret = typed("results", "c-one", "--send", "s3://key:s3cret@bucket/x")
    assert secret.code == 2
    assert "a results URL must not contain a user name or password" in secret.err
    assert "s3cret" not in secret.err
    (tmp_path / "closed").write_text("a file")
    closed = typed("results", "c-one", "--send", f"file://{tmp_path}/closed")
    assert closed.code == 6
    assert f"results of c-one cannot be written to file://{tmp_path}/closed/c-one: " in closed.err

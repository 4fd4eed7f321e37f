"""A model by URL, from end to end: fetched at submission, measured on devices, and identified by its hash from then on, whatever the URL
serves later.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.real.lab import Lab, campaign
from tests.swarm.web_parts import web_beside


def test_a_campaign_by_url_runs_what_the_url_held_when_it_was_submitted(lab: Lab, tmp_path: Path) -> None:
    first, second = (json.dumps({"load_ms": load, "latencies_ms": [2.0]}).encode() for load in (3.0, 40.0))
    with web_beside() as site:
        url = f"http://127.0.0.1:{site.port}/m.json"
        file = campaign(tmp_path, "by-url", [url])
        site.file("/m.json", first, tag='"first"')
        checked = lab.run("carol", "validate", file, "--json")
        assert checked.code == 0, checked
        assert checked.json()["models"]["m.json"]["sha256"] == hashlib.sha256(first).hexdigest()
        done = lab.submit("carol", file)
        assert done.code == 0, done
        site.file("/m.json", second, tag='"second"')
        again = lab.submit("carol", file)
        assert again.code == 0, again
        hashes = lab.ask("carol", "SELECT sha256 FROM models ORDER BY rowid")
        assert {each for (each,) in hashes} >= {hashlib.sha256(data).hexdigest() for data in (first, second)}
        assert all(set(request.headers) <= KNOWN for request in site.asked)


def test_a_url_that_gives_no_model_is_one_line_and_stores_nothing(lab: Lab, tmp_path: Path) -> None:
    with web_beside() as site:
        file = campaign(tmp_path, "no-url", [f"http://127.0.0.1:{site.port}/gone.json"])
        before = (
            lab.ask("carol", "SELECT count(*) FROM campaigns") if lab.home("carol").store.exists() else []
        )
        done = lab.submit("carol", file)
        assert done.code == 2, done
        assert "the server has no such file (404)" in done.err
        assert "Traceback" not in done.err
        if before:
            assert lab.ask("carol", "SELECT count(*) FROM campaigns") == before


KNOWN = {"host", "user-agent", "accept", "accept-encoding", "connection", "range", "if-range"}

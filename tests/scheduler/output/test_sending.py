"""Results written to a URL: whole files with the index last, again without harm, and one clear line when it fails."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from protocol.errors import ResourceError
from results.row.row import COLUMNS
from scheduler.campaign.load import parse_campaign
from scheduler.output.sending import check_storage, send_results
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from scheduler.submit.submit import store_campaign
from swarm.base.home import Home
from tests.scheduler.core_parts import SCHEDULER, a_task
from tests.web.conftest import StoreWriter

NAMES = ["index.json", "raw.json", "report.html", "results.csv"]
MODEL = NewModel("m.onnx", "ab" * 32, 7)


def spec(url: str) -> str:
    text = f"campaign: t\nmodels: [m.onnx]\nunits: [CPU (ONNX)]\nresults: {url}\n"
    return parse_campaign(text.encode(), "c.yaml").spec()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    home = Home.at(tmp_path / "home")
    home.store.parent.mkdir(parents=True)
    made = StoreWriter(home)
    yield made
    made.store.close()


def ended(writer: StoreWriter, url: str) -> Store:
    task = writer.task("c-one", 1)
    writer.store.campaigns.create(NewCampaign("c-one", "t", SCHEDULER, spec(url)), [MODEL], [task])
    writer.succeed(task.task)
    writer.store.campaigns.end("c-one")
    return writer.store


def written(fs: Any, folder: str) -> dict[str, bytes]:
    return {path.rsplit("/", 1)[1]: fs.cat_file(path) for path in fs.find(folder)}


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_every_file_is_there_as_the_index_says_and_again_is_the_same(
    writer: StoreWriter, tmp_path: Path, scheme: str
) -> None:
    url = f"memory://{tmp_path.name}" if scheme == "memory" else f"file://{tmp_path}/out"
    store = ended(writer, url)
    assert send_results(store, "c-one", url, lambda: 1e9) == f"{url}/c-one"
    fs, folder = fsspec.core.url_to_fs(f"{url}/c-one")
    files = written(fs, folder)
    assert sorted(files) == NAMES, "and nothing half-written"
    index = json.loads(files["index.json"])
    assert index["campaign"] == "c-one"
    for name, known in index["files"].items():
        assert known == {"sha256": hashlib.sha256(files[name]).hexdigest(), "size": len(files[name])}
    lines = files["results.csv"].decode().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert f"{url}/c-one" in lines[1], "the row says where it is"
    assert f"{url}/c-one" in files["report.html"].decode()
    assert send_results(store, "c-one", url, lambda: 1e9)
    assert written(fs, folder) == files


def test_the_index_is_written_last(
    writer: StoreWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{tmp_path.name}"
    store, memory = ended(writer, url), fsspec.filesystem("memory")

    class Full(type(memory)):  # type: ignore[misc]  (the class of a double is known at run time only)
        def put_file(self, source: str, target: str, **more: Any) -> None:
            if target.endswith("report.html"):
                raise OSError("no space: https://h/x?X-Amz-Signature=s3cret")
            super().put_file(source, target, **more)

    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda target: (Full(), f"/{tmp_path.name}/c-one"))
    with pytest.raises(ResourceError) as failed:
        send_results(store, "c-one", url)
    assert failed.value.what == f"results of c-one cannot be written to {url}/c-one: no space: https://h/x?…"
    assert f"sark-node results c-one --send {url}" in failed.value.hint
    assert sorted(written(memory, f"/{tmp_path.name}/c-one")) == ["raw.json"]
    assert store.results.rows("c-one"), "the results here are as they were"


def test_without_the_extra_or_a_package_for_the_place_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_storage("memory://x")
    with pytest.raises(ResourceError, match="no installed package writes to floppy://"):
        check_storage("floppy://x")
    with pytest.raises(ResourceError, match="results: gs:// needs a package that is not installed") as other:
        check_storage("gs://bucket")
    assert "gcsfs" in other.value.hint
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ResourceError, match=r"results: s3:// needs the extra \[storage\]$") as missing:
        check_storage("s3://bucket")
    assert missing.value.hint == "python -m pip install 'sark-node[storage]'"


def test_what_is_due_is_what_has_ended_here_and_was_not_sent(writer: StoreWriter) -> None:
    url = "memory://x"
    store = writer.store
    task = a_task(1, campaign="c-open")
    store.campaigns.create(NewCampaign("c-open", "t", SCHEDULER, spec(url)), [MODEL], [task])
    assert store.sendings.due(SCHEDULER) == ()
    ended(writer, url)
    assert store.sendings.due("another key") == (), "as of an imported copy"
    assert [(row.campaign, row.url) for row in store.sendings.due(SCHEDULER)] == [("c-one", url)]
    store.sendings.settle("c-one", url, "no bucket")
    (row,) = store.sendings.due(SCHEDULER)
    assert (row.tries, row.why) == (1, "no bucket")
    store.sendings.settle("c-one", "memory://elsewhere")
    assert store.sendings.due(SCHEDULER), "it was sent, but not there"
    store.sendings.settle("c-one", url)
    assert store.sendings.due(SCHEDULER) == ()
    names = [event.name for event in store.events.all("c-one")]
    assert names[-2:] == ["results.not-sent", "results.sent"]


def test_a_campaign_whose_results_no_package_here_can_write_is_not_stored(
    writer: StoreWriter, tmp_path: Path
) -> None:
    text = "campaign: t\nmodels: [m.onnx]\nunits: [CPU (ONNX)]\nresults: floppy://a/b\n"
    campaign = parse_campaign(text.encode(), "c.yaml")
    with pytest.raises(ResourceError, match="no installed package writes to floppy://"):
        store_campaign(Home.at(tmp_path / "home"), writer.store, campaign, {}, folder="", wait_s=60.0)
    assert writer.store.campaigns.summaries() == ()

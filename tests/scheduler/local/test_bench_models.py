"""Models by URL for `bench`: from a real server on loopback, measured under their own names, and removed when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from protocol.errors import CampaignError
from scheduler.campaign.model import ModelEntry
from scheduler.cli.bench import add_bench
from scheduler.local.bench import local_paths
from scheduler.models.describe import Fetch
from scheduler.models.fetch import downloader
from swarm.base.home import Home
from tests.scheduler.local.test_bench import Scripted
from tests.swarm.web_parts import Web, web_beside
from tests.tiny_onnx import tiny_onnx

DATA = tiny_onnx("a model " * 1000)
ARGUMENTS = ["--runs", "20", "--loads", "1"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


@pytest.fixture
def site() -> Iterator[Web]:
    with web_beside() as made:
        yield made


@pytest.fixture
def fetch(home: Home) -> Fetch:
    home.cache.mkdir(parents=True)
    return downloader(home, lambda *progress: None, retry_delay_s=0.01)


def test_a_model_by_url_is_measured_under_its_own_name_and_fetched_once(home: Home, site: Web) -> None:
    site.file("/x/net%201.onnx", DATA)
    app, device = typer.Typer(), Scripted({"net 1.onnx": 500})
    add_bench(app, lambda home, simulate: device)
    url = f"http://127.0.0.1:{site.port}/x/net%201.onnx"
    done = CliRunner().invoke(app, [url, url, *ARGUMENTS], obj=home)
    assert done.exit_code == 0, done.output
    assert [name for name, _ in device.asked] == ["net 1.onnx", "net 1.onnx"]
    assert "fetching net 1.onnx" in done.stderr
    assert [request.headers.get("range") for request in site.asked] == [None, f"bytes={len(DATA) - 1}-"]


def test_files_and_urls_may_be_compared(home: Home, site: Web, tmp_path: Path) -> None:
    site.file("/new.onnx", DATA)
    old = tmp_path / "old.onnx"
    old.write_bytes(DATA)
    app = typer.Typer()
    add_bench(app, lambda home, simulate: Scripted({"old.onnx": 500, "new.onnx": 250}))
    done = CliRunner().invoke(
        app, [str(old), f"http://127.0.0.1:{site.port}/new.onnx", "--compare"], obj=home
    )
    assert "FASTER" in done.stdout


def test_what_was_fetched_has_its_bytes_and_its_name_for_the_block_alone(
    home: Home, site: Web, fetch: Fetch
) -> None:
    site.file("/m.onnx", DATA)
    with local_paths([f"http://127.0.0.1:{site.port}/m.onnx"], home.cache, fetch) as (path,):
        assert (path.name, path.read_bytes()) == ("m.onnx", DATA)
    assert not path.exists()
    assert [each.name for each in home.cache.iterdir()] == ["downloads"]


@pytest.mark.parametrize("name", ["..%2F..%2Fevil.onnx", "..%5Cevil.onnx", "%2Fetc%2Fevil.onnx"])
def test_a_name_in_a_url_leads_out_of_no_folder(home: Home, site: Web, fetch: Fetch, name: str) -> None:
    site.file(f"/{name}", DATA)
    with local_paths([f"http://127.0.0.1:{site.port}/{name}"], home.cache, fetch) as (path,):
        assert path.resolve().is_relative_to(home.cache.resolve())
        assert path.name.endswith("evil.onnx")


def test_a_file_url_is_the_file_itself(home: Home, tmp_path: Path, fetch: Fetch) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(DATA)
    with local_paths([file.as_uri()], home.cache, fetch) as opened:
        assert opened == (file,)


def test_a_file_at_hugging_face_comes_by_their_library_under_its_name(home: Home, tmp_path: Path) -> None:
    stored = tmp_path / "blobs" / "m.onnx"
    stored.parent.mkdir()
    stored.write_bytes(DATA)

    def fetch(entry: ModelEntry) -> Path:
        assert entry.url == "hf://a/b/m.onnx@v1"
        return stored

    with local_paths(["hf://a/b/m.onnx@v1"], home.cache, fetch) as opened:
        assert opened == (stored,)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere.onnx", "there is no such file"),
        ("file:///nowhere/m.onnx", "there is no such file"),
        ("https://user:s3cret@a.org/m.onnx", "before @"),
        ("hf://a/b", "hf://ORG/REPO"),
        ("http://127.0.0.1:1/m.onnx?key=s3cret", "cannot be fetched now"),
    ],
)
def test_an_unavailable_model_is_a_one_line_error(home: Home, fetch: Fetch, name: str, why: str) -> None:
    with pytest.raises(CampaignError, match=why) as error, local_paths([name], home.cache, fetch):
        pass
    assert "s3cret" not in f"{error.value} {error.value.hint}"

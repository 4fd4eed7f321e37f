"""Models by URL at submit: fetched once from a real server on loopback, kept, resumed, and identified by their sha256 from then on."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from protocol.errors import CampaignError, Refused, ResourceError
from protocol.words import Reason
from scheduler.campaign.load import parse_campaign
from scheduler.models import fetch as fetch_module
from scheduler.models.describe import describe_models
from scheduler.models.fetch import INSTALL, KEEP_S, DownloadProgress, downloader, from_hub
from scheduler.planning.tasks import derive_cells, tasks_of
from scheduler.store.store import Store
from scheduler.submit.submit import submit_campaign
from swarm.base.home import Home
from swarm.download.urls import OTHERS_URL_REACH, HfFile, UrlReach
from tests.swarm.web_parts import Web, reply, web_beside
from tests.tiny_onnx import tiny_onnx

DATA = tiny_onnx("this is a model " * 200_000)
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


@pytest.fixture
def site() -> Iterator[Web]:
    with web_beside() as made:
        yield made


def campaign_of(site: Web, more: str = "") -> str:
    return (
        "campaign: t\nunits: [CPU (ONNX)]\nmodels:\n"
        f"  - {{url: 'http://127.0.0.1:{site.port}/m.onnx'{more}}}\n"
    )


def described(
    home: Home, text: str, show: Callable[[str, int, int], object] = lambda *progress: None
) -> Path:
    result = describe_models(
        parse_campaign(text.encode(), "c.yaml"), Path(), downloader(home, show, retry_delay_s=0.01)
    )
    path, model, _ = next(iter(result.values()))
    assert isinstance(path, Path)
    assert model.sha256 == SHA
    assert model.size == len(DATA)
    assert path.read_bytes() == DATA
    return path


def test_a_model_by_url_is_fetched_once_shown_and_is_its_hash_from_then_on(home: Home, site: Web) -> None:
    site.file("/m.onnx", DATA)
    messages: list[tuple[str, int, int]] = []
    described(home, campaign_of(site), lambda *line: messages.append(line))
    assert messages[-1] == ("m.onnx", len(DATA), len(DATA))
    described(home, campaign_of(site))
    ranges = [request.headers.get("range") for request in site.asked]
    assert ranges == [None, f"bytes={len(DATA) - 1}-"], (
        "the second time it is only asked whether it is the same"
    )


def test_submitting_it_leaves_a_copy_under_its_hash_and_tells_workers_the_url(
    home: Home, site: Web, tmp_path: Path
) -> None:
    site.file("/m.onnx", DATA)
    file = tmp_path / "c.yaml"
    file.write_text(campaign_of(site))
    result = submit_campaign(home, file, wait_s=60, fetch=downloader(home, lambda *progress: None))
    assert (home.spool / SHA).read_bytes() == DATA
    with Store(home.store) as store:
        assert [model.sha256 for model in store.campaigns.models(result)] == [SHA]
    campaign = parse_campaign(file.read_bytes(), "c.yaml")
    models = describe_models(campaign, tmp_path, downloader(home, lambda *progress: None))
    task = tasks_of(derive_cells(campaign, models, campaign_id="c-x", scheduler="1" * 44))[0]
    assert task.model_url == f"http://127.0.0.1:{site.port}/m.onnx"
    assert task.model.sha256 == SHA


def test_one_whose_hash_is_in_the_spool_is_not_fetched_again(home: Home, site: Web) -> None:
    home.spool.mkdir(parents=True)
    (home.spool / SHA).write_bytes(DATA)
    described(home, campaign_of(site, f", sha256: {SHA}"))
    assert site.asked == []


def test_another_file_than_the_campaign_says_is_refused_with_the_line(home: Home, site: Web) -> None:
    site.file("/m.onnx", tiny_onnx("another one"))
    with pytest.raises(CampaignError, match=r"c.yaml:4: .*not the one in the campaign") as caught:
        described(home, campaign_of(site, f", sha256: {SHA}"))
    assert "the URL has changed" in caught.value.hint


def test_a_file_that_changed_on_the_server_is_fetched_anew(home: Home, site: Web) -> None:
    site.file("/m.onnx", tiny_onnx("the other way round" * 200_000), tag='"old"')
    with pytest.raises(AssertionError):
        described(home, campaign_of(site))
    site.file("/m.onnx", DATA, tag='"new"')
    described(home, campaign_of(site))


def test_what_came_before_a_cut_is_not_fetched_again(home: Home, site: Web) -> None:
    half = reply(body=DATA[:2_500_000], length=len(DATA), etag='"one"')
    first = True

    good = Web()
    good.file("/m.onnx", DATA)
    whole = good.pages["/m.onnx"]

    async def cut_once(asked: object, stream: trio.abc.Stream) -> None:
        nonlocal first
        if first:
            first = False
            await stream.send_all(half)
        else:
            assert callable(whole)
            await whole(asked, stream)  # type: ignore[arg-type]

    site.pages["/m.onnx"] = cut_once
    described(home, campaign_of(site))
    begin = site.asked[1].headers["range"]
    assert int(begin.removeprefix("bytes=").removesuffix("-")) > 2_000_000


def test_parts_of_two_versions_never_meet(home: Home, site: Web) -> None:
    site.pages["/m.onnx"] = reply(body=b"\x08 an older one", length=len(DATA), etag='"old"')
    with pytest.raises(CampaignError, match="cannot be fetched now"):
        described(home, campaign_of(site))
    part = next((home.cache / "downloads").glob("*/part"))
    assert part.read_bytes() == b"\x08 an older one"
    site.file("/m.onnx", DATA)
    described(home, campaign_of(site))


@pytest.mark.parametrize(
    ("page", "what"),
    [
        (reply(404), "no such file"),
        (reply(401), "not public"),
        (reply(302, location="ftp://x.org/m"), "redirects to a target that is not followed"),
        (reply(body=b"<!doctype html><p>log in"), "is a web page"),
        (reply(body=b""), "is empty"),
        (reply(body=b"x", length=10**15), "at most"),
        (reply(body=b"x", content_encoding="gzip"), "compressed"),
    ],
)
def test_a_url_without_a_model_is_reported_with_its_line(
    home: Home, site: Web, page: bytes, what: str
) -> None:
    site.pages["/m.onnx"] = page
    with pytest.raises(CampaignError, match=f"c.yaml:4: .*{what}"):
        described(home, campaign_of(site))


def test_a_model_too_large_for_the_disk_is_refused_before_it_is_fetched(home: Home, site: Web) -> None:
    site.pages["/m.onnx"] = reply(body=b"x", length=2**50)
    campaign = parse_campaign(campaign_of(site).encode(), "c.yaml")
    with pytest.raises(ResourceError, match="are needed on the disk"):
        describe_models(campaign, Path(), downloader(home, lambda *progress: None, limit=2**51))


def test_a_file_url_is_read_in_place(home: Home, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(DATA)
    url = (tmp_path / "m.onnx").as_uri()
    path = described(home, f"campaign: t\nunits: [CPU (ONNX)]\nmodels: ['{url}']\n")
    assert path == tmp_path / "m.onnx"


def test_downloads_nobody_touched_for_a_day_are_removed(home: Home, site: Web) -> None:
    site.file("/m.onnx", DATA)
    stored = described(home, campaign_of(site))
    site.file("/other.onnx", DATA)
    later = stored.stat().st_mtime + KEEP_S + 10
    campaign = parse_campaign(campaign_of(site).replace("m.onnx", "other.onnx").encode(), "c.yaml")
    describe_models(campaign, Path(), downloader(home, lambda *progress: None, wall=lambda: later))
    assert not stored.exists()


# -- Hugging Face --------------------------------------------------------------------------------------------------------


def test_a_model_at_hugging_face_comes_by_their_library(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cached").write_bytes(DATA)
    files: list[tuple[str, str, str]] = []

    def hf_hub_download(repo: str, file: str, *, revision: str) -> str:
        files.append((repo, file, revision))
        return str(tmp_path / "cached")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=hf_hub_download))
    campaign = parse_campaign(
        b"campaign: t\nunits: [CPU (ONNX)]\nmodels: ['hf://org/repo/onnx/m.onnx@v1']\n", "c.yaml"
    )
    fetch = downloader(home, lambda *progress: None)
    assert describe_models(campaign, Path(), fetch)["m.onnx"].model.sha256 == SHA
    assert files == [("org/repo", "onnx/m.onnx", "v1")]


def test_over_the_http_api_it_comes_without_the_library_and_its_login(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, UrlReach]] = []

    async def download(url: str, reach: UrlReach, **rest: Any) -> None:
        asked.append((url, reach))
        raise Refused("401 Unauthorized", reason=Reason.NOT_ALLOWED)

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr(fetch_module, "download", download)
    campaign = parse_campaign(
        b"campaign: t\nunits: [CPU (ONNX)]\nmodels: ['hf://org/repo/onnx/m.onnx@v1']\n", "c.yaml"
    )
    with pytest.raises(CampaignError, match="401 Unauthorized"):
        describe_models(campaign, Path(), downloader(home, lambda *progress: None, reach=OTHERS_URL_REACH))
    assert asked == [("https://huggingface.co/org/repo/resolve/v1/onnx/m.onnx", OTHERS_URL_REACH)]


def test_what_the_library_says_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def hf_hub_download(repo: str, file: str, *, revision: str) -> str:
        raise OSError("404 Client Error.\n\nMore of it")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=hf_hub_download))
    with pytest.raises(Refused, match="404 Client Error") as caught:
        from_hub(HfFile("o/r", "m", "main"))
    assert "More of it" not in caught.value.what
    assert caught.value.reason is Reason.UNKNOWN


def test_without_the_library_the_hint_says_how_to_install_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    campaign = parse_campaign(b"campaign: t\nunits: [CPU (ONNX)]\nmodels: ['hf://o/r/m.onnx']\n", "c.yaml")
    with pytest.raises(CampaignError, match=r"c.yaml:3: .*needs the package huggingface_hub") as caught:
        describe_models(campaign, Path(), downloader(home, lambda *progress: None))
    assert caught.value.hint == INSTALL


# -- progress ------------------------------------------------------------------------------------------------------------


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_a_few_in_a_pipe() -> None:
    now = [0.0]
    for stream in (_Terminal(), io.StringIO()):
        download_progress = DownloadProgress(stream, lambda: now[0])
        for done in range(0, 1001, 10):
            now[0] += 0.05
            download_progress("m\x1b[31m.onnx", done * 2**20, 1000 * 2**20)
        lines = stream.getvalue().split("\n")
        assert "100 %" in lines[-2]
        assert len(lines) <= 4
        assert "\x1b[31m" not in stream.getvalue()


def test_progress_without_a_known_size_says_what_came() -> None:
    stream = io.StringIO()
    DownloadProgress(stream, lambda: 100.0)("m.onnx", 3 * 2**20, 0)
    assert stream.getvalue() == "fetching m.onnx: 3 MiB\n"

"""The token that a server requires."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from protocol.errors import CampaignError, ResourceError
from swarm.base.home import Home
from web.cli import ServeOptions, _announce, _token
from web.http.middleware import own_token, read_token


def test_it_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "scheduler" / "api-token"
    token = own_token(path)
    assert own_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["api-token"]


def test_servers_that_start_at_once_have_one_token(tmp_path: Path) -> None:
    path, barrier, made = tmp_path / "api-token", threading.Barrier(8), list[str]()

    def start() -> None:
        barrier.wait()
        made.append(own_token(path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(made) == {read_token(path)}
    assert len(made) == 8


def test_one_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "api-token"
    own_token(path)
    path.chmod(0o644)
    with pytest.raises(ResourceError, match="is readable by other users"):
        own_token(path)
    assert read_token(path)  # the owner is responsible for a file that they named


@pytest.mark.parametrize("content", ["", "short\n", "with a space in it, though", "\u00e4" * 20, "x" * 1001])
def test_what_is_no_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(CampaignError, match="at least 16 characters"):
        read_token(path)
    with pytest.raises(ResourceError, match="cannot read"):
        read_token(tmp_path / "none")


def test_what_stands_in_a_log_holds_no_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _announce("http://192.0.2.7:5000/", "a/token+that=is-shown-to-nobody", tmp_path / "api-token")
    result = capsys.readouterr().out
    assert "shown-to-nobody" not in result
    assert str(tmp_path / "api-token") in result


def test_a_server_on_loopback_has_a_token_too_unless_its_owner_says_no_and_reads_what_that_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home.at(tmp_path)
    token, file = _token(home, ServeOptions(), public=False)
    assert token == read_token(file)
    token, file = _token(home, ServeOptions(no_token=True), public=False)
    assert token is None
    _announce("http://127.0.0.1:5000/", token, file)
    assert "every user and program of this machine can read and submit as you" in capsys.readouterr().out


def test_beyond_loopback_no_server_goes_without_a_token(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="--no-token is for loopback"):
        _token(Home.at(tmp_path), ServeOptions(("0.0.0.0",), no_token=True), public=True)  # noqa: S104

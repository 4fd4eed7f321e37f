"""Full disks: one line reports the problem, nothing half-done is left, and everything works again once there is space."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarm.base.durable import write_durably
from tests.real.lab import Lab, campaign, kill_marked, script


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk of that size at `folder`, for users who may mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"mounting a small disk is not permitted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=10)


def padded(folder: Path, name: str, size: int) -> Path:
    """A script that is exactly `size` bytes long."""
    path = script(folder, name)
    path.write_bytes(path.read_bytes() + b" " * size)
    return path


def test_a_full_disk_of_a_scheduler_is_reported_and_nothing_is_stored(lab: Lab, tmp_path: Path) -> None:
    file = campaign(tmp_path, "large", [padded(tmp_path, "large.json", 3_000_000)])
    with small_disk(lab.folder / "tight", "2m"):
        done = lab.run("tight", "submit", file, "--gate", lab.gate)
        assert done.code == 6, done
        assert "No space left" in done.err
        assert "3,000," in done.err
        assert "Traceback" not in done.err
        assert done.out == ""
        listed = lab.run("tight", "campaigns", "--json")
        assert listed.json()["campaigns"] == []
        assert list(lab.home("tight").spool.iterdir()) == []


def test_a_full_disk_of_a_worker_fails_the_task_and_with_room_again_it_runs(lab: Lab, tmp_path: Path) -> None:
    large = padded(tmp_path, "large.json", 3_000_000)
    file = campaign(tmp_path, "large", [large], devices={"where": ["label.disk == small"]})
    with small_disk(lab.folder / "three" / "cache", "80m") as disk:
        others = disk / "of-somebody-else"
        lab.start_worker("three", "--label", "disk=small")
        try:
            lab.await_up("three")
            others.write_bytes(bytes(40_000_000))
            done = lab.submit("ada", file)
            assert done.code == 1, done
            (row,) = done.json()["results"]
            assert (row["Status"], row["Reason"]) == ("Failed", "disk-full")
            assert "no room" in row["Detail"]
            others.unlink()
            done = lab.submit("ada", file)
            assert done.code == 0, done
            assert done.json()["results"][0]["DeviceName"] == "three"
        finally:
            lab.stop("three")


def test_a_disk_that_fills_up_after_submitting_is_reported_and_nothing_is_lost(
    lab: Lab, tmp_path: Path
) -> None:
    models = [script(tmp_path, f"m{n}.json", load_ms=1.0 + n) for n in range(2)]
    file = campaign(tmp_path, "filling", models)
    key = lab.home("carol").key("scheduler")
    identity = key.read_bytes()
    with small_disk(lab.folder / "carol", "2m") as disk:
        write_durably(key, identity)
        result = lab.detach("carol", file)
        kill_marked(lab.mark_of("carol"))
        fill(disk / "of-somebody-else")
        done = lab.run("carol", "watch", result)
        assert done.code == 6, done
        assert "disk" in done.err.lower() or "space" in done.err.lower(), done
        assert "Traceback" not in done.err
        (disk / "of-somebody-else").unlink()
        done = lab.run("carol", "watch", result, "--json")
        assert done.code == 0, done
        assert [row["Status"] for row in done.json()["results"]] == ["Complete"] * 2
        assert lab.ask("carol", "SELECT count(*) FROM records WHERE decides = 1") == [(2,)]
        kill_marked(lab.mark_of("carol"))


def fill(path: Path) -> None:
    """Fill the disk of this path."""
    with path.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while out.write(bytes(4096)):
            pass

"""Where calibrations are kept, what is believed of a file, and when rounds are made."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from drivers.contract.base import Crashed, Event, Limits, WorkOrder
from node.device.calibrate import CalibrationLaunch, CalibrationTools
from node.device.calibration import Calibration
from node.device.calibration_file import calibration_file, read_calibration, write_calibration
from node.device.calibration_rounds import LEGACY_FILE_NAME, Calibrator, RoundEnd
from node.device.lock import DeviceLock
from node.device.probe import Profile
from protocol.errors import ResourceError
from tests.node.device.test_calibration import CPU, Loaded, device, found_by, tools

NOTHING = "this device is not calibrated yet in its current state"


def test_a_file_is_of_one_device_and_fingerprint_in_the_users_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = calibration_file("a" * 64, "d-1")
    assert path == tmp_path / "sark" / "calibrations" / f"d-1-{'a' * 16}.json"
    assert calibration_file("a" * 64, "a host without an id").name.startswith("a-host-without-an-id-")
    assert len({path, calibration_file("b" * 64, "d-1"), calibration_file("a" * 64, "d-2")}) == 3
    assert calibration_file("a" * 64).parent == path.parent


def test_a_file_of_another_version_or_full_of_nonsense_is_no_calibration(tmp_path: Path) -> None:
    path, fingerprint = tmp_path / "new" / "d.json", device().fingerprint
    assert read_calibration(path, fingerprint).missing == NOTHING
    path.parent.mkdir()
    for text in (b"", b"[]", b"\xff\x00", b'{"v": 1}', b'{"v": 3, "fingerprint"'):
        path.write_bytes(text)
        path.chmod(0o600)
        assert "is damaged, or of another version" in read_calibration(path, fingerprint).missing
    one = Calibration(fingerprint=fingerprint, at=1.0, timer_ns=40)
    write_calibration(path, one)
    assert read_calibration(path, fingerprint).calibration == one
    assert "changed since" in read_calibration(path, "0" * 64).missing
    later = one.model_dump_json().replace('"v":2', '"v":2,"of_a_later_program":1')
    path.write_text(later)
    assert read_calibration(path, fingerprint).calibration == one


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_a_file_that_others_may_write_is_not_believed(tmp_path: Path) -> None:
    path, one = tmp_path / "d.json", Calibration(fingerprint="0" * 64, at=1.0, timer_ns=40)
    write_calibration(path, one)
    assert path.stat().st_mode & 0o077 == 0
    for mode in (0o620, 0o602):
        path.chmod(mode)
        stored = read_calibration(path, "0" * 64)
        assert stored.calibration is None
        assert "chmod 600 it, or remove it" in stored.missing
        assert str(path) in stored.missing


def calibrator(
    folder: Path, made_with: CalibrationTools | None = None, profile: Profile | None = None
) -> Calibrator:
    profile = profile or device()
    path = folder / f"{profile.fingerprint}.json"
    return Calibrator(path, profile, made_with or tools(folder), DeviceLock("d", folder))


async def test_a_device_is_calibrated_once_and_again_when_asked_or_changed(tmp_path: Path) -> None:
    lines: list[str] = []

    async def go(profile: Profile, *, full: bool = False, force: bool = False) -> Calibration:
        lines.clear()
        return await calibrator(tmp_path, profile=profile).ensure(lines.append, full=full, force=force)

    first = await go(device())
    assert NOTHING in lines[0]
    assert lines[-1].startswith("calibrated: EPYC: 90 GFLOPS")
    assert await go(device()) == first
    assert lines == []
    assert (await go(device(), force=True)).rounds == 2
    assert "another round" in lines[0]
    assert (await go(device(), full=True)).full
    assert (await go(device(), force=True)).full, "quick curves would not join the full ones"
    await go(device(soc="Xeon"))
    assert NOTHING in lines[0]
    assert (await go(device())).rounds == 4, "the other fingerprint has its own file"
    (tmp_path / f"{device().fingerprint}.json").write_text('{"v": 1, "fingerprint"')
    await go(device())
    assert "is damaged" in lines[0]


async def test_two_homes_share_one_file_and_the_old_file_of_a_home_is_removed_with_a_line(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    home = tmp_path / "home"
    home.mkdir()
    (home / LEGACY_FILE_NAME).write_text("{}")
    first, second = calibrator(tmp_path), calibrator(tmp_path)
    await first.ensure(lines.append, old=home)
    assert (
        lines[0]
        == f"removed {home / LEGACY_FILE_NAME} of an earlier version: calibrations are now stored in {tmp_path}"
    )
    assert not (home / LEGACY_FILE_NAME).exists()
    lines.clear()
    assert await second.ensure(lines.append, old=home) == first.current
    assert lines == []
    assert await first.at_quiet() is RoundEnd.JOINED
    assert await second.at_quiet() is RoundEnd.JOINED
    assert second.current is not None
    assert second.current.rounds == 3, "with that of the other home"


async def test_what_cannot_be_kept_is_used_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    lines: list[str] = []
    here = replace(calibrator(tmp_path), path=tmp_path / "file" / "d.json")
    made = await here.ensure(lines.append)
    assert here.floor(CPU) == made.floor(CPU) == 6
    assert any(line.startswith("cannot save the calibration: cannot use") for line in lines)
    with pytest.raises(ResourceError, match="cannot use"):
        await here.at_quiet()


async def test_it_waits_while_something_is_measured_on_the_device(tmp_path: Path) -> None:
    here, lines = calibrator(tmp_path), list[str]()
    waited = trio.Event()

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("waiting"):
            waited.set()

    async with trio.open_nursery() as nursery, DeviceLock("d", tmp_path).hold():
        nursery.start_soon(here.ensure, report)
        await waited.wait()
        assert not here.path.exists()
    assert here.path.exists()


async def test_a_round_that_comes_back_measures_nothing_on_a_busy_host(tmp_path: Path) -> None:
    still = Loaded(tmp_path)
    here = calibrator(tmp_path, still.tools(tmp_path))
    assert (await here.ensure(lambda line: None)).quiet is True
    still.share = 1.0
    assert await here.at_quiet() is RoundEnd.BUSY
    assert here.current is not None
    assert here.current.rounds == 1
    still.share = 0.0

    def run(*about: object, **options: object) -> object:
        still.share = 1.0
        return found_by("cpu", here.tools.quick, 2)

    here.tools = replace(here.tools, run_micro=run)  # type: ignore[arg-type]
    assert await here.at_quiet() is RoundEnd.DISTURBED
    assert (here.current.rounds, here.current.quiet) == (1, True)


class Hanging:
    """A launch that runs until it is killed."""

    def __init__(self, begun: Callable[[], None]) -> None:
        self._begun = begun
        self.killed = threading.Event()

    def events(self) -> Iterator[Event]:
        yield from ()
        self._begun()
        self.killed.wait()
        raise Crashed("killed by SIGKILL")

    def kill(self) -> None:
        self.killed.set()


async def test_a_round_that_is_cancelled_ends_its_processes_and_frees_the_device(tmp_path: Path) -> None:
    token, begun = trio.lowlevel.current_trio_token(), trio.Event()
    launches: list[Hanging] = []

    def launch(order: WorkOrder, limits: Limits) -> CalibrationLaunch:
        launches.append(Hanging(lambda: token.run_sync_soon(begun.set)))
        return launches[-1]

    here = calibrator(tmp_path, replace(tools(tmp_path), launch=launch))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.at_quiet)
            await begun.wait()
            nursery.cancel_scope.cancel()
        assert [one.killed.is_set() for one in launches] == [True]
        assert not here.path.exists()
        async with here.lock.hold(lambda: pytest.fail("the device is free")):
            pass

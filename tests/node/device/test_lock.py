"""One measurement at a time on a device, across tasks, threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from node.device.lock import DeviceLock
from protocol.errors import ResourceError

HOLDER = """
import sys, trio
from pathlib import Path
from node.device.lock import DeviceLock
async def main():
    async with DeviceLock("d-1", Path(sys.argv[1])).hold():
        print("held", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


async def test_two_nodes_never_hold_one_device_at_once_and_both_get_it(tmp_path: Path) -> None:
    holders = 0
    order: list[int] = []

    async def node(number: int) -> None:
        nonlocal holders
        async with DeviceLock("d-1", tmp_path).hold():
            holders += 1
            assert holders == 1
            await trio.sleep(0.001)
            order.append(number)
            holders -= 1

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(node, number)
    assert sorted(order) == list(range(6))


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is prepared for there")
async def test_whoever_is_given_the_locked_file_shares_the_device_until_both_have_closed_it(
    tmp_path: Path,
) -> None:
    lock = DeviceLock("d-1", tmp_path)
    assert lock.handle == -1
    async with lock.hold():
        shared = os.dup(lock.handle)
    assert lock.handle == -1
    with trio.move_on_after(0.1) as waited:
        async with lock.hold():
            pass
    assert waited.cancelled_caught
    assert lock.handle == -1
    os.close(shared)
    with trio.fail_after(5):
        async with lock.hold():
            assert lock.handle >= 0


async def test_a_holder_sees_whether_somebody_waits(tmp_path: Path) -> None:
    lock = DeviceLock("d-1", tmp_path)
    waits = trio.Event()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery, lock.hold():
            assert not lock.wanted()
            assert not DeviceLock("d-2", tmp_path).wanted()

            async def wait() -> None:
                async with DeviceLock("d-1", tmp_path).hold(waits.set):
                    assert not lock.wanted()

            nursery.start_soon(wait)
            await waits.wait()
            assert lock.wanted()


async def test_devices_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with trio.fail_after(5):
        async with DeviceLock("d-1", tmp_path).hold(), DeviceLock("d-2", tmp_path).hold():
            pass


async def test_a_wait_can_be_cancelled_and_leaves_the_device_free(tmp_path: Path) -> None:
    lock = DeviceLock("d-1", tmp_path)
    with trio.fail_after(5):
        async with lock.hold():
            with trio.move_on_after(0.02) as timeout:
                async with lock.hold():
                    pytest.fail("two hold it")
            assert timeout.cancelled_caught
        async with lock.hold():
            pass


async def test_a_holder_that_is_killed_frees_the_device_at_once(tmp_path: Path) -> None:
    with trio.fail_after(10):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert (await process.stdout.receive_some()).startswith(b"held")
        lock = DeviceLock("d-1", tmp_path)
        with trio.move_on_after(0.05) as timeout:
            await _hold(lock)
        assert timeout.cancelled_caught, "the other process has it"
        process.kill()
        await _hold(lock)
        await process.wait()
        await process.stdout.aclose()


@pytest.mark.skipif(os.name != "posix", reason="modes and links are POSIX's")
async def test_the_file_is_for_all_users_whatever_the_umask(tmp_path: Path) -> None:
    lock = DeviceLock("d-1", tmp_path)
    before = os.umask(0o077)
    try:
        async with lock.hold():
            pass
    finally:
        os.umask(before)
    assert lock.path.stat().st_mode & 0o777 == 0o666


@pytest.mark.skipif(os.name != "posix", reason="modes and links are POSIX's")
async def test_a_link_or_a_folder_in_its_place_is_a_one_line_error(tmp_path: Path) -> None:
    lock = DeviceLock("d-1", tmp_path)
    lock.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResourceError, match="cannot use the device lock"):
        await _hold(lock)
    assert not (tmp_path / "elsewhere").exists()
    lock.path.unlink()
    lock.path.mkdir()
    with pytest.raises(ResourceError, match="is not a plain file"):
        await _hold(lock)


async def _hold(lock: DeviceLock) -> None:
    async with lock.hold():
        pass


def open_files() -> int:
    """The number of this process's open files, or 0 where the system does not tell."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.mark.slow
async def test_waits_that_were_given_up_take_no_thread_from_others_and_no_file(tmp_path: Path) -> None:
    lock = DeviceLock("d-1", tmp_path)
    shared = trio.to_thread.current_default_thread_limiter()
    with trio.fail_after(20):
        before = open_files()
        async with lock.hold(), trio.open_nursery() as nursery:
            for _ in range(74):
                nursery.start_soon(_hold, lock)
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert shared.borrowed_tokens == 0
            nursery.cancel_scope.cancel()
        async with lock.hold():
            pass
        while open_files() > before:  # the threads close their files
            await trio.sleep(0.005)


async def test_a_taken_device_is_reported_once(tmp_path: Path) -> None:
    lines: list[int] = []
    lock = DeviceLock("d-1", tmp_path)
    async with lock.hold(lambda: lines.append(1)):
        with trio.move_on_after(0.01):
            async with lock.hold(lambda: lines.append(2)):
                pytest.fail("two hold it")
    assert lines == [2]

"""For all tests: no discovery on the LAN, a PostgreSQL of their own, a slow clock for `patient` tests, and which tests are `slow`."""

from __future__ import annotations

import math
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
import trio
from trio.abc import Clock, Instrument
from trio.testing import MockClock

from swarm.base.threads import COMPUTING, DISK, HASHING, SERVING, ThreadPool

os.environ["SARK_LAN"] = "false"
DATA: Final = tempfile.TemporaryDirectory(prefix="sark-tests-data-")
os.environ["XDG_DATA_HOME"] = DATA.name  # calibrations are in the user's own folder, whatever the home

hypothesis.settings.register_profile("sark", deadline=None)  # an example may take long on a busy machine
hypothesis.settings.load_profile("sark")

PATIENT: Final = 0.2
"""Seconds on the clock of a `patient` test in a second: each of the nodes' own limits lasts five times as long."""


def _patiently(
    test: Callable[[], Awaitable[object]],
    *,
    clock: Clock | None = None,
    instruments: Sequence[Instrument] = (),
) -> object:
    """`trio.run` with a slow clock, unless the test brings its own."""
    return trio.run(test, clock=clock or MockClock(rate=PATIENT), instruments=instruments)


SHORT_WORK: Final = (DISK, SERVING, HASHING, COMPUTING)
"""Pools whose work ends by itself, whatever the clock says."""


@pytest.fixture(autouse=True)
def clock_that_waits_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps takes a node that waits for a thread for idle: on a busy machine it would jump over deadlines meanwhile."""
    run = ThreadPool.run
    waiting: dict[MockClock, tuple[int, float]] = {}

    async def held(pool: ThreadPool, *words: Any, **more: Any) -> Any:
        clock = trio.lowlevel.current_clock()
        if not isinstance(clock, MockClock) or pool not in SHORT_WORK:
            return await run(pool, *words, **more)
        count, threshold = waiting.get(clock, (0, clock.autojump_threshold))
        waiting[clock] = (count + 1, threshold)
        clock.autojump_threshold = math.inf
        try:
            return await run(pool, *words, **more)
        finally:
            count, threshold = waiting.pop(clock)
            if count > 1:
                waiting[clock] = (count - 1, threshold)
            else:
                clock.autojump_threshold = threshold

    monkeypatch.setattr(ThreadPool, "run", held)


REAL_PARTS: Final = ("browser", "nat", "packages", "real")
"""Folders of tests that need seconds to minutes each: only those marked `smoke` are in `make test`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give `patient` tests their clock, and mark as `slow` what is outside the budget of `make test`."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in REAL_PARTS and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("patient") is not None and iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=_patiently), append=False)


_DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _binaries() -> Path | None:
    """The folder with initdb and pg_ctl."""
    result = shutil.which("initdb")
    folders = [*_DEBIAN, *([Path(result).parent] if result else [])]
    return next((folder for folder in folders if (folder / "pg_ctl").exists()), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a database on a server that was made for these tests: a Unix socket in a temporary folder, no port."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's binaries are not here: Debian's package `postgresql` brings them")
    # the server refuses to run as root; and a socket's path may have 107 bytes, fewer than pytest's folders
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    folder = Path(tempfile.mkdtemp(prefix="sark-pg-", dir="/tmp"))
    os.chown(folder, user.pw_uid, user.pw_gid)
    data = folder / "data"

    def run(program: str, *words: str) -> None:
        command = [str(binaries / program), "-D", str(data), *words]
        ids = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        with (folder / "output").open("ab") as opened:
            done = subprocess.run(command, stdout=opened, stderr=opened, cwd=folder, timeout=120, **ids)  # type: ignore[call-overload]
        assert done.returncode == 0, (folder / "output").read_text()

    try:
        run(
            "initdb",
            "-U",
            "sark",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        )
        (data / "pg_hba.conf").write_text("local all guarded scram-sha-256\nlocal all all trust\n")
        # what is tested is kill -9 of processes, not a power cut: nothing need reach the disk
        quick = "-c fsync=off -c full_page_writes=off -c max_connections=40 -c shared_buffers=16MB"
        run("pg_ctl", "-w", "-o", f"-k {folder} -c listen_addresses='' {quick}", "start")
        try:
            yield f"postgresql://sark@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""For all tests: no discovery on the LAN, a private PostgreSQL, a slow clock for `patient` tests, and the mark `slow`."""

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
os.environ["XDG_DATA_HOME"] = DATA.name  # calibrations are kept in the user's data folder, whatever the home

hypothesis.settings.register_profile("sark", deadline=None)  # an example may take long on a busy machine
hypothesis.settings.load_profile("sark")

PATIENT: Final = 0.2
"""Rate of the clock of a `patient` test: one real second counts as 0.2 s, so each timeout of a node lasts five times as long."""


def _patiently(
    test: Callable[[], Awaitable[object]],
    *,
    clock: Clock | None = None,
    instruments: Sequence[Instrument] = (),
) -> object:
    """`trio.run` with a slow clock, unless the test brings its own clock."""
    return trio.run(test, clock=clock or MockClock(rate=PATIENT), instruments=instruments)


SHORT_WORK: Final = (DISK, SERVING, HASHING, COMPUTING)
"""Pools whose work ends on its own, whatever the clock says."""


@pytest.fixture(autouse=True)
def clock_that_waits_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop `autojump` clocks while a thread works. They take a node that waits for a thread to be idle, and on a busy machine would
    jump over deadlines meanwhile."""
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
"""Folders whose tests take seconds to minutes each. `make test` runs only those marked `smoke`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give `patient` tests their clock, and mark as `slow` all tests outside the budget of `make test`."""
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
    """The URL of a database on a PostgreSQL server started for these tests: a Unix socket in a temporary folder, no port."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's binaries are not here: Debian's package `postgresql` brings them")
    # the server refuses to run as root, and a socket path has at most 107 bytes, fewer than pytest's folders need
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
        # the tests use kill -9 on processes, not power cuts, so nothing has to reach the disk
        quick = "-c fsync=off -c full_page_writes=off -c max_connections=40 -c shared_buffers=16MB"
        run("pg_ctl", "-w", "-o", f"-k {folder} -c listen_addresses='' {quick}", "start")
        try:
            yield f"postgresql://sark@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""For all tests: nobody is looked for on the LAN of the machine they run on, nor told of them there; a PostgreSQL of their own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["SARK_LAN"] = "false"

_DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _binaries() -> Path | None:
    """The folder with initdb and pg_ctl."""
    found = shutil.which("initdb")
    folders = [*_DEBIAN, *([Path(found).parent] if found else [])]
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
        with (folder / "said").open("ab") as said:
            done = subprocess.run(command, stdout=said, stderr=said, cwd=folder, timeout=120, **ids)  # type: ignore[call-overload]
        assert done.returncode == 0, (folder / "said").read_text()

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

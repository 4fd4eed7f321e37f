"""`make binary`: everything in one file, for a device without Python.

    dist/sark-node-VERSION-SYSTEM-MACHINE       Linux, macOS: a shell script with the packed program appended
    dist/sark-node-VERSION-windows-MACHINE.zip  Windows: unpack it anywhere, start sark-node.exe in it

PyInstaller collects the interpreter, packages and native parts in a separate environment (.venv-binary). PyInstaller's own single files
unpack themselves at each start and clean up when the first process ends, while our children and a scheduler in the background live on.
Our file instead unpacks itself once, into the user's data folder under a name with its hash, and later starts are as fast as those of an
installed program. It runs on the system and processor that it was built on, with the same libc or a newer one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).absolute().parents[1]
ENVIRONMENT: Final = ROOT / ".venv-binary"
BUILD: Final = ROOT / "build" / "binary"
DIST: Final = ROOT / "dist"
INSIDE: Final = "SARK_BINARY_INSIDE"
WINDOWS: Final = sys.platform == "win32"

STUB: Final = """#!/bin/sh
# sark-node @VERSION@ with all that it needs. Unpacks itself once, below ${XDG_DATA_HOME:-~/.local/share}/sark-node, and starts.
set -eu
umask 022
apps="${XDG_DATA_HOME:-$HOME/.local/share}/sark-node"
app="$apps/@NAME@"
if [ ! -x "$app/sark-node" ]; then
  mkdir -p "$apps"
  new=$(mktemp -d "$apps/.new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  if ! tail -n +@LINE@ "$0" | gzip -dc | tar -xf - -C "$new"; then
    echo "sark-node: cannot unpack into $apps" >&2
    echo "  is the disk full, or this file cut short? @MB@ MB are needed" >&2
    exit 6
  fi
  mv "$new/sark-node" "$app" 2>/dev/null || [ -x "$app/sark-node" ]  # another start may have been quicker
  rm -rf "$new"
  trap - EXIT
fi
exec "$app/sark-node" "$@"
"""


def stub(version_: str, name: str, unpacked_bytes: int) -> bytes:
    """The script before the packed program. `name`: name of the folder that it unpacks to."""
    text = STUB.replace("@VERSION@", version_).replace("@NAME@", name)
    text = text.replace("@MB@", str(unpacked_bytes // 1_000_000 + 1))
    return text.replace("@LINE@", str(text.count("\n") + 1)).encode()


def prepare() -> Path:
    """The interpreter of the environment, with this project and PyInstaller installed. Installs again when the requirements have
    changed."""
    python = ENVIRONMENT / ("Scripts/python.exe" if WINDOWS else "bin/python")
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "-c", str(ROOT / "constraints.txt"), f"{ROOT}[demo]", "pyinstaller>=6.16"], check=True
    )
    return python


def gather() -> Path:
    """Have PyInstaller build the program; returns its folder. Runs in the environment, with no folder of ours on the path."""
    from PyInstaller.__main__ import run

    shutil.rmtree(BUILD, ignore_errors=True)
    spec = ROOT / "tools" / "sark-node.spec"
    run(
        [
            "--noconfirm",
            "--log-level",
            "WARN",
            "--distpath",
            str(BUILD),
            "--workpath",
            str(BUILD / "work"),
            str(spec),
        ]
    )
    return BUILD / "sark-node"


def pack(folder: Path) -> Path:
    """Pack the folder into one file in dist/."""
    shown = version("sark-node")
    system = {"darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    named = f"sark-node-{shown}-{system}-{platform.machine().lower()}"
    DIST.mkdir(exist_ok=True)
    if WINDOWS:
        out = DIST / f"{named}.zip"
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(folder.rglob("*")):
                packed.write(path, path.relative_to(folder.parent))
        return out
    payload = BUILD / "payload.tar.gz"
    with tarfile.open(payload, "w:gz", compresslevel=6) as packed:
        packed.add(folder, "sark-node")
    size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink())
    with payload.open("rb") as whole:
        digest = hashlib.file_digest(whole, "sha256").hexdigest()[:12]
        out = DIST / named
        whole.seek(0)
        with out.open("wb") as made:
            made.write(stub(shown, f"{shown}-{digest}", size))
            shutil.copyfileobj(whole, made, 1 << 20)
    out.chmod(0o755)
    return out


def main() -> None:
    """In any Python: create the environment and continue in it."""
    if os.environ.get(INSIDE):
        folder = gather()
        out = pack(folder)
        print(f"{out.relative_to(ROOT)}: {out.stat().st_size / 1e6:.0f} MB")
        return
    python = prepare()
    done = subprocess.run(
        [str(python), "-P", __file__], env={**os.environ, INSIDE: "1"}, cwd=ROOT / "tools", check=False
    )
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()

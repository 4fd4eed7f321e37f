"""Install packages with drivers, tasks and metrics, as pip would."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


def install_package(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    point: str,
    source: str,
    *,
    group: str = "sark.metrics",
    version: str = "1.0",
) -> None:
    """`put_package`, and make the package importable in this process."""
    put_package(folder, package, point, source, group=group, version=version)
    monkeypatch.delitem(sys.modules, f"{package}_module", raising=False)
    monkeypatch.syspath_prepend(str(folder))


def put_package(
    folder: Path, package: str, point: str, source: str, *, group: str = "sark.metrics", version: str = "1.0"
) -> None:
    """Write a package with one module, `PACKAGE_module`, and one entry point. Replaces any installed version."""
    for before in folder.glob(f"{package}-*.dist-info"):
        for file in before.iterdir():
            file.unlink()
        before.rmdir()
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{point}\n")
    (folder / f"{package}_module.py").write_text(source)


def path_with(folder: Path) -> str:
    """`PYTHONPATH` for processes that import from `folder` as well."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))

"""The wheel as users install it, with pipx and with uv, into an empty home. `make packages`; needs a package index."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
BUILD: Final = "import sys; import hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
LONG: Final = 900.0
Run = Callable[..., str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-P", "-c", BUILD, str(folder)], cwd=ROOT, check=True, timeout=LONG)
    return next(folder.glob("*.whl"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A function that runs a command in the fresh home. The command must succeed. Returns its output."""

    def run(*command: str | Path) -> str:
        stored = {
            key: value
            for key, value in os.environ.items()
            if key in ("LANG", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
            or key.startswith(("PIP_", "UV_"))
            or key.lower().endswith("_proxy")
        }
        done = subprocess.run(
            [str(word) for word in command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LONG,
            env={
                "PATH": f"{tmp_path / '.local/bin'}:/usr/local/bin:/usr/bin:/bin", **stored, "HOME": str(tmp_path),
                "PIPX_HOME": str(tmp_path / "pipx"), "UV_TOOL_DIR": str(tmp_path / "uv"),
            },
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    return run


@pytest.fixture
def tools(tmp_path: Path, run: Run) -> Path:
    """The program folder of an environment in which to install installers."""
    place = tmp_path / "tools"
    venv.create(place, with_pip=True)
    return place / "bin"


def works(sark: Path, run: Run, tmp_path: Path) -> None:
    """Check that the program runs, finds its parts and installs its completion."""
    assert run(sark, "--version").startswith("sark-node ")
    assert "CPU (ONNX)" in run(sark, "info")
    run(sark, "init")
    assert (tmp_path / "campaign.yaml").is_file()
    assert "bash completion installed" in run("bash", "-c", f"{sark} --install-completion; exit $?")


def test_pipx_installs_the_wheel_and_takes_it_away_again(
    wheel: Path, tools: Path, run: Run, tmp_path: Path
) -> None:
    run(tools / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pipx")
    sark = tmp_path / ".local" / "bin" / "sark-node"
    run(tools / "pipx", "install", "--python", sys.executable, wheel)
    works(sark, run, tmp_path)
    assert (tmp_path / ".local/share/man/man1/sark-node.1").is_file()
    run(tools / "pipx", "uninstall", "sark-node")
    assert not sark.exists()


def test_uv_installs_the_wheel_as_a_tool(wheel: Path, tools: Path, run: Run, tmp_path: Path) -> None:
    run(tools / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv")
    sark = tmp_path / ".local" / "bin" / "sark-node"
    run(tools / "uv", "tool", "install", "--python", sys.executable, wheel)
    works(sark, run, tmp_path)
    run(tools / "uv", "tool", "uninstall", "sark-node")
    assert not sark.exists()

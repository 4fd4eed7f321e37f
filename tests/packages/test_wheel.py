"""The build matches the tree: the wheel and the sdist contain the whole program, and the wheel works where only it is installed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.packages.in_bash import install_completion, typed
from tests.real.lab import until

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("protocol", "results", "swarm", "drivers", "node", "scheduler", "gate", "web")
BUILD: Final = "import sys; import hatchling.build as b; print(b.build_wheel(sys.argv[1])); print(b.build_sdist(sys.argv[1]))"
OF_THE_TREE: Final = shutil.ignore_patterns(
    ".*", "__pycache__", "build", "dist", "*.egg-info", "sark-demo", "c-*.csv"
)


def of_the_program(root: Path) -> set[str]:
    """Every file of the packages, including the program and its submodules."""
    inside = (path for name in (*PACKAGES, "sark") for path in (root / name).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in inside if "__pycache__" not in path.parts} | {
        "sark.py"
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A copy of the tree, and the wheel and the sdist built from it."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=OF_THE_TREE)
    command = [sys.executable, "-P", "-c", BUILD, str(folder)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return tree, next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


@pytest.mark.smoke
def test_the_wheel_holds_every_file_of_the_program_and_nothing_else(built: tuple[Path, Path, Path]) -> None:
    tree, wheel, _ = built
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        quickstart = packed.read("scheduler/local/quickstart.yaml").decode()
    info = {name for name in names if ".dist-info/" in name}
    shared = {name for name in names if ".data/" in name}
    assert names - info - shared == of_the_program(tree) | {"scheduler/local/quickstart.yaml"}
    assert [name.partition(".data/data/")[2] for name in shared] == ["share/man/man1/sark-node.1"]
    assert quickstart == (tree / "examples/quickstart/campaign.yaml").read_text(encoding="utf-8")
    for needed in (
        "scheduler/campaign/campaign.schema.json",
        "web/dashboard/index.html",
        "drivers/native/native_loop.c",
    ):
        assert needed in names


@pytest.mark.smoke
def test_the_sdist_holds_all_that_the_wheel_and_the_guides_need(built: tuple[Path, Path, Path]) -> None:
    tree, _, sdist = built
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    guides = {path.relative_to(tree).as_posix() for path in (tree / "docs").rglob("*") if path.is_file()}
    assert of_the_program(tree) | guides <= names
    assert {"README.md", "LICENSE", "pyproject.toml", "constraints.txt", "tools/binary.py"} <= names
    assert not [name for name in names if name.startswith((".ci", ".venv", "dist/"))]


@pytest.fixture(scope="module")
def program(built: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's `sark-node` in a fresh environment that finds this environment's libraries, but nothing of this tree."""
    place = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*install, str(built[1])], check=True, capture_output=True, timeout=300)
    own = next(place.glob("lib/python*/site-packages"))
    (own / "of-the-tests.pth").write_text(f"{libraries}\n", encoding="utf-8")  # after the wheel's own files
    return place / "bin" / "sark-node"


def environment(tmp_path: Path) -> dict[str, str]:
    stored = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "TMPDIR")}
    return {**stored, "HOME": str(tmp_path), "SARK_HOME": str(tmp_path / "home"), "SARK_LAN": "false"}


@contextlib.contextmanager
def running(command: list[str], tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The running process and its output file. Ends the process with the block."""
    result = tmp_path / "output.txt"
    with result.open("wb") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=out, stderr=out)
    try:
        yield process, result
    finally:
        process.terminate()
        process.wait(30)


def test_the_installed_program_works_away_from_the_tree(program: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(program), *arguments], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    assert run("--version").startswith("sark-node ")
    assert "Wrote campaign.yaml" in run("init")
    assert (tmp_path / "campaign.yaml").is_file()
    where = "import scheduler, scheduler.local.demo as d; print(scheduler.__path__[0]); print(d.quickstart_file())"
    done_found = subprocess.run(
        [str(program.with_name("python")), "-c", where], cwd=tmp_path, env=environment(tmp_path),
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert all(line.startswith(str(program.parents[1])) for line in done_found), done_found
    assert Path(done_found[1]).is_file()


def test_the_installed_wheel_offers_what_tests_of_others_need_with_its_types(
    program: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    python = program.with_name("python")
    for number, text in enumerate(examples):
        file = tmp_path / f"example_{number}.py"
        file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [str(python), str(file)], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, (text, done.stderr)
    (tmp_path / "typed.py").write_text(TYPED, encoding="utf-8")
    for checker in (
        ["mypy", "--strict", "--python-executable", str(python)],
        ["pyright", "--pythonpath", str(python)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *checker, "typed.py"], cwd=tmp_path, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


TYPED: Final = """
import random
from pathlib import Path

from sark import Bench, Driver, open_bench
from sark.testing import FakeDriver, Identity, MemoryNetwork, MemorySwarm, Subject, check_all

driver: Driver = FakeDriver()
node: MemoryNetwork = MemorySwarm(random.Random(1)).node(Identity.from_seed(1))
bench: Bench = open_bench(Path("home"))
check_all(Subject("fake", unit="Fake (Simulation)", model="m", simulate=True))
"""


def test_the_installed_program_serves_its_pages(program: Path, tmp_path: Path) -> None:
    with running([str(program), "serve", "--port", "0"], tmp_path) as (process, opened):

        def address() -> list[str]:
            assert process.poll() is None, opened.read_text()
            return [word for word in opened.read_text().split() if word.startswith("http://")]

        line = until(address, "its address", within=90)
        base = line[0].rstrip("/.,")
        for page, kind in (
            ("/", "text/html"),
            ("/static/style.css", "text/css"),
            ("/static/app.js", "javascript"),
        ):
            with urllib.request.urlopen(f"{base}{page}", timeout=30) as answer:  # noqa: S310  (our own address)
                assert answer.status == 200
                assert kind in answer.headers["content-type"]


def test_bash_completes_the_commands_of_the_installed_program(program: Path, tmp_path: Path) -> None:
    here = environment(tmp_path)
    here["PATH"] = f"{program.parent}{os.pathsep}{here['PATH']}"
    assert "bash completion installed" in install_completion(here)
    assert "sark-node campaigns " in typed("sark-node camp\t", "campaigns ", here, tmp_path)

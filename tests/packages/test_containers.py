"""The container files are consistent: they copy all they need, start what they installed, and run as a user who may write there.

No image is built here: that needs a container runtime and a registry.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import pytest
import yaml

from swarm.base.home import Home
from tests.gate.test_examples import understands

ROOT: Final = Path(__file__).parents[2]
FILES: Final = sorted((ROOT / "examples").glob("*/Containerfile"))
PROGRAM: Final = "/opt/sark/bin/sark-node"
BUILD: Final = "import sys; import hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
each = pytest.mark.parametrize("file", FILES, ids=[path.parent.name for path in FILES])


def instructions(file: Path) -> Iterator[tuple[str, str]]:
    """Pairs such as (FROM, its arguments). Joins continued lines and leaves out comments."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def values(file: Path, word: str) -> list[str]:
    return [rest for result, rest in instructions(file) if result == word]


def left_out(path: PurePosixPath, patterns: list[str]) -> bool:
    """Whether .dockerignore excludes the path: a pattern matches from the root, and excludes everything below its match."""
    for pattern in patterns:
        for part in (path, *path.parents):
            name = str(part)
            if fnmatch.fnmatchcase(name, pattern) or (
                pattern.startswith("**/") and fnmatch.fnmatchcase(part.name, pattern[3:])
            ):
                return True
    return False


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context: this folder without what .dockerignore excludes."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]

    def ignore(folder: str, names: list[str]) -> set[str]:
        inside = PurePosixPath(Path(folder).relative_to(ROOT).as_posix())
        return {name for name in names if left_out(inside / name, patterns)}

    place = tmp_path_factory.mktemp("context") / "src"
    shutil.copytree(ROOT, place, ignore=ignore)
    return place


def test_there_is_one_for_a_gate_and_one_for_a_worker() -> None:
    assert [path.parent.name for path in FILES] == ["gate", "worker"]


def test_what_a_build_is_given_is_the_program_and_little_else(context: Path, tmp_path: Path) -> None:
    there = {path.name for path in context.iterdir()}
    assert not there & {".git", ".venv", ".venv-binary", ".venv-extras", "build", "dist", "tests"}
    command = [sys.executable, "-P", "-c", BUILD, str(tmp_path)]
    done = subprocess.run(command, cwd=context, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as packed:
        names = packed.namelist()
    for needed in (
        "sark.py",
        "scheduler/local/quickstart.yaml",
        "web/dashboard/index.html",
        "gate/cli/main.py",
    ):
        assert needed in names


@pytest.mark.smoke
@each
def test_every_path_in_it_is_there(file: Path, context: Path) -> None:
    assert ". /src" in values(file, "COPY")
    run = " ".join(values(file, "RUN"))
    for path in re.findall(r"/src(/\S+)?", run):
        assert (context / path.lstrip("/")).exists(), path
    assert "--from=build /opt/sark /opt/sark" in values(file, "COPY")
    assert f"{PurePosixPath(PROGRAM).parent}/pip install" in run
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert PurePosixPath(PROGRAM).name in scripts


@each
def test_both_stages_have_one_base_and_one_python(file: Path) -> None:
    bases = [words.split()[0] for words in values(file, "FROM")]
    assert len(bases) == 2
    assert len(set(bases)) == 1, "an environment works with the interpreter that it was made by"


@each
def test_it_runs_as_a_user_of_its_own_whose_folder_is_the_volume(file: Path) -> None:
    run = " ".join(values(file, "RUN"))
    (user,), (volume,) = values(file, "USER"), values(file, "VOLUME")
    made = shlex.split(run[run.index("useradd") :])
    assert made[-1] == user
    assert made[made.index("--home-dir") + 1] == volume
    assert user != "root"


@each
def test_what_it_starts_is_the_program_with_words_that_it_takes(file: Path) -> None:
    entry = yaml.safe_load(values(file, "ENTRYPOINT")[0])
    command = yaml.safe_load(values(file, "CMD")[-1])
    before, words = entry[: entry.index(PROGRAM)], entry[entry.index(PROGRAM) + 1 :]
    if before:  # a small init that forwards signals and reaps children
        assert before == ["/usr/bin/tini", "--"]
        assert "tini" in values(file, "RUN")[-1].split()
    context = understands([*words, *command])
    assert context.command.name == {"gate": "gate", "worker": "join"}[file.parent.name]
    variables = dict(word.split("=", 1) for line in values(file, "ENV") for word in line.split())
    home = words[words.index("--home") + 1] if "--home" in words else variables["SARK_HOME"]
    assert values(file, "VOLUME") == [home]
    assert Home.at(Path(home)).data.is_relative_to(home)
    assert values(file, "STOPSIGNAL") == ["SIGTERM"]


@each
def test_what_asks_after_its_health_is_a_command_too(file: Path) -> None:
    for line in values(file, "HEALTHCHECK"):
        program, *words = yaml.safe_load(line.partition("CMD ")[2])
        assert program == PROGRAM
        assert understands(words).command.name == "status"

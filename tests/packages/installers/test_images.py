"""The images of examples/gate and examples/worker, built and run, if this machine can build images. `make images`; needs a network."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
FILES: Final = sorted((ROOT / "examples").glob("*/Containerfile"))
LONG: Final = 1800.0
UP_S: Final = 120.0


def builder() -> str | None:
    """podman or docker, if it can build here."""
    for program in ("podman", "docker"):
        if (
            shutil.which(program)
            and not subprocess.run([program, "info"], capture_output=True, check=False).returncode
        ):
            return program
    return None


BUILDER: Final = builder()
pytestmark = pytest.mark.skipif(BUILDER is None, reason="neither podman nor docker can build images here")


def call(*words: str, stdin: str = "") -> str:
    """Run the builder with these arguments. It must succeed. Returns its output."""
    assert BUILDER is not None
    done = subprocess.run(
        [BUILDER, *words], cwd=ROOT, input=stdin, capture_output=True, text=True, check=False, timeout=LONG
    )
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module", params=FILES, ids=[path.parent.name for path in FILES])
def image(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an image, built from scratch and removed afterwards."""
    file: Path = request.param
    name = f"sark-test-{file.parent.name}"
    call("build", "--tag", name, "--file", str(file), ".")
    yield name
    call("image", "rm", "--force", name)


def test_the_program_is_in_it_and_a_unit_works(image: str) -> None:
    assert call("run", "--rm", image, "--version").startswith("sark-node ")
    shown = json.loads(call("run", "--rm", image, "info", "--json"))
    assert "CPU (ONNX)" in [unit["unit"] for unit in shown["units"]]


def test_it_runs_as_its_own_user_and_ends_well_when_told_to(image: str) -> None:
    container = call("run", "--detach", image).strip()
    try:
        assert call("exec", container, "id", "-un").strip() == "sark"
        until = time.monotonic() + UP_S
        while " is up" not in (log := call("logs", container)) and " is a worker now" not in log:
            assert time.monotonic() < until, log
            time.sleep(1)
        call("stop", "-t", "60", container)
        assert call("inspect", "--format", "{{.State.ExitCode}}", container).strip() == "0"
    finally:
        call("rm", "--force", container)

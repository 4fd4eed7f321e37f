"""Small generated models, real models from installed packages, and zygotes that the tests share."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("SARK_NATIVE", str(Path(tempfile.gettempdir(), "sark-tests-native").absolute()))

from drivers.launch.launch import Zygote
from drivers.sandbox.enter import Tier
from tests.drivers.launching import below, wait_until
from tests.drivers.onnx_models import OnnxModels


@pytest.fixture(scope="session", autouse=True)
def private_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a private temporary folder, so that checks for leftovers count only our own, whatever else runs on this host."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("temporary"))
    yield
    tempfile.tempdir = before


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> OnnxModels:
    """Where generated models are stored."""
    return OnnxModels(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """A zygote of the ONNX driver."""
    with Zygote("onnx").start() as started:
        yield started


@pytest.fixture(scope="session")
def stage() -> Iterator[Zygote]:
    """A zygote of the fake driver."""
    with Zygote("fake", simulate=True).start() as started:
        yield started


@pytest.fixture(scope="session")
def bare() -> Iterator[Zygote]:
    """A zygote of the fake driver without a sandbox, so that a script may start processes."""
    with Zygote("fake", simulate=True, tier=Tier.NONE).start() as started:
        yield started


@pytest.fixture
def nothing_is_left(stage: Zygote) -> Iterator[None]:
    """Check after each test that no process is left below the zygote, and no private folder."""
    before = set(Path(tempfile.gettempdir()).glob("sark-run-*"))
    yield
    wait_until(lambda: not below(stage), f"left behind: {below(stage)}")
    assert set(Path(tempfile.gettempdir()).glob("sark-run-*")) <= before


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """A function that writes a script for the fake driver and returns its path."""

    def write(name: str = "script", **keys: Any) -> str:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(keys))
        return str(path)

    return write


def package_file(package: str, path: str) -> str:
    """A file inside an installed package, without importing it."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]) / path)


@pytest.fixture(scope="session")
def magika_model() -> str:
    """A real file-type classifier. Input: int32 [?, 2048]."""
    return package_file("magika", "models/standard_v3_3/model.onnx")


@pytest.fixture(scope="session")
def light_models() -> Path:
    """A folder of full-size graphs with generated weights."""
    return Path(package_file("onnx", "backend/test/data/light"))

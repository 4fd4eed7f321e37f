"""The demo, before it starts anything: all missing requirements are reported at once, with the command that installs them."""

from __future__ import annotations

import sys

import pytest
import yaml

from protocol.errors import ResourceError
from scheduler.local.demo import MODELS_FROM, need_packages, quickstart_file


def test_all_missing_packages_are_reported_with_one_command() -> None:
    with pytest.raises(ResourceError, match="not installed here: magika, onnx") as caught:
        need_packages(MODELS_FROM, lambda name: None)
    assert caught.value.hint == f"{sys.executable} -m pip install magika onnx"
    need_packages(MODELS_FROM, lambda name: name)


def test_those_are_the_packages_of_the_quickstart() -> None:
    campaign = yaml.safe_load(quickstart_file().read_text(encoding="utf-8"))
    assert {model["package"] for model in campaign["models"]} == set(MODELS_FROM)

"""The files behind a campaign: found, named by content, and refused when they are clearly no models."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from protocol.values.task import Model
from scheduler.campaign.load import load_campaign, parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.models.describe import describe_models
from scheduler.models.files import CampaignFile
from tests.tiny_onnx import tiny_onnx

ONNX_LIKE = tiny_onnx()
EXAMPLES = Path(__file__).parents[3] / "examples"


def campaign(entry: str) -> Campaign:
    return parse_campaign(f"campaign: t\nunits: [CPU (ONNX)]\nmodels:\n - {entry}\n".encode(), "c.yaml")


def refused(entry: str, folder: Path) -> CampaignError:
    with pytest.raises(CampaignError) as caught:
        describe_models(campaign(entry), folder)
    assert caught.value.line == 4
    assert str(caught.value).startswith("c.yaml:4: ")
    assert caught.value.hint
    return caught.value


def test_a_model_is_named_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "m.onnx"
    file.write_bytes(ONNX_LIKE)
    digest = hashlib.sha256(ONNX_LIKE).hexdigest()
    result = describe_models(campaign(f"{{path: sub/m.onnx, sha256: {digest}}}"), tmp_path)
    assert result == {"m.onnx": CampaignFile(file, Model(name="m.onnx", sha256=digest, size=len(ONNX_LIKE)))}


def test_an_absolute_path_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(ONNX_LIKE)
    assert describe_models(campaign(f'"{file.as_posix()}"'), Path("elsewhere"))["m.onnx"].source == file


def test_another_sha256_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(ONNX_LIKE)
    error = refused(f"{{path: m, sha256: {'0' * 64}}}", tmp_path)
    assert hashlib.sha256(ONNX_LIKE).hexdigest() in str(error)


def test_a_missing_file_a_folder_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    assert "no such file" in str(refused("none.onnx", tmp_path))
    assert "the folder is empty" in str(refused("folder", tmp_path))
    assert "the file is empty" in str(refused("empty", tmp_path))
    assert "cannot be read" in str(refused("~no-such-user-here/m.onnx", tmp_path))
    assert "cannot be read" in str(refused(f"{'y' * 300}/z", tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in str(refused("pipe", tmp_path))


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS pointer"),
        (b"\x80\x04\x95\x00\x00", "pickle"),
        (b"PK\x03\x04\x14\x00", "zip archive"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"\n\n  <!DOCTYPE html><html>", "web page"),
        (b"<html><body>404", "web page"),
        (b'{"error": "not found"}', "JSON"),
        (b"\x1c\x00\x00\x00TFL3", "LiteRT model, not an ONNX model"),
        (b"\x7fELF\x02", "program"),
        (b"#!/bin/sh\n", "script"),
        (b"\0" * 257 + b"ustar", "tar archive"),
    ],
)
def test_what_is_plainly_no_model_is_refused_by_name(tmp_path: Path, head: bytes, what: str) -> None:
    (tmp_path / "m.onnx").write_bytes(head + b"\0" * 600)
    assert what in str(refused("m.onnx", tmp_path))


def test_a_model_may_come_from_an_installed_package(tmp_path: Path) -> None:
    result = describe_models(campaign("{package: magika, path: models/standard_v3_3/model.onnx}"), tmp_path)
    path, model, _ = result["model.onnx"]
    assert isinstance(path, Path)
    assert model.size == path.stat().st_size > 1_000_000


def test_a_package_that_is_not_there_is_answered_with_the_line_that_installs_it(tmp_path: Path) -> None:
    error = refused("{package: no_such_package, path: m.onnx}", tmp_path)
    assert "no_such_package is not installed" in str(error)
    assert error.hint == "python -m pip install no_such_package"


def test_a_path_in_a_package_stays_in_it(tmp_path: Path) -> None:
    for path in ("../onnx/x.onnx", "/x.onnx", r"..\onnx\x.onnx", "C:/x.onnx", "C:x.onnx"):
        assert "leaves the package" in str(refused(f"{{package: magika, path: '{path}'}}", tmp_path))
    assert "no such file" in str(refused("{package: magika, path: none.onnx}", tmp_path))


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("*/campaign.*")), ids=lambda path: f"{path.parent.name}{path.suffix}"
)
def test_every_example_is_a_campaign_whose_models_are_there(path: Path) -> None:
    plan = load_campaign(path)
    if path.parent.name == "plain":  # the reader provides the model
        with pytest.raises(CampaignError, match="no such file"):
            describe_models(plan, path.parent)
    else:
        evaluated = sum(entry.evaluate is not None for entry in plan.models)  # each has a file of examples
        assert len(describe_models(plan, path.parent)) == len(plan.models) + evaluated

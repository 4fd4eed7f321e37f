"""A model that is a folder: the same files give the same bytes, and nothing but files is accepted."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from protocol.wire.bundle import MAX_PARTS, read_header
from scheduler.campaign.load import parse_campaign
from scheduler.models.describe import describe_models
from scheduler.models.spool import spool
from swarm.blobs.bundles import contents
from tests.tiny_onnx import tiny_onnx


def described(folder: Path, path: str, unit: str = "CPU (ONNX)") -> tuple[Path, str, int]:
    text = f"campaign: t\nunits: [{unit}]\nmodels:\n - {path}\n"
    result, model, _ = describe_models(parse_campaign(text.encode(), "c.yaml"), folder)[path]
    assert isinstance(result, Path)
    return result, model.sha256, model.size


def write(folder: Path, **files: bytes) -> Path:
    """Write a model and these files."""
    (folder / "sub").mkdir(parents=True)
    for name, content in {"net.onnx": tiny_onnx(), **files}.items():
        (folder / name.replace("__", "/")).write_bytes(content)
    return folder


def test_a_folder_is_named_by_its_files_and_travels_as_one_blob(tmp_path: Path) -> None:
    one = write(tmp_path / "net", sub__weights=b"\0" * 3_000_000, another=b"")
    path, sha256, size = described(tmp_path, "net")
    blob = b"".join(contents(one))
    assert (path, sha256, size) == (one, hashlib.sha256(blob).hexdigest(), len(blob))
    source = io.BytesIO(blob)
    parts = read_header(source.read) or ()
    assert [part.path for part in parts] == ["another", "net.onnx", "sub/weights"]
    assert source.read() == tiny_onnx() + b"\0" * 3_000_000


def test_the_same_files_elsewhere_have_the_same_name_and_other_content_another(tmp_path: Path) -> None:
    write(tmp_path / "a", x=b"1", sub__y=b"2")
    write(tmp_path / "b", sub__y=b"2", x=b"1")
    (tmp_path / "b" / ".DS_Store").write_bytes(b"what a system left there")
    write(tmp_path / "c", x=b"1", sub__z=b"2")
    first, second, third = (described(tmp_path, name)[1] for name in "abc")
    assert first == second != third


def test_it_is_spooled_like_any_other_model_and_noticed_when_it_changed(tmp_path: Path) -> None:
    folder = write(tmp_path / "net", x=b"1")
    text = b"campaign: t\nunits: [CPU (ONNX)]\nmodels: [net]\n"
    path, model, _ = describe_models(parse_campaign(text, "c.yaml"), tmp_path)["net"]
    assert path is not None
    stored = spool(path, model, tmp_path / "spool")
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == stored.name == model.sha256
    (folder / "x").write_bytes(b"2")
    with pytest.raises(CampaignError, match="changed while it was read"):
        spool(path, model, tmp_path / "other")


def test_what_is_no_model_folder_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    linked = write(tmp_path / "linked", x=b"1")
    (linked / "y").symlink_to(linked / "x")
    strange = write(tmp_path / "strange", x=b"1")
    (strange / "a\u202eb").write_bytes(b"1")
    many = write(tmp_path / "many")
    for number in range(MAX_PARTS + 1):
        (many / str(number)).touch()
    for name, why in [("empty", "empty"), ("linked", "link"), ("strange", "letters"), ("many", "256")]:
        with pytest.raises(CampaignError, match=why) as caught:
            described(tmp_path, name)
        assert caught.value.line == 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(write(tmp_path / "net") / "pipe")
    with pytest.raises(CampaignError, match="only regular files"):
        described(tmp_path, "net")


def archive(path: Path, *members: str) -> None:
    with zipfile.ZipFile(path, "w") as made:
        for member in members:
            made.writestr(f"net/{member}", b"x")


def test_torch_archives_are_for_torch_units_and_a_pickled_checkpoint_for_none(tmp_path: Path) -> None:
    archive(tmp_path / "script.pt", "data.pkl", "code/__torch__.py")
    archive(tmp_path / "program.pt2", "archive_format", "models/model.json")
    archive(tmp_path / "checkpoint.pt", "data.pkl", "data/0")
    archive(tmp_path / "other.zip", "readme")
    for name in ("script.pt", "program.pt2"):
        described(tmp_path, name, "CPU (Torch)")
        with pytest.raises(CampaignError, match=r"which CPU .ONNX. cannot run"):
            described(tmp_path, name)
    with pytest.raises(CampaignError, match="a Python pickle") as caught:
        described(tmp_path, "checkpoint.pt", "CPU (Torch)")
    assert "torch.export.save" in str(caught.value.hint)
    with pytest.raises(CampaignError, match="zip archive"):
        described(tmp_path, "other.zip", "CPU (Torch)")


def test_what_has_no_end_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a regular file"):
            next(contents(path))

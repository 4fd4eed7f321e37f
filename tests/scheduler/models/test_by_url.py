"""A campaign is adopted whose model no device has: the URL in its tasks gives the model, if it is still the same file and on the public
internet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.errors import ResourceError
from protocol.values.task import Model
from scheduler.adoption.adopt import _bring_models
from scheduler.models.fetch import fetch_adopted
from tests.scheduler.core_parts import a_task
from tests.swarm.web_parts import PUBLIC, Net, papers, web

DATA = b"a model" * 1000
MODEL = Model(name="m.onnx", sha256=hashlib.sha256(DATA).hexdigest(), size=len(DATA))
URL = "https://models.example.org/m.onnx"


class _Nobody:
    """A swarm in which nobody has the model."""

    async def model(self, model: Model, spool: Path, first: Sequence[str]) -> bool:
        return False


@pytest.mark.parametrize(
    ("served", "url", "missing"),
    [
        (DATA, URL, ()),
        (DATA[::-1], URL, ("m.onnx",)),
        (DATA + b"x", URL, ("m.onnx",)),
        (None, URL, ("m.onnx",)),
        (DATA, "https://127.0.0.1/m.onnx", ("m.onnx",)),
        (DATA, "http://models.example.org/m.onnx", ("m.onnx",)),
        (DATA, None, ("m.onnx",)),
    ],
)
async def test_what_nobody_has_comes_from_its_url_or_is_missing(
    tmp_path: Path, served: bytes | None, url: str | None, missing: tuple[str, ...]
) -> None:
    made = papers(tmp_path, "models.example.org")
    spool = tmp_path / "spool"
    task = a_task(1).model_copy(update={"model": MODEL, "model_url": url})
    async with web(made.server) as site:
        if served is not None:
            site.file("/m.onnx", served)
        net = Net({"models.example.org": [PUBLIC]}, site, made.client)
        opened = cast("Any", SimpleNamespace(tasks=[task], manifest=SimpleNamespace(spec="{}")))
        result = await _bring_models(cast("Any", _Nobody()), opened, {}, spool, None, net.edge())
    assert result == missing
    assert [path.name for path in spool.iterdir()] == ([] if missing else [MODEL.sha256])
    if not missing:
        assert (spool / MODEL.sha256).read_bytes() == DATA


async def test_a_disk_that_cannot_be_written_is_no_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="No such file or directory"):
        await fetch_adopted(URL, MODEL, tmp_path / "nowhere")

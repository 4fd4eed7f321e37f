"""The commands that docs/api.md tells people to type, executed; and the page that shows the document."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from tests.tiny_onnx import tiny_onnx

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
EXAMPLES = re.findall(
    r"^```(sh|python)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.mark.skipif(
    shutil.which("curl") is None, reason="the page's commands use curl, which is not installed here"
)
async def test_every_command_of_the_page_does_what_it_says(served: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(tiny_onnx())
    environment = {**os.environ, "SARK": str(served.base_url).rstrip("/"), "NO_PROXY": "*"}
    shell = "set -e\n" + "\n".join(text for kind, text in EXAMPLES if kind == "sh")
    python = "\n".join(text for kind, text in EXAMPLES if kind == "python")
    for command in (["bash", "-c", shell], [sys.executable, "-c", python]):
        run = partial(trio.run_process, command, capture_stdout=True, capture_stderr=True, check=False)
        with trio.fail_after(60):
            done: subprocess.CompletedProcess[bytes] = await run(env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr.decode()
    assert b"from-python" in done.stdout
    campaigns = (await served.get("/api/v1/campaigns")).json()["campaigns"]
    assert [item["name"] for item in campaigns] == ["from-python", "vision"]


@pytest.mark.parametrize("path", ["/", "/docs", "/static/app.js", "/static/pages/docs.js"])
async def test_the_pages_are_there(served: httpx.AsyncClient, path: str) -> None:
    assert (await served.get(path)).status_code == 200

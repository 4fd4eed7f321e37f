"""Writes docs/images/demo.svg, the picture in the README: the matrix that `sark-node demo` prints at its end.

python -P tools/picture.py         runs the demo, which needs the extra `demo`
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

WIDTH: Final = 100
PICTURE: Final = Path(__file__).absolute().parents[1] / "docs" / "images" / "demo.svg"
WORKERS: Final = ("worker-1", "worker-2", "worker-3")
PROGRAM: Final = (sys.executable, "-c", "from sark import main; main()")


def demo_lines() -> list[str]:
    """The matrix of a demo that runs now, and its summary line."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*PROGRAM, "demo"], cwd=folder, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split() == list(WORKERS))
    end = next(number for number, line in enumerate(lines) if "tasks complete" in line)
    return lines[head : end + 1]


def draw(lines: list[str]) -> str:
    """The lines in a terminal window, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ sark-node demo", style="bold"))
    for number, line in enumerate(lines):
        console.print(Text(line, style="dim" if number == 0 else ""), no_wrap=True)
    return console.export_svg(title="sark-node", unique_id="sark")


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(demo_lines()), encoding="utf-8")
    print(f"written: {PICTURE}")

"""Draws the curves of docs/scale.md from the figures that `--out` stored.

python -m benchmarks.network.scale.curves scale.jsonl docs/images/scale-publishing.svg docs/images/scale-reading.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from results.report.drawing import (
    Dots,
    Drawing,
    Mark,
    Stroke,
    TextLabel,
    Tone,
    axis_below,
    axis_left,
    scale_over,
    svg,
)

WIDTH: Final = 720.0
HEIGHT: Final = 300.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 560.0, 14.0, 244.0
LETTERS: Final = 12.0
Curve = tuple[str, Tone, Sequence[float]]
"""Name, colour, and calls at each size."""


def chart(title: str, sizes: Sequence[int], curves: Sequence[Curve]) -> Drawing:
    """Calls by number of nodes, with a logarithmic axis for the nodes."""
    across = scale_over(sizes, LEFT + 10, RIGHT - 10, log=True)
    upward = scale_over([calls for _, _, line in curves for calls in line], BOTTOM, TOP, zero=True, log=False)
    marks: list[Mark] = [
        *axis_left(upward, LEFT, RIGHT, LETTERS),
        *axis_below(across, TOP, BOTTOM, "nodes", LETTERS),
    ]
    ends = sorted((upward.at(line[-1]), name, tone) for name, tone, line in curves)
    place = -LETTERS
    for y, name, tone in ends:
        place = max(y, place + LETTERS * 1.3)
        marks.append(TextLabel(RIGHT + 4, place + LETTERS * 0.35, name, tone, LETTERS))
    for _, tone, line in curves:
        points = [(across.at(size), upward.at(calls)) for size, calls in zip(sizes, line, strict=True)]
        marks += [Stroke(points, tone, 2.0), Dots(points, tone, 6.0)]
    said = "; ".join(
        f"{name}: " + ", ".join(f"{calls:.0f} at {size:,}" for size, calls in zip(sizes, line, strict=True))
        for name, _, line in curves
    )
    return Drawing(WIDTH, HEIGHT, title, f"Calls of one node, by the number of nodes. {said}.", marks)


def main() -> None:
    """Read the figures, and draw and write two charts."""
    source, publishing, reading = map(Path, sys.argv[1:])
    read = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    runs: list[dict[str, Any]] = sorted(
        (each for each in read if each["scenario"] == "rest"), key=lambda each: each["nodes"]
    )
    sizes = [each["nodes"] for each in runs]
    published = chart(
        "Calls to publish an advert",
        sizes,
        [
            ("until settled", Tone.FIRST, [each["settled_calls"] for each in runs]),
            ("until published", Tone.GOOD, [each["publish_calls"] for each in runs]),
            ("to refresh it", Tone.SECOND, [each["refresh_calls"] for each in runs]),
        ],
    )
    asked = chart(
        "Calls of one query",
        sizes,
        [
            (words, tone, [each["queries"][kind]["calls"] for each in runs])
            for words, tone, kind in (
                ("for a rare label", Tone.SECOND, "rare"),
                ("for two properties", Tone.GOOD, "common"),
                ("for any device", Tone.FIRST, "hot"),
            )
        ],
    )
    for path, drawing in ((publishing, published), (reading, asked)):
        path.write_text(svg(drawing, "light", name=path.stem) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Where a task's operators ran, for a terminal: 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from results.row.operators import OperatorLine, OperatorUses
from swarm.base.text import safe_text

BAR: Final = 12
_HEAD: Final = f"  {'operator':<24} {'ran on':<12} {'graph':>6} {'kernels':>7} {'ms':>9} {'share':>6}"
UNKNOWN: Final = "its record does not say where its operators ran"


def operators_lines(name: str, uses: OperatorUses | None) -> Sequence[str]:
    """A heading, a sentence, a table with a bar on each line, and why some operators fell back."""
    if uses is None:
        return [f"{safe_text(name)}: {UNKNOWN}"]
    shown, left, share = uses.first()
    lines = [f"{safe_text(name)}: {uses.summary}", _HEAD, *map(_line, shown)]
    if left:
        lines.append(f"  {left} more types: {share:.1%} of the time")
    if uses.issued:
        lines.append("  ms of a device: the host's time to issue the work; the device computes meanwhile")
    return [*lines, *_whys(shown)]


def _line(line: OperatorLine) -> str:
    ms = "–" if line.ms is None else f"{line.ms:.4g}"
    share = "–" if line.share is None else f"{line.share:.1%}"
    nodes = "–" if line.nodes is None else str(line.nodes)
    bar = "█" * max(round(BAR * (line.share or 0.0)), 1 if line.share else 0)
    mark = "!" if line.fell_back else " "
    text = f"{mark} {_cut(line.op, 24):<24} {_cut(line.provider, 12):<12} {nodes:>6} {line.ran:>7} {ms:>9} {share:>6} {bar}"
    return text.rstrip()


def _whys(lines: Iterable[OperatorLine]) -> Iterable[str]:
    for line in lines:
        if line.fell_back:
            yield f"! {safe_text(line.op)} on {safe_text(line.provider)}: {safe_text(line.why)}"


def _cut(text: str, width: int) -> str:
    text = safe_text(text)
    return text if len(text) <= width else text[: width - 1] + "…"

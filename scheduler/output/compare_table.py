"""Two results compared, for people: one line for each pair under its model; numbered reasons follow at the end. Pure.

B is     ratio         95 %  A ms  B ms
resnet50.onnx  1×3×224×224  mini
SLOWER  ×1.052  1.048–1.057  12.5  13.2  CPU (ONNX) ×4
–                             2.1        GPU (ONNX) [1]
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from results.analysis.pairs import Pair
from results.row.comparison import verdict_phrase
from results.row.form import against_words, short_shapes, without_names
from scheduler.output.comparisons import PairInfo, pair_places, unit_words
from scheduler.output.reasons import Reasons
from scheduler.output.terminal import cut_middle, show_figure
from swarm.base.text import safe_text

GAP: Final = "  "
HEADING: Final = 2
"""Facts of a pair shown in the heading above it: model and shape."""
LEAST: Final = 16
"""Columns for what is compared, whatever the terminal's width."""
LEGEND: Final = "Medians in ms; ratio: B's time divided by A's, with its 95 % interval."
TURNS: Final = "Medians in ms; ratio: B's wall time divided by A's, measured in turns, with its interval."
MAX_TURNED: Final = 12
"""Most comparisons in turns shown below a matrix."""
_STYLE: Final = {"FASTER": "green", "SLOWER": "red", "SAME": "", "AMBIGUOUS": "yellow"}


def compare_lines(pairs: Sequence[Pair], width: int) -> list[Text]:
    """The whole comparison, in lines of at most `width` columns."""
    facts = [_facts(pair) for pair in pairs]
    alike = [len(set(column)) == 1 and len(pairs) > 1 for column in zip(*facts, strict=True)]
    reasons = Reasons()
    cells = [_cells(pair) for pair in pairs]
    heads = ("B is", "ratio", "interval" if any(pair.in_turns for pair in pairs) else "95 %", "A ms", "B ms")
    wide = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    left = max(LEAST, width - sum(wide) - len(GAP) * len(wide))
    lines = [Text(_line(heads, wide), "dim")]
    groups: dict[tuple[str, ...], list[int]] = {}
    for at, own in enumerate(facts):
        groups.setdefault(own[:HEADING], []).append(at)
    shared = [fact for fact, same in zip(facts[0][HEADING:], alike[HEADING:], strict=True) if same and fact]
    for heading, members in groups.items():
        lines.append(Text(cut_middle(GAP.join(filter(None, (*heading, *shared))), width), "bold"))
        for at in members:
            pair, row, own = pairs[at], cells[at], facts[at][HEADING:]
            places = [fact for fact, same in zip(own, alike[HEADING:], strict=True) if fact and not same]
            name = " · ".join([*([] if pair.sittings is None else [f"{pair.sittings} sittings"]), *places])
            mark = reasons.mark(_reason(pair), " · ".join(filter(None, facts[at])))
            line = Text(_line(row, wide))
            line.stylize(_STYLE[pair.comparison.verdict], 0, len(row[0]))
            line.append(GAP + cut_middle(name, left - (cell_len(mark) + 1 if mark else 0)))
            line.append(f" {mark}" if mark else "", "dim")
            line.rstrip()
            lines.append(line)
    legend = textwrap.wrap(TURNS if any(pair.in_turns for pair in pairs) else LEGEND, width)
    return [*lines, Text(), *map(Text, legend), *reasons.lines(width)]


def turned_lines(pairs: Sequence[PairInfo], width: int) -> list[Text]:
    """A line for each comparison in turns, to show below a matrix: `net int8 on mini, CPU (ONNX): FASTER than net fp32, ×0.81 [0.79, 0.83]
    over 3 sittings`.
    """
    if not pairs:
        return []
    lines = [Text(), Text("Measured in turns; ×: ratio of wall times", "bold")]
    for pair in pairs[:MAX_TURNED]:
        place = ", ".join(
            filter(None, (pair.b_device, unit_words(pair.b_unit or "", pair.b_threads, pair.b_batch)))
        )
        ends = (
            ""
            if pair.ratio_low is None or pair.ratio_high is None
            else f" [{pair.ratio_low:.3f}, {pair.ratio_high:.3f}]"
        )
        ratio = "" if pair.ratio is None else f", ×{pair.ratio:.3f}{ends}"
        over = "" if pair.sittings is None else f" over {pair.sittings} sittings"
        base = against_words(*(side or "" for side in (pair.a_model, pair.a_unit, pair.b_model, pair.b_unit)))
        words = f"{pair.b_model} on {place}: {verdict_phrase(pair.verdict)} {base}{ratio}{over}"
        lines += [Text(line) for line in textwrap.wrap(safe_text(words, 300), width, subsequent_indent="  ")]
    if (more := len(pairs) - MAX_TURNED) > 0:
        lines.append(Text(f"and {more} more: sark-node compare", "dim"))
    return lines


def _facts(pair: Pair) -> tuple[str, ...]:
    """Model, shape, unit with its threads, device."""
    model, unit, device = map(safe_text, pair_places(pair))
    shapes = {without_names(row.shapes): row.shapes for row in (pair.a, pair.b) if row is not None}
    shape = safe_text(short_shapes(next(iter(shapes.values())))) if len(shapes) == 1 else ""
    return model, shape, re.sub(r", (\d+) threads?", r" ×\1", unit), device


def _cells(pair: Pair) -> tuple[str, ...]:
    found = pair.comparison
    a, b = (None if row is None else row.inference_ms_median for row in (pair.a, pair.b))
    return (
        "–" if found.ratio is None else found.verdict.value,
        "" if found.ratio is None else f"×{found.ratio:.3f}",
        "" if found.low is None or found.high is None else f"{found.low:.3f}–{found.high:.3f}",
        show_figure(a),
        show_figure(b),
    )


def _reason(pair: Pair) -> str:
    """Why the comparison is not sure, and other remarks."""
    found = pair.comparison
    why = found.why if found.verdict == "AMBIGUOUS" or found.low is None or pair.in_turns else ""
    return "; ".join(filter(None, (why, pair.note)))


def _line(cells: Sequence[str], wide: Sequence[int]) -> str:
    first, *others = zip(cells, wide, strict=True)
    return GAP.join(
        [first[0].ljust(first[1]), *(" " * (room - cell_len(cell)) + cell for cell, room in others)]
    )

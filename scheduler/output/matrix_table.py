"""The matrix for people: devices as columns, the models' units as rows, in blocks of as many columns as fit. Pure.

    net.onnx 1×3×224×224       mini         zen4
      CPU (ONNX)           12.5 ±2%   *18.2 ±3%
      GPU (ONNX)            3.1 ±1%         [1]

`*`: the quickest of the model, and any that equals it within its interval. `[1]`: see the reasons below.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from results.analysis.matrix import MatrixCell
from results.row.form import short_shapes, without_names
from results.row.simulated import mark_simulated, prefer_measured
from results.row.verdicts import RowVerdict
from scheduler.output.reasons import Reasons
from scheduler.output.terminal import cut_middle
from swarm.base.text import count, safe_text

MAX_LABEL: Final = 34
MAX_HEAD: Final = 22
GAP: Final = "  "
Show = Callable[[MatrixCell], str]


@dataclass(frozen=True, slots=True)
class GridRow:
    """One unit of one model, or, without cells, the heading of a model."""

    label: str
    cells: dict[str, MatrixCell] = field(default_factory=dict)
    """Cells by device."""


def matrix_lines(cells: Sequence[MatrixCell], base: str, width: int) -> list[Text]:
    """The whole matrix: times, then other figures, then why cells are not simply valid."""
    reasons = Reasons()
    best = _best(cells)
    rows = list(_rows(cells))
    devices = _devices(cells, base)

    def time(cell: MatrixCell) -> str:
        star = "*" if id(cell) in best else ""
        ratio = "" if not base else " ×–" if cell.ratio is None else f" ×{cell.ratio:.3g}"
        return " ".join(filter(None, [f"{star}{_time(cell)}{ratio}".strip(), _reason(cell, reasons)]))

    lines = grid_lines(rows, devices, time, width)
    for title, show in _more(cells):
        lines += [Text(), Text(title, "bold"), *grid_lines(rows, devices, show, width)]
    legend = ["Medians in ms; ±: half of the 95 % interval of the median."]
    if best:
        legend.append("* the fastest of its model, or as fast within its interval.")
    if base:
        legend.append(f"× the ratio to {safe_text(base)}.")
    return [*lines, Text(), *map(Text, textwrap.wrap(" ".join(legend), width)), *reasons.lines(width)]


# -- layout --------------------------------------------------------------------------------------------------------------------------


def _device(cell: MatrixCell) -> str:
    return mark_simulated(safe_text(cell.device), cell.verdict == RowVerdict.SIMULATED) if cell.device else ""


def _devices(cells: Sequence[MatrixCell], base: str) -> list[str]:
    """Devices sorted by name, the base first; the column for cells without a device last."""
    return sorted({_device(cell) for cell in cells}, key=lambda name: (name != base, not name, name))


def _model(cell: MatrixCell) -> tuple[str, int]:
    return cell.model, cell.batch or 0


def _groups(cells: Sequence[MatrixCell]) -> Iterator[tuple[str, list[MatrixCell]]]:
    """Comparable cells, with their model, batch and shape as heading. Cells without a shape join the model's first shape."""
    models: dict[tuple[str, int], dict[tuple[str, ...], list[MatrixCell]]] = {}
    for cell in cells:
        models.setdefault(_model(cell), {}).setdefault(without_names(cell.shapes), []).append(cell)
    for (model, batch), shapes in models.items():
        unshaped = shapes.pop(without_names(""), []) if len(shapes) > 1 else []
        for at, group in enumerate(shapes.values()):
            shape = short_shapes(group[0].shapes)
            words = (safe_text(model), f"batch {batch}" if batch else "", safe_text(shape))
            yield GAP.join(filter(None, words)), [*group, *(unshaped if at == 0 else ())]


def _rows(cells: Sequence[MatrixCell]) -> Iterator[GridRow]:
    for heading, group in _groups(cells):
        yield GridRow(heading)
        seen: dict[tuple[str, str], set[int | None]] = {}
        for cell in group:
            seen.setdefault((cell.unit, _device(cell)), set()).add(cell.threads)
        several = {unit for (unit, _), threads in seen.items() if len(threads - {None}) > 1}
        units: dict[str, list[dict[str, MatrixCell]]] = {}
        for cell in sorted(group, key=lambda cell: (cell.unit, cell.threads or 0)):
            threads = cell.threads if cell.unit in several else None
            label = safe_text(cell.unit) + ("" if threads is None else f", {count(threads, 'thread')}")
            slots = units.setdefault(label, [])
            free = next((slot for slot in slots if _device(cell) not in slot), None)
            if free is None:
                slots.append(free := {})
            free[_device(cell)] = cell
        for label, slots in units.items():
            yield from (GridRow(f"{GAP}{label}", slot) for slot in slots)


def _best(cells: Sequence[MatrixCell]) -> set[int]:
    """Ids of each model's quickest cells, if there is more than one to choose from."""
    best: set[int] = set()
    for _, group in _groups(cells):
        timed = prefer_measured(
            cell for cell in group if cell.median_ms and cell.verdict != RowVerdict.MISMATCH
        )
        if len(timed) > 1:
            first = min(timed, key=lambda cell: cell.median_ms or 0)
            limit = max(first.high_ms or 0, first.median_ms or 0)
            best |= {id(cell) for cell in timed if (cell.median_ms or 0) <= limit}
    return best


def _time(cell: MatrixCell) -> str:
    if cell.median_ms is None:
        return ""
    half = ""
    if cell.low_ms is not None and cell.high_ms is not None and cell.median_ms:
        half = f" ±{50 * (cell.high_ms - cell.low_ms) / cell.median_ms:.0f}%"
    return f"{cell.median_ms:.3g}{half}" if cell.median_ms < 1000 else f"{cell.median_ms:.0f}{half}"


def _more(cells: Sequence[MatrixCell]) -> Iterator[tuple[str, Show]]:
    """Further figures that some cell has, each with its title."""
    currency = next((cell.currency for cell in cells if cell.currency), "")

    def shown(name: str) -> Show:
        def show(cell: MatrixCell) -> str:
            value = getattr(cell, name)
            return "" if value is None else f"{value:.4g}"

        return show

    if any(cell.batch for cell in cells):
        yield "Inputs per second", shown("per_s")
    if any(cell.per_watt for cell in cells):
        yield f"Inferences per second per watt{_sources(cells)}", shown("per_watt")
    if currency:
        yield f"{safe_text(currency)} per million inputs", shown("per_million")


def _sources(cells: Sequence[MatrixCell]) -> str:
    """The sources of the energy readings. With several, a warning: the energy of a package is not that at the plug."""
    names = sorted({safe_text(cell.energy_source) for cell in cells if cell.per_watt and cell.energy_source})
    if len(names) < 2:
        return "".join(f" ({name})" for name in names)
    return f" (by {', '.join(names)}: compare only values of one source)"


def _reason(cell: MatrixCell, reasons: Reasons) -> str:
    if cell.verdict == RowVerdict.SIMULATED:
        return ""
    return reasons.mark(cell.remark, f"{safe_text(cell.model)} on {safe_text(cell.device or 'no device')}")


# -- drawing ----------------------------------------------------------------------------------------------------------------------------


def grid_lines(
    rows: Sequence[GridRow],
    devices: Sequence[str],
    show: Show,
    width: int,
    style: Show = lambda cell: "",
) -> list[Text]:
    """The rows in blocks of as many devices as fit beside the labels; a block leaves out devices that none of its rows has."""
    texts = [{device: show(cell) for device, cell in row.cells.items()} for row in rows]
    label = min(MAX_LABEL, max((cell_len(row.label) for row in rows if row.cells), default=0))
    heads = {device: cut_middle(device or "no device", MAX_HEAD) for device in devices}
    wide = {
        device: max(cell_len(heads[device]), *(cell_len(text.get(device, "")) for text in texts))
        for device in devices
    }
    lines: list[Text] = []
    for block in _blocks(devices, wide, width - label):
        if lines:
            lines.append(Text())
        lines.append(
            Text(" " * label + "".join(GAP + _right(heads[device], wide[device]) for device in block), "dim")
        )
        for row, text in zip(rows, texts, strict=True):
            if not row.cells:
                lines.append(Text(cut_middle(row.label, width), "bold"))
                continue
            line = Text(set_cell_size(cut_middle(row.label, label), label))
            for device in block:
                word = text.get(device, "")
                look = style(row.cells[device]) if device in row.cells else ""
                line.append(GAP + _right(word, wide[device]), "green" if word.startswith("*") else look)
            line.rstrip()
            lines.append(line)
    return lines


def _blocks(devices: Sequence[str], wide: dict[str, int], room: int) -> Iterator[list[str]]:
    block: list[str] = []
    left = room
    for device in devices:
        needed = len(GAP) + wide[device]
        if block and needed > left:
            yield block
            block, left = [], room
        block.append(device)
        left -= needed
    if block:
        yield block


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text

"""A plan for people: a table that fits 80 columns, totals, and why cells are not covered. Also stores plans on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from protocol.errors import CampaignError
from protocol.values.campaign_manifest import MAX_MANIFEST, MAX_MANIFEST_TASKS
from protocol.values.requirement import show_size
from scheduler.output.terminal import ShortName, name, number, shrinking, table
from scheduler.preview.plan import HASH_DIGITS, LivePlan, PlanCell
from scheduler.trust.untrusted import OPEN_LINE, UntrustedDevice, untrusted_lines
from swarm.base.durable import write_atomically
from swarm.base.home import Home
from swarm.base.text import count, safe_columns, safe_text
from swarm.base.units import show_duration, show_estimate

UNKNOWN: Final = "unknown"
MAX_PLANS: Final = 50
"""Most plans on disk; the oldest are removed first."""
MAX_RUNS: Final = 8
MAX_UNCOVERED: Final = 12


def plan_table(plan: LivePlan, width: int = 80) -> Table:
    """A line for each cell, with the columns that tell cells apart."""
    cells = plan.cells
    against = any(cell.against for cell in cells)
    threads, batches = (
        any(getattr(cell, field) is not None for cell in cells) for field in ("threads", "batch")
    )
    return table(
        cells,
        (name(""), lambda cell: Text("✓", "green") if cell.covered else Text("✗", "red")),
        (shrinking("model"), lambda cell: ShortName(safe_text(cell.model, 60))),
        (shrinking("against"), lambda cell: ShortName(safe_text(cell.against or "-", 60)))
        if against
        else None,
        (shrinking("unit"), lambda cell: ShortName(safe_text(cell.unit, 40))),
        (number("threads"), lambda cell: str(cell.threads or "physical")) if threads else None,
        (number("batch"), lambda cell: str(cell.batch or "")) if batches else None,
        (shrinking("shape"), lambda cell: ShortName(safe_text(cell.shape, 60)))
        if any(cell.shape for cell in cells)
        else None,
        (number("tasks"), lambda cell: str(cell.tasks)) if any(cell.tasks != 1 for cell in cells) else None,
        (number("fit"), lambda cell: str(len(cell.fit))),
        (number("serve"), lambda cell: str(len(cell.serve))),
        (number("start"), _start),
        (number("each"), lambda cell: UNKNOWN if cell.run_s is None else show_estimate(cell.run_s)),
        (number("fetch"), lambda cell: show_size(cell.fetch) if cell.fetch else "-"),
        gap=2 if width >= 100 else 1,
    )


def _start(cell: PlanCell) -> str:
    if not cell.serve:
        return "-"
    if cell.start_s is None:
        return "not known"
    return "now" if cell.start_s < 1 else f"in {show_estimate(cell.start_s)}"


def plan_lines(plan: LivePlan) -> list[str]:
    """The lines below the table: totals, which runs would give way, why cells are not covered, and how to continue."""
    devices = f"{len(plan.devices)} of {count(plan.seen, 'device')}"
    tasks = count(plan.tasks, "task")
    lines = [f"{plan.covered} of {len(plan.cells)} cells covered: {tasks}, {devices} fit."]
    sources = sorted({cell.run_from for cell in plan.cells if cell.run_from})
    total = "time in all not known" if plan.total_s is None else f"{show_estimate(plan.total_s)} in all"
    source = f" (from {' and '.join(sources)})" if sources and plan.total_s is not None else ""
    fetch = f"{show_size(plan.fetch)} to fetch" if plan.fetch else "nothing to fetch"
    lines.append(f"Expected: {total}{source}, {fetch}.")
    if plan.sittings > 1:
        lasts = show_duration(plan.lasts_s)
        lines.append(
            f"{plan.sittings} sittings of each, counted as tasks: the campaign lasts longer than {lasts}."
        )
    runs = list(dict.fromkeys(run for cell in plan.cells for run in cell.gives_way))
    lines += [f"Would give way: {safe_columns(run)}" for run in runs[:MAX_RUNS]]
    if plan.open:
        lines.append(OPEN_LINE)
    lines += untrusted_lines(
        [UntrustedDevice(each.peer, each.device, each.name, each.serves) for each in plan.untrusted]
    )
    if not plan.complete:
        lines.append(
            "There are more devices than can be looked up: the plan covers only those that were found."
        )
    if len(runs) > MAX_RUNS:
        lines.append(f"and {len(runs) - MAX_RUNS} more would give way")
    if not plan.adoptable:
        lines.append(unadoptable_line())
    elif plan.tasks:
        lines.append(
            "Another machine can adopt it once a device has taken a task; until then only this machine has the campaign."
        )
    return [*lines, *plan.notes]


def unadoptable_line() -> str:
    """For a campaign that no manifest can hold."""
    most = f"{MAX_MANIFEST_TASKS:,} tasks, {MAX_MANIFEST >> 20} MiB when packed"
    return f"No other machine can adopt it: it is too large for that (at most {most})."


def uncovered_lines(cells: Sequence[PlanCell]) -> list[str]:
    """Why cells are not covered; cells with the same reason share a line."""
    groups: dict[str, list[PlanCell]] = {}
    for cell in cells:
        if not cell.covered:
            groups.setdefault(cell.why, []).append(cell)
    lines: list[str] = []
    for why, alike in list(groups.items())[:MAX_UNCOVERED]:
        names = list(dict.fromkeys(f"{safe_text(cell.model, 60)} × {cell.unit}" for cell in alike))
        head = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines += [f"{head}:", *(f"  {safe_columns(line)}" for line in why.splitlines()[:40])]
    if len(groups) > MAX_UNCOVERED:
        lines.append(f"and {len(groups) - MAX_UNCOVERED} more reasons: see --json")
    return lines


# -- on disk ------------------------------------------------------------------------------------------------------------------------------


def save_plan(home: Home, plan: LivePlan) -> None:
    """Store a plan under its hash, for `submit --plan`; if there are many, the oldest are removed. Raises `OSError`."""
    folder = _folder(home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(folder / f"{plan.plan}.json", plan.model_dump_json().encode())
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-MAX_PLANS]:
        path.unlink(missing_ok=True)


def load_plan(home: Home, name: str) -> LivePlan:
    """The stored plan with that hash. Raises `CampaignError` when there is none."""
    hint = "make one: sark-node plan FILE"
    if len(name) != HASH_DIGITS or any(digit not in "0123456789abcdef" for digit in name):
        raise CampaignError(
            f"--plan: {safe_text(repr(name), 40)} is not the hash of a plan",
            hint=f"it has {HASH_DIGITS} digits; {hint}",
        )
    try:
        return LivePlan.model_validate_json((_folder(home) / f"{name}.json").read_bytes())
    except FileNotFoundError:
        raise CampaignError(f"no plan {name} was made on this home", hint=hint) from None
    except (OSError, ValidationError):
        raise CampaignError(f"the plan {name} cannot be read", hint=hint) from None


def _folder(home: Home) -> Path:
    return home.folder("scheduler") / "plans"

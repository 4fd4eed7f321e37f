"""`sark-node bench`: models on this device, with no network. The command is made here; what measures is given by the program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from protocol.errors import CampaignError
from protocol.formats.phase import Phase
from scheduler.cli import completion
from scheduler.cli.options import JSON, fetching, new_console, print_json
from scheduler.store.progress import BUSY
from swarm.base.home import Home

PANEL = "For a device's owner"
Open = Callable[[Home, bool], Any]
"""A `scheduler.bench.Device` of a home; whether simulated units count."""


def add_bench(app: typer.Typer, opened: Open) -> None:
    """Add the command to the program."""

    @app.command(rich_help_panel=PANEL)
    def bench(
        ctx: typer.Context,
        models: Annotated[
            list[str],
            typer.Argument(
                help="Model files, or where they are fetched from: https://…, hf://ORG/REPO/FILE@REVISION.",
                metavar="MODEL...",
            ),
        ],
        unit: Annotated[
            list[str] | None,
            typer.Option(
                "--unit",
                help="A compute unit by its name, or 'all'. Repeatable.  \\[default: the processor]",
                autocompletion=completion.units,
            ),
        ] = None,
        runs: Annotated[
            int | None, typer.Option(help="Timed inferences, exactly so many.  \\[default: 100]", min=1)
        ] = None,
        precision: Annotated[
            str | None,
            typer.Option(help="Go on until the median is known to ± this share.", metavar="PERCENT"),
        ] = None,
        loads: Annotated[
            int | None,
            typer.Option(help="Launches, each in a fresh process.  \\[default: 6]", min=1, max=100),
        ] = None,
        warmup: Annotated[
            int | None,
            typer.Option(help="Inferences before the timed ones.  \\[default: until settled]", min=0),
        ] = None,
        threads: Annotated[
            int | None,
            typer.Option(help="Of one inference.  \\[default: one for each physical core]", min=1),
        ] = None,
        batch: Annotated[
            int | None,
            typer.Option(
                help="Size of the batch, the first dynamic dimension of the inputs.  \\[default: the model's]",
                min=1,
                max=2**20,
            ),
        ] = None,
        dim: Annotated[
            list[str] | None,
            typer.Option("--dim", help="Size of a dynamic dimension. Repeatable.", metavar="NAME=SIZE"),
        ] = None,
        declare: Annotated[
            list[str] | None,
            typer.Option(
                "--input",
                help="Type and shape of an input that TorchScript does not tell. Repeatable.",
                metavar="NAME=TYPE[SHAPE]",
            ),
        ] = None,
        against: Annotated[
            bool,
            typer.Option("--compare", help="Of two models: is the second faster or slower? They take turns."),
        ] = False,
        csv: Annotated[
            Path | None, typer.Option(help="Write all columns to this file.", dir_okay=False)
        ] = None,
        raw: Annotated[
            Path | None,
            typer.Option(help="Write raw samples and signed records, for: sark-node verify.", dir_okay=False),
        ] = None,
        simulate: Annotated[bool, typer.Option("--simulate", hidden=True)] = False,
        as_json: Annotated[bool, JSON] = False,
    ) -> None:
        """Measure models on this device, without any network, but for models by URL. Exit code 1: one of them failed."""
        from results.export.raw import check_folder, write_csv, write_raw
        from scheduler.local.bench import Bench, Measurement, local_paths, unit_for
        from scheduler.output.tables import show_results

        for file in (csv, raw):
            if file is not None:
                check_folder(file)
        if against and (csv is not None or raw is not None):
            raise CampaignError(
                "--compare writes no rows, so it takes no --csv and no --raw",
                hint="measure each with --raw, then: sark-node compare A.json B.json",
            )
        how = _how(
            runs=runs,
            precision=precision,
            loads=loads,
            warmup=warmup,
            threads=threads,
            batch=batch,
            dim=dim,
        )
        if declare:
            how["inputs"] = dict(map(_input, declare))
        console = new_console()
        home: Home = ctx.obj
        with (
            local_paths(models, home.cache, fetching(home)) as paths,
            Bench(opened(home, simulate), _progress(as_json)) as on,
        ):
            if against:
                code = _compare(on, paths, unit, how, console, as_json=as_json)
                raise typer.Exit(code)
            found: list[Measurement] = []
            for model in paths:
                for name in _units(unit, on.units) or [unit_for(model)]:
                    _begin(f"{model.name} on {name}", as_json)
                    found.append(on.measure(model, name, **how))
        _clear(as_json)
        if csv is not None:
            write_csv(csv, [item.row for item in found])
        if raw is not None:
            write_raw(raw, found[0].row.campaign, [each.raw() for each in found])
        if as_json:
            print_json([each.as_dict() for each in found])
        else:
            show_results([item.row for item in found], console)
        raise typer.Exit(0 if all(each.complete for each in found) else 1)


def _compare(
    on: Any,
    models: Sequence[Path],
    unit: list[str] | None,
    how: dict[str, Any],
    console: Console,
    *,
    as_json: bool,
) -> int:
    if len(models) != 2 or len(unit or []) > 1:
        raise CampaignError(
            "--compare takes two models and one unit", hint="sark-node bench A.onnx B.onnx --compare"
        )
    if how.keys() & {"runs", "precision", "loads"}:
        raise CampaignError(
            "--compare chooses its own runs and launches", hint="leave out --runs, --loads and --precision"
        )
    _begin(f"{models[0].name} and {models[1].name} in turns", as_json)
    comparison, first, second = on.compare(models[0], models[1], unit[0] if unit else None, **how)
    _clear(as_json)
    if as_json:
        print_json(
            {
                "first": first.row.file_name,
                "second": second.row.file_name,
                "unit": first.row.compute_units,
                "verdict": str(comparison.verdict),
                "first_median_ms": comparison.medians_ms and comparison.medians_ms[0],
                "second_median_ms": comparison.medians_ms and comparison.medians_ms[1],
                "ratio": comparison.ratio,
                "low": comparison.low,
                "high": comparison.high,
                "why": comparison.why,
            }
        )
    else:
        console.print(
            Text(
                f"{_timed(second, comparison, 1)} beside {_timed(first, comparison, 0)} on {first.row.compute_units}: {_said(comparison)}"
            ),
            soft_wrap=True,
        )
    return 0


def _timed(look: Any, comparison: Any, side: int) -> str:
    """`new.onnx (7.484 ms)`."""
    told = "" if comparison.medians_ms is None else f" ({comparison.medians_ms[side]:.4g} ms)"
    return f"{look.row.file_name}{told}"


def _said(comparison: Any) -> str:
    """`SLOWER: ratio 1.049, 95 % interval 1.041 to 1.056`: the ratio is the second model's time by the first's."""
    return f"{comparison.verdict}: {comparison.why}"


def _units(wanted: list[str] | None, here: tuple[str, ...]) -> list[str]:
    return list(here) if wanted == ["all"] else list(wanted or [])


def _how(
    *,
    runs: int | None,
    precision: str | None,
    loads: int | None,
    warmup: int | None,
    threads: int | None,
    batch: int | None,
    dim: list[str] | None,
) -> dict[str, Any]:
    """What was said of how to measure; the rest is left to the protocol's defaults."""
    how: dict[str, Any] = {
        "runs": runs,
        "loads": loads,
        "warmup": warmup,
        "threads": threads,
        "batch": batch,
        "precision": None if precision is None else share(precision),
        "dims": dict(map(_dim, dim)) if dim else None,
    }
    return {name: value for name, value in how.items() if value is not None}


def share(text: str) -> float:
    """`2%` or `2` as 0.02. Raises `CampaignError`."""
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise CampaignError(
            f"precision {text!r} is not above 0% and at most 100%", hint="write it in percent, such as 2%"
        )
    return value


def _dim(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name or not size.isdigit() or not int(size):
        raise CampaignError(f"--dim {text!r} is not NAME=SIZE", hint="such as --dim batch=8")
    return name, int(size)


def _input(text: str) -> tuple[str, str]:
    name, equals, form = text.partition("=")
    if not equals or not name or "[" not in form:
        hint = "such as --input 'x=float32[1, 3, 224, 224]'"
        raise CampaignError(f"--input {text!r} is not NAME=TYPE[SHAPE]", hint=hint)
    return name, form


def progress_line(phase: Phase, done: int, total: int | None, median_ms: float | None) -> str:
    """`run 120/200, 12.5 ms`."""
    if phase is Phase.PREPARE and total:
        return f"{BUSY}, {done} of at most {total} s"
    where = f" {done}/{total}" if total else f" {done}" if done else ""
    return f"{phase}{where}" + ("" if median_ms is None else f", {median_ms:.3g} ms")


def _progress(as_json: bool) -> Callable[[Phase, int, int | None, float | None], None] | None:
    """One line on a terminal that tells where it stands; a pipe hears what begins (`_begin`)."""
    if as_json or not sys.stderr.isatty():
        return None

    def told(phase: Phase, done: int, total: int | None, median_ms: float | None) -> None:
        sys.stderr.write(f"\r\x1b[K{progress_line(phase, done, total, median_ms)}")
        sys.stderr.flush()

    return told


def _begin(what: str, as_json: bool) -> None:
    if not as_json:
        _clear(as_json)
        sys.stderr.write(f"measuring {what} …\n")


def _clear(as_json: bool) -> None:
    if not as_json and sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")

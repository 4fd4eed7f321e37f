"""`sark-node bench`: measures models on this device. The program passes in the device."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from protocol.errors import CampaignError
from protocol.formats.phase import BUSY, Phase
from protocol.formats.shapes import read_shape, show_shape
from scheduler.cli import completion
from scheduler.cli.everywhere import measure_on
from scheduler.cli.options import AsJson, Gates, fetching
from scheduler.output.terminal import print_lines
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json

if TYPE_CHECKING:
    from scheduler.local.bench import Bench, Measurement

PANEL = "This device"


class CheckKind(StrEnum):
    """What outputs are compared with."""

    REFERENCE = "reference"
    NONE = "none"


OpenDevice = Callable[[Home, bool], Any]
"""Opens a home's `node.run.local.LocalDevice`; True includes simulated units."""


def add_bench(app: typer.Typer, open_device: OpenDevice) -> None:
    """Add the command `bench` to `app`."""

    @app.command(rich_help_panel=PANEL)
    def bench(
        ctx: typer.Context,
        models: Annotated[
            list[str],
            typer.Argument(
                help="Model files or URLs: https://… or hf://ORG/REPO/FILE@REVISION.", metavar="MODEL..."
            ),
        ],
        unit: Annotated[
            list[str] | None,
            typer.Option(
                "--unit",
                help="Compute unit, or 'all'. Repeatable.  \\[default: the CPU]",
                autocompletion=completion.units,
            ),
        ] = None,
        runs: Annotated[
            int | None, typer.Option(help="Number of timed inferences.  \\[default: 100]", min=1)
        ] = None,
        precision: Annotated[
            str | None,
            typer.Option(help="Measure until the median is known to ± this share.", metavar="PERCENT"),
        ] = None,
        loads: Annotated[
            int | None,
            typer.Option(help="Number of launches, each in a fresh process.  \\[default: 6]", min=1, max=100),
        ] = None,
        sustain: Annotated[
            str | None,
            typer.Option(
                help="Infer without a break for this long, then rest: burst, knee, steady state, recovery.",
                metavar="TIME",
            ),
        ] = None,
        over: Annotated[
            str | None,
            typer.Option(
                help="Spread the launches over this time; the interval then holds for all of it.",
                metavar="TIME",
            ),
        ] = None,
        compute_type: Annotated[
            str | None,
            typer.Option(
                help="f32: compute in float32, even where the runtime would choose a less precise type.",
                metavar="TYPE",
            ),
        ] = None,
        warmup: Annotated[
            int | None, typer.Option(help="Number of warm-up inferences.  \\[default: until settled]", min=0)
        ] = None,
        threads: Annotated[
            int | None,
            typer.Option(
                help="Number of threads of one inference.  \\[default: one for each physical core]", min=1
            ),
        ] = None,
        batch: Annotated[
            int | None,
            typer.Option(
                help="Batch size: the first dynamic dimension of the inputs.  \\[default: the model's]",
                min=1,
                max=2**20,
            ),
        ] = None,
        dim: Annotated[
            list[str] | None,
            typer.Option(
                "--dim",
                help="Size of a dynamic dimension, by name or INPUT\\[AXIS]. Repeatable.",
                metavar="NAME=SIZE",
            ),
        ] = None,
        shape: Annotated[
            list[str] | None,
            typer.Option("--shape", help="Shape of an input. Repeatable.", metavar="NAME=SIZES"),
        ] = None,
        declare: Annotated[
            list[str] | None,
            typer.Option(
                "--input",
                help="Type and shape of an input, for TorchScript models. Repeatable.",
                metavar="NAME=TYPE[SHAPE]",
            ),
        ] = None,
        check: Annotated[
            CheckKind,
            typer.Option(help="What to compare the outputs with: a plain reference run, or nothing."),
        ] = CheckKind.REFERENCE,
        against: Annotated[
            bool, typer.Option("--compare", help="Compare two models, or two units, that take turns.")
        ] = False,
        csv: Annotated[
            Path | None, typer.Option(help="Write the results to this CSV file.", dir_okay=False)
        ] = None,
        raw: Annotated[
            Path | None,
            typer.Option(
                help="Write raw samples and signed records to this file, for `sark-node verify`.",
                dir_okay=False,
            ),
        ] = None,
        operators: Annotated[
            bool, typer.Option("--operators", help="Show where the models' operators ran, and their times.")
        ] = False,
        on: Annotated[
            list[str] | None,
            typer.Option(
                "--on",
                help="Measure on other devices: 'all', a device, a pool, a label, or a clause such as 'ram >= 8 GiB'. Repeatable:"
                " pools, labels and clauses must all be met.",
                metavar="DEVICES",
            ),
        ] = None,
        spread: Annotated[
            Literal["device", "worker", "class"] | None,
            typer.Option(
                help="With --on: measure once for each device, worker or class.  \\[default: device; worker for devices that are named]",
                metavar="device|worker|class",
            ),
        ] = None,
        gate: Gates = None,
        report: Annotated[
            Path | None,
            typer.Option(
                help="With --on: write a report to this file, .html or .md.", dir_okay=False, metavar="FILE"
            ),
        ] = None,
        simulate: Annotated[bool, typer.Option("--simulate", hidden=True)] = False,
        as_json: AsJson = False,
    ) -> None:
        """Measure models on this device, or with --on on every device that answers.

        Uses the network only with --on and for models by URL. With --on, Ctrl-C cancels the campaign.

        Exit code 1: a model failed, or its outputs differ from the reference. 3: no device fits --on.
        """
        from results.export.csv import csv_lines
        from results.export.raw import check_folder, json_lines, write_lines
        from results.row.operators import operator_uses
        from scheduler.local.bench import Bench, local_paths, unit_for
        from scheduler.local.everywhere import name_of
        from scheduler.local.own_sizes import own_sizes
        from scheduler.output.operators_table import operators_lines
        from scheduler.output.results_table import show_results

        if operators and as_json:
            raise CampaignError(
                "--operators cannot be used with --json", hint="use --raw FILE: it contains the operators too"
            )
        for file in (csv, raw, report):
            if file is not None:
                check_folder(file)
        options: dict[str, Any] = {
            "runs": runs,
            "loads": loads,
            "warmup": warmup,
            "threads": threads,
            "batch": batch,
            "precision": None if precision is None else share(precision),
            "dims": dict(map(_dim, dim)) if dim else None,
            "inputs": dict(map(_input, declare)) if declare else None,
            "check": False if check is CheckKind.NONE else None,
            "shapes": dict(map(_shape, shape)) if shape else None,
            "sustain_s": None if sustain is None else duration_option("sustain", sustain),
            "over_s": None if over is None else duration_option("over", over),
            "compute_type": compute_type,
        }
        options = {name: value for name, value in options.items() if value is not None}
        if on is not None:
            _refuse({"--operators": operators, "--simulate": simulate}, "cannot be used with --on", "--on")
            if against:
                _check_compared(models, options)
                unit = _compared_units([Path(name_of(model)) for model in models], unit or [])
                options["against"] = True
            for number, path in enumerate(map(Path, models)):
                if path.is_file():
                    named = [unit[number]] if against and unit else unit if unit != ["all"] else None
                    for name in named or [unit_for(path)]:
                        own = own_sizes(models, options)[number]
                        _add_shapes(options, _look_at(path, name, own, ask=not as_json))
            measure_on(
                ctx,
                models,
                on,
                unit or (),
                options,
                spread=spread,
                gate=gate,
                csv=csv,
                raw=raw,
                report=report,
                as_json=as_json,
            )
        _refuse({"--spread": spread, "--gate": gate, "--report": report}, "requires --on", "")
        progress = _Progress(quiet=as_json)
        with contextlib.ExitStack() as stack:
            paths = stack.enter_context(local_paths(models, ctx.obj.cache, fetching(ctx.obj)))
            if against:
                _check_compared(models, options)
                looks = list(zip(paths, _compared_units(paths, unit or []), strict=True))
            else:
                named = unit if unit != ["all"] else None
                looks = [(path, name) for path in paths for name in named or [unit_for(path)]]
            each = dict.fromkeys(paths, options)
            if not against:
                each = dict(zip(paths, own_sizes(paths, options), strict=True))
            for path, name in looks:
                _add_shapes(each[path], _look_at(path, name, each[path], ask=not as_json))
            bench = stack.enter_context(Bench(open_device(ctx.obj, simulate), progress.show))
            measurements = []
            if against:
                measurements.append(_compare(bench, looks, options, progress))
            for model in () if against else paths:
                units = bench.units_for(model) if unit == ["all"] else unit
                for name in units or [unit_for(model)]:
                    progress.announce(f"{model.name} on {name}" + (f", spread over {over}" if over else ""))
                    measurements.append(bench.measure(model, name, **each[model]))
        progress.clear()
        rows = [done.row for done in measurements]
        if csv is not None:
            write_lines(csv, csv_lines(rows))
        if raw is not None:
            write_lines(raw, json_lines(rows[0].campaign, [done.raw() for done in measurements]))
        if against:
            return
        if as_json:
            print_json(rows)
        else:
            show_results(rows, new_console())
        if operators and not as_json:
            for done in measurements:
                title = f"{done.row.file_name} on {done.row.compute_units}"
                print_lines(["", *operators_lines(title, operator_uses(done.raw().ran))])
        raise typer.Exit(0 if all(done.complete for done in measurements) else 1)


def _refuse(options: Mapping[str, object], why: str, other: str) -> None:
    """Raises `CampaignError` for the first of these options that is given."""
    for option in (name for name, value in options.items() if value):
        hint = f"leave out {option} or {other}" if other else "add --on all"
        raise CampaignError(f"{option} {why}", hint=hint)


def _look_at(path: Path, unit: str, options: Mapping[str, Any], *, ask: bool) -> dict[str, tuple[int, ...]]:
    """The shapes that a person at a terminal adds to the options. Raises `CampaignError` for a model that cannot be measured."""
    from scheduler.local.bench import look_at, read_measure
    from scheduler.models.inspect import UnshapedModel

    try:
        look_at(path, unit, read_measure(options))
        return {}
    except UnshapedModel as error:
        if not (ask and sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        sys.stderr.write(f"{error.detail}\n")
        given = {
            name: _shape(f"{name}={typer.prompt(f'shape of {name}', show_shape(usual, ','), err=True)}")[1]
            for name, usual in error.missing.example.items()
        }
    look_at(path, unit, read_measure({**options, "shapes": {**options.get("shapes", {}), **given}}))
    return given


def _add_shapes(options: dict[str, Any], given: Mapping[str, tuple[int, ...]]) -> None:
    if given:
        options["shapes"] = {**options.get("shapes", {}), **given}


def _check_compared(models: Sequence[object], options: Mapping[str, object]) -> None:
    """Raises `CampaignError` for options that cannot be combined with `--compare`."""
    if len(models) != 2:
        raise CampaignError("--compare requires two models", hint="sark-node bench A.onnx B.onnx --compare")
    if options.keys() & {"runs", "precision", "loads", "sustain_s", "over_s"}:
        raise CampaignError(
            "--compare chooses its own runs and launches",
            hint="leave out --runs, --loads, --precision, --sustain and --over",
        )


def _compared_units(models: Sequence[Path], units: Sequence[str]) -> list[str]:
    """The unit of each of two models. Raises `CampaignError`."""
    from scheduler.local.bench import unit_for

    if "all" in units or len(units) > 2:
        raise CampaignError(
            "--compare requires at most two units: the first model's and the second's",
            hint="sark-node bench A.onnx B.pt2 --compare --unit 'CPU (ONNX)' --unit 'CPU (Torch)'",
        )
    return [*units] if len(units) == 2 else [*units] * 2 or [unit_for(path) for path in models]


def _compare(
    bench: Bench, pair: Sequence[tuple[Path, str]], options: dict[str, Any], progress: _Progress
) -> Measurement:
    """Compare two models on their units, and show the answer."""
    (one, first_unit), (other, unit) = pair
    apart = first_unit != unit
    progress.announce(f"{one.name} and {other.name} in turns")
    comparison, done = bench.compare(one, other, unit, first_unit=first_unit, **options)
    progress.clear()
    medians = comparison.medians_ms or (None, None)
    cpu = comparison.cpu
    if progress.quiet:
        print_json(
            {
                "first": one.name,
                "second": other.name,
                "unit": done.row.compute_units,
                "first_unit": first_unit,
                "processes": 2 if apart else 1,
                "verdict": comparison.verdict,
                "first_median_ms": medians[0],
                "second_median_ms": medians[1],
                "ratio": comparison.ratio,
                "low": comparison.low,
                "high": comparison.high,
                "cpu_ratio": cpu and cpu.ratio,
                "cpu_low": cpu and cpu.low,
                "cpu_high": cpu and cpu.high,
                "contention": comparison.contention,
                "launches": comparison.launches[0],
                "why": comparison.why,
            }
        )
        return done
    first, second = (
        path.name + (f" on {name}" if apart else "") + ("" if median is None else f" ({median:.4g} ms)")
        for (path, name), median in zip(pair, medians, strict=True)
    )
    where = ", in two processes" if apart else f" on {unit}"
    print_lines([f"{second} compared with {first}{where}: {comparison.verdict}: {comparison.why}"])
    return done


def share(text: str) -> float:
    """`2%` or `2` as 0.02. Raises `CampaignError`."""
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise CampaignError(
            f"precision {text!r} must be above 0% and at most 100%", hint="write it in percent, such as 2%"
        )
    return value


def duration_option(name: Literal["sustain", "over"], text: str) -> float:
    """Seconds in `10m`, as in the campaign field. Raises `CampaignError`."""
    from pydantic_core import PydanticCustomError

    from scheduler.campaign.fields import read_spread, read_sustained

    try:
        return read_sustained(text) if name == "sustain" else read_spread(text)
    except PydanticCustomError as exc:
        context = exc.context or {}
        raise CampaignError(f"--{name}: {context['what']}", hint=str(context["hint"])) from None


def _dim(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name or not size.isdigit():
        raise CampaignError(f"--dim {text!r} is not NAME=SIZE", hint="such as --dim batch=8")
    return name, int(size)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.rpartition("=")
    try:
        if equals and name:
            return name, read_shape(sizes)
    except ValueError:
        pass
    raise CampaignError(f"--shape {text!r} is not NAME=SIZES", hint="such as --shape x=1,3,224,224")


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


@dataclass(frozen=True)
class _Progress:
    """Progress on stderr: one line on a terminal; a pipe only gets a line when something begins."""

    quiet: bool

    def announce(self, text: str) -> None:
        self.clear()
        if not self.quiet:
            sys.stderr.write(f"measuring {text} …\n")

    def show(self, phase: Phase, done: int, total: int | None, median_ms: float | None) -> None:
        self.clear(progress_line(phase, done, total, median_ms))

    def clear(self, line: str = "") -> None:
        if not self.quiet and sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()

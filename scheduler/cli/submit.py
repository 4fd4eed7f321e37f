"""Commands that write, check, plan and submit campaigns: init, validate, plan, submit, retry; and the hidden schedule."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from protocol.errors import CampaignError, ResourceError
from scheduler.cli import completion, experiments
from scheduler.cli.options import (
    CAMPAIGNS,
    AsJson,
    CampaignFile,
    CampaignId,
    Detach,
    Gates,
    Wait,
    answering_gates,
    duration_option,
    existing,
    fetching,
    follow,
    gates_of,
    keeper,
    opened,
    print_campaign,
    scheduler_settings,
    units_in_reach,
)
from scheduler.output.terminal import print_lines
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json
from swarm.base.text import count, safe_text

app = typer.Typer()


@app.command(rich_help_panel=CAMPAIGNS)
def init(
    file: Annotated[Path, typer.Argument(help="Where to write the file.")] = Path("campaign.yaml"),
) -> None:
    """Write a commented campaign file to start from."""
    from scheduler.campaign.text import starter_campaign

    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(starter_campaign())
    except FileExistsError:
        raise existing(file) from None
    except OSError as exc:
        raise CampaignError(
            f"cannot write {file}: {exc.strerror}", hint="name a file in an existing folder"
        ) from None
    print(f"Wrote {file}. Edit it, then run:\n  sark-node validate {file}\n  sark-node submit {file}")


@app.command(rich_help_panel=CAMPAIGNS)
def validate(ctx: typer.Context, file: CampaignFile, gate: Gates = None, as_json: AsJson = False) -> None:
    """Check a campaign file and its models, and show what it would measure.

    Uses the network only for models by URL, for units of third-party drivers, and to see whether two keys claim a device that the file
    names.
    """
    from scheduler.campaign.load import load_campaign
    from scheduler.models.describe import describe_models
    from scheduler.preview.look import check_devices
    from scheduler.preview.validate import valid, valid_table

    campaign = load_campaign(file, find_units=units_in_reach(ctx, gate))
    models = describe_models(campaign, file.absolute().parent, fetching(ctx.obj))
    check_devices(ctx.obj, campaign, lambda: gates_of(ctx, gate))
    report = valid(campaign, models)
    if as_json:
        print_json(report)
        return
    console = new_console()
    console.print(valid_table(campaign, models, report.inputs))
    unknown = "the number of tasks depends on the matching devices"
    tasks = unknown if report.tasks is None else count(report.tasks, "task")
    print_lines([f"{safe_text(campaign.campaign)} is valid: {tasks}.", *report.notes], console)


@app.command(rich_help_panel=CAMPAIGNS)
def plan(ctx: typer.Context, file: CampaignFile, gate: Gates = None, as_json: AsJson = False) -> None:
    """Show what a campaign would do on the current devices, without submitting it.

    Exit code 0: every cell is covered, 1: some are not, 2: invalid input. Submit exactly this plan with: sark-node submit --plan HASH FILE
    """
    from scheduler.preview.look import plan_file
    from scheduler.preview.plan_table import plan_lines, plan_table, save_plan, uncovered_lines

    made = plan_file(ctx.obj, file, gates_of(ctx, gate, check=True), fetching(ctx.obj))
    with contextlib.suppress(OSError):  # the plan is useful even if it cannot be stored
        save_plan(ctx.obj, made)
    if as_json:
        print_json(made)
    else:
        console = new_console()
        console.print(plan_table(made, console.width))
        last = f"Plan {made.plan}: sark-node submit --plan {made.plan} {file}"
        print_lines((*plan_lines(made), *uncovered_lines(made.cells), last), console)
    if not made.whole:
        raise SystemExit(1)


@app.command(rich_help_panel=CAMPAIGNS)
def submit(
    ctx: typer.Context,
    file: CampaignFile,
    gate: Gates = None,
    detach: Detach = False,
    wait: Wait = "60s",
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Write the results to this CSV file at the end.  \\[default: CAMPAIGN.csv]", metavar="PATH"
        ),
    ] = None,
    plan: Annotated[
        str | None, typer.Option(help="Submit only if the plan still has this hash.", metavar="HASH")
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            help="Save the file as a version of this experiment, and run that version.",
            metavar="NAME",
            autocompletion=completion.experiments,
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Do not ask whether to trust devices; untrusted devices stay untrusted."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a campaign and watch it.

    The campaign is stored before its id is printed, and runs by itself; Ctrl-C only stops watching.

    Exit code 0: all tasks succeeded, 1: some did not, or the plan has changed, 3: no device matches.
    """
    from protocol.values.campaign_manifest import MAX_MANIFEST_TASKS
    from results.export.raw import check_folder
    from scheduler.campaign.load import load_campaign
    from scheduler.cli.trust import ask_to_trust
    from scheduler.models.describe import model_notes
    from scheduler.planning.tasks import least_tasks
    from scheduler.preview.look import check_devices
    from scheduler.preview.plan_table import unadoptable_line
    from scheduler.submit.submit import submit_campaign
    from scheduler.trust.untrusted import OPEN_LINE
    from swarm.join.known_gates import save_gates

    home: Home = ctx.obj
    wait_s = duration_option("--wait", wait)
    if detach and csv is not None:
        raise CampaignError(
            "--csv cannot be used with --detach, which returns before there are results",
            hint=f"write it later: sark-node results ID --csv {csv}",
        )
    if csv is not None:
        check_folder(csv)
    find_units = units_in_reach(ctx, gate)
    campaign = load_campaign(file, find_units=find_units)  # its errors come before those of the network
    gates = answering_gates(ctx, gate)
    check_devices(home, campaign, lambda: gates)
    if plan is not None:
        _require_plan(home, file, gates, plan)
    large = (unadoptable_line(),) if least_tasks(campaign) > MAX_MANIFEST_TASKS else ()
    for note in (*model_notes(campaign), *((OPEN_LINE,) if campaign.trust.anyone else ()), *large):
        print(note, file=sys.stderr)
    if not (yes or as_json or campaign.trust.anyone) and sys.stdin.isatty() and sys.stderr.isatty():
        ask_to_trust(home, campaign, gates)
    if experiment is not None:
        campaign_id = experiments.submit_version(ctx, file, experiment, wait_s)
    else:
        campaign_id = submit_campaign(home, file, wait_s=wait_s, fetch=fetching(home), find_units=find_units)
        if campaign.schedule is not None:
            print(
                f"the schedule takes effect when the experiment is saved: sark-node experiment save {safe_text(str(file))}",
                file=sys.stderr,
            )
    with contextlib.suppress(ResourceError):  # the campaign is stored; `watch` can name the gate again
        neighbours = ctx.meta.get("neighbours", ())  # their ports change
        save_gates(home, [gate for gate in gates if gate not in neighbours])
    keep_alive = keeper(ctx, gates)
    keep_alive()
    if detach:
        print_campaign(campaign_id, {"campaign": campaign_id}, as_json=as_json)
        return
    end = experiments.follow_run if experiment is not None else follow
    end(ctx, campaign_id, keep_alive, csv=csv or Path(f"{campaign_id}.csv"), as_json=as_json)


def _require_plan(home: Home, file: Path, gates: tuple[str, ...], name: str) -> None:
    """Exit with code 1 and the differences if the plan `name` no longer holds."""
    from scheduler.preview.look import plan_file
    from scheduler.preview.plan import plan_changes
    from scheduler.preview.plan_table import load_plan

    stored = load_plan(home, name)
    current = plan_file(home, file, gates, fetching(home))
    differences = plan_changes(stored, current)
    if not (stored.complete and current.complete):
        print("not all devices answered: only the coverage of the cells was compared", file=sys.stderr)
    if differences:
        print(f"sark-node: not submitted: plan {name} no longer holds", file=sys.stderr)
        for line in differences:
            print(f"  {line}", file=sys.stderr)
        print(f"  plan again: sark-node plan {file}", file=sys.stderr)
        raise SystemExit(1)


@app.command(rich_help_panel=CAMPAIGNS)
def retry(
    ctx: typer.Context,
    campaign: CampaignId = "",
    gate: Gates = None,
    folder: Annotated[
        Path, typer.Option(help="Folder of the campaign file, with its models.", file_okay=False)
    ] = Path(),
    adopted: Annotated[
        bool,
        typer.Option(
            "--adopted",
            help="Also retry tasks of a campaign that another machine, or a copy of this home, took over.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run failed and cancelled tasks again, as a new campaign."""
    from scheduler.submit.submit import retry_campaign

    with opened(ctx) as store:
        old = store.campaigns.resolve(campaign)
        new, tasks = retry_campaign(
            ctx.obj, store, old, folder.absolute(), fetch=fetching(ctx.obj), adopted=adopted
        )
    keeper(ctx, gates_of(ctx, gate))()
    print_campaign(new, {"campaign": new, "tasks": tasks}, as_json=as_json, note=f"{count(tasks, 'task')}; ")


@app.command(rich_help_panel=CAMPAIGNS)
def schedule(
    ctx: typer.Context,
    gate: Gates = None,
    listen: Annotated[list[str] | None, typer.Option(help="Listen on this address only. Repeatable.")] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Keep running when no campaign is open.")] = False,
    stop_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
    supervised: Annotated[
        bool,
        typer.Option("--supervised", hidden=True),
    ] = False,
) -> None:
    """Run this home's scheduler in the foreground until no campaign is open. `submit` and `watch` start it in the background themselves."""
    from swarm.base.process import own_command

    folder, command = ctx.obj.folder("scheduler"), [*own_command(), *sys.argv[1:]]
    if supervised:
        from scheduler.submit.supervisor import main

        raise SystemExit(main(folder, [word for word in command if word != "--supervised"]))
    import trio

    from scheduler.run.process import run_process
    from scheduler.submit.supervised import keeping_supervisor

    settings = scheduler_settings(ctx, gates=gate, listen=listen)
    with keeping_supervisor(folder, command) as keep_supervisor, ctx.meta["answers"]() as answer:
        trio.run(run_process, ctx.obj, settings, stay, stop_with_stdin, answer, keep_supervisor)

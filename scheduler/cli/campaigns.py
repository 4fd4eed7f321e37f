"""What somebody who submits types: init, validate, submit, watch, campaigns, results, peers, cancel, demo."""

from __future__ import annotations

import contextlib
import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protocol.errors import CampaignError, NothingFits, ResourceError, Unreachable
from scheduler.cli import adopt, analysis, completion, db, experiment_run, report, top
from scheduler.cli import plan as cli_why
from scheduler.cli.options import (
    GATE,
    JSON,
    PANEL,
    duration_option,
    fetching,
    follow,
    gates_of,
    keeper,
    new_console,
    print_json,
)
from swarm.base.home import Home
from swarm.base.text import count, safe_text

app = typer.Typer()


@app.command(rich_help_panel=PANEL)
def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("campaign.yaml"),
) -> None:
    """Write a commented campaign file to start from."""
    from scheduler.campaign.template import starter_campaign

    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(starter_campaign())
    except FileExistsError:
        raise CampaignError(f"{file} is there already", hint="name another file, or remove it") from None
    except OSError as exc:
        raise CampaignError(
            f"cannot write {file}: {exc.strerror}", hint="name a file in a folder that exists"
        ) from None
    print(f"{file} is written. Edit it, then:\n  sark-node validate {file}\n  sark-node submit {file}")


@app.command(rich_help_panel=PANEL)
def validate(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="The campaign file.")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Check a campaign file and its models, and say what would be measured. Needs no network, but for models by URL."""
    from protocol.values.requirement import show_size
    from scheduler.campaign.fields import show_percent
    from scheduler.campaign.load import load_campaign
    from scheduler.models.describe import describe_models
    from scheduler.preview.validate import valid

    campaign = load_campaign(file)
    models = describe_models(campaign, file.absolute().parent, fetching(ctx.obj))
    told = valid(campaign, models)
    if as_json:
        print_json(told.model_dump(mode="json"))
        return
    console = new_console()
    exact_to = campaign.measure.precision or 0.0
    exact = not exact_to
    table = Table(box=None, padding=(0, 2), header_style="dim")
    batched = any(batch is not None for entry in campaign.models for batch in campaign.batches(entry))
    sizes = {entry.label: campaign.batches(entry) for entry in campaign.models}
    for column in (
        "model",
        "size",
        "sha256",
        "unit",
        "threads",
        *(("batch",) if batched else ()),
        "runs",
        "loads",
    ):
        table.add_column(column)
    for name, (_, model) in models.items():
        first = (Text(safe_text(name)), show_size(model.size), f"{model.sha256[:12]}…")
        for line, threads, batch in itertools.product(
            campaign.lines(), campaign.measure.threads, sizes[name]
        ):
            table.add_row(
                *first,
                Text(safe_text(line.unit)),
                str(threads),
                *(("" if batch is None else str(batch),) if batched else ()),
                str(line.runs or campaign.measure.runs) if exact else f"±{show_percent(exact_to)}",
                str(campaign.measure.loads) if exact else "6 to 20",
            )
            first = (Text(""), "", "")
    console.print(table)
    if told.tasks is None:
        console.print(
            f"{safe_text(campaign.campaign)} is valid; its tasks follow from the devices that fit.",
            markup=False,
        )
    else:
        console.print(f"{safe_text(campaign.campaign)} is valid: {count(told.tasks, 'task')}.", markup=False)
    for note in told.notes:
        console.print(note, markup=False)


@app.command(rich_help_panel=PANEL)
def submit(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="The campaign file.")],
    gate: Annotated[list[str] | None, GATE] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the campaign's id and return at once.")
    ] = False,
    wait: Annotated[
        str,
        typer.Option(help="How long to look for a device that fits before a task fails, such as 90s or 10m."),
    ] = "60s",
    csv: Annotated[
        Path | None,
        typer.Option(help="Where to write the CSV at the end.  \\[default: CAMPAIGN.csv]", metavar="PATH"),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="Only if the world is still as this plan saw it.", metavar="HASH"),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            help="Save it as a version of this experiment, of which this is a run.",
            metavar="NAME",
            autocompletion=completion.experiments,
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run a campaign on the devices that fit. Once its id is printed it is safe on disk and goes on by itself.

    Ctrl-C only stops watching. Exit code 0: all tasks succeeded, 1: some did not, or the world is not as planned, 3: no device fits.
    """
    from results.export.raw import check_folder
    from scheduler.campaign.load import load_campaign
    from scheduler.models.describe import unseen
    from scheduler.submit.submit import submit_campaign
    from swarm.join.known_gates import any_answers, save_gates

    home: Home = ctx.obj
    wait_s = duration_option("--wait", wait)
    if detach and csv is not None:
        raise CampaignError(
            "--csv has no meaning with --detach, which returns before there are results",
            hint=f"write it later: sark-node results ID --csv {csv}",
        )
    if csv is not None:
        check_folder(csv)
    campaign = load_campaign(file)  # what is wrong with it is told before what is wrong with the swarm
    gates = gates_of(ctx, gate, surely=True)
    if not gates:
        raise Unreachable(
            "no gate is known here",
            hint="start one on this machine: sark-node gate\nor name one: --gate /ip4/…/tcp/4101/p2p/12D3Koo…",
        )
    if not any_answers(gates):
        raise Unreachable(
            f"no gate answers: {', '.join(gates)}", hint="is it running, and is the address right?"
        )
    if plan is not None:
        cli_why.check_plan(home, file, gates, plan)
    for note in unseen(campaign):
        print(note, file=sys.stderr)
    if experiment is not None:
        campaign_id = experiment_run.submit_as(home, file, experiment, wait_s)
    else:
        campaign_id = submit_campaign(home, file, wait_s=wait_s, fetch=fetching(home))
        if campaign.schedule is not None:
            print(
                f"its schedule counts once it is saved: sark-node experiment save {safe_text(str(file))}",
                file=sys.stderr,
            )
    with contextlib.suppress(ResourceError):  # the campaign is safe; `watch` can be told the gate again
        near = ctx.meta.get("neighbours", ())  # found anew each time: their ports are of the moment
        save_gates(home, [gate for gate in gates if gate not in near])
    keep_alive = keeper(ctx, gates)
    keep_alive()
    if detach:
        if as_json:
            print_json({"campaign": campaign_id})
        else:
            print(campaign_id)
            print(f"  sark-node watch {campaign_id}", file=sys.stderr)
        return
    csv = csv or Path(f"{campaign_id}.csv")
    if experiment is not None:
        experiment_run.ended(
            ctx, campaign_id, lambda: follow(ctx, campaign_id, keep_alive, csv=csv, as_json=as_json)
        )
    follow(ctx, campaign_id, keep_alive, csv=csv, as_json=as_json)


@app.command(rich_help_panel=PANEL)
def watch(
    ctx: typer.Context,
    campaign: Annotated[
        str,
        typer.Argument(
            help="Its id, or the beginning of it.  \\[default: the latest]",
            autocompletion=completion.campaigns,
        ),
    ] = "",
    gate: Annotated[list[str] | None, GATE] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Where to write the CSV at the end.  \\[default: among this home's]", metavar="PATH"
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Watch a campaign until it ends. Starts the scheduler process again if it is gone: nothing that is done is done twice.

    With the whole id of a campaign that another machine of yours runs, it shows what the devices tell of it.
    """
    from results.export.raw import check_folder
    from scheduler.store.opening import open_store

    home: Home = ctx.obj
    if csv is not None:
        check_folder(csv)
    with open_store(home) as store:
        here = not adopt.elsewhere(store, campaign)
        found = store.campaigns.resolve(campaign) if here else campaign
    if not here:
        adopt.watch_elsewhere(ctx, campaign, gate, as_json=as_json)
        return
    follow(ctx, found, keeper(ctx, gates_of(ctx, gate)), csv=csv, as_json=as_json)


app.command("attach", hidden=True)(watch)


@app.command(rich_help_panel=PANEL)
def campaigns(ctx: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """List the campaigns of this home, the latest first."""
    from scheduler.output.schemas import campaign_info
    from scheduler.output.tables import campaigns_table
    from scheduler.store.opening import open_store
    from scheduler.store.progress import nobody_line
    from scheduler.submit.daemon import is_running

    home: Home = ctx.obj
    with open_store(home) as store:
        summaries = store.campaigns.summaries()
    scheduling = is_running(home)
    if as_json:
        told = [campaign_info(item, scheduling=scheduling).model_dump(mode="json") for item in summaries]
        print_json({"count": len(summaries), "campaigns": told})
        return
    if not summaries:
        print("No campaigns yet. Begin with: sark-node init")
        return
    console = new_console()
    console.print(campaigns_table(summaries, scheduling=scheduling))
    for item in summaries:
        if item.campaign.ended is None and not scheduling:
            console.print(nobody_line(item.campaign.id), highlight=False, soft_wrap=True)


@app.command(rich_help_panel=PANEL)
def results(
    ctx: typer.Context,
    campaign: Annotated[
        str,
        typer.Argument(
            help="Its id, or the beginning of it.  \\[default: the latest]",
            autocompletion=completion.campaigns,
        ),
    ] = "",
    csv: Annotated[
        str | None, typer.Option(help="Write the CSV there; - for standard output.", metavar="PATH")
    ] = None,
    raw: Annotated[
        str | None,
        typer.Option(
            help="Write all raw samples and signed records there, as JSON; - for standard output.",
            metavar="PATH",
        ),
    ] = None,
    jsonl: Annotated[
        str | None,
        typer.Option(
            help="Write a JSON object for each task there, with its samples; - for standard output.",
            metavar="PATH",
        ),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(help="Write the same there as Parquet, with the extra \\[report].", metavar="PATH"),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show a campaign's results as a table, or write them as CSV, JSON Lines, Parquet, JSON or raw samples."""
    from results.export.columnar import jsonl_lines, write_jsonl, write_parquet
    from results.export.raw import csv_lines, json_lines, write_csv, write_raw
    from scheduler.output.tables import show_results
    from scheduler.store.opening import open_store
    from scheduler.store.progress import nobody_line
    from scheduler.store.results import campaign_rows, raw_results
    from scheduler.submit.daemon import is_running

    home: Home = ctx.obj
    if [csv, raw, jsonl, "-" if as_json else None].count("-") > 1:
        raise CampaignError(
            "only one of --csv, --jsonl, --raw and --json can have standard output",
            hint="give the other a file",
        )
    with open_store(home) as store:
        found = store.campaigns.resolve(campaign)
        stored = store.results.rows(found)
        row = store.campaigns.get(found)
    rows = campaign_rows(stored)
    open_ = row is not None and row.ended is None
    if raw == "-":
        sys.stdout.writelines(json_lines(found, raw_results(stored)))
    elif raw is not None:
        write_raw(Path(raw), found, raw_results(stored))
        print(f"raw samples of {count(len(rows), 'task')} in {raw}", file=sys.stderr)
    if jsonl == "-":
        sys.stdout.writelines(jsonl_lines(raw_results(stored)))
    elif jsonl is not None:
        write_jsonl(Path(jsonl), raw_results(stored))
        print(f"{count(len(rows), 'line')} in {jsonl}", file=sys.stderr)
    if parquet is not None:
        write_parquet(parquet, found, raw_results(stored))
        print(f"{count(len(rows), 'row')} in {parquet}", file=sys.stderr)
    if csv == "-":
        sys.stdout.writelines(csv_lines(rows))
    elif csv is not None:
        write_csv(Path(csv), rows)
        print(f"{count(len(rows), 'row')} in {csv}", file=sys.stderr)
    if as_json:
        print_json({"campaign": found, "results": [row.model_dump(mode="json") for row in rows]})
    elif csv is None and raw is None and jsonl is None and parquet is None:
        if rows:
            show_results(rows, Console())
        else:
            print(f"No task of {found} has ended yet. Watch it: sark-node watch {found}")
        if open_ and rows:
            print(f"{len(rows)} of {count(len(stored), 'task')} ended so far; the campaign is not over.")
    if open_ and not is_running(home):
        print(nobody_line(found), file=sys.stderr if as_json or "-" in (csv, raw, jsonl) else sys.stdout)


@app.command(rich_help_panel=PANEL)
def peers(
    ctx: typer.Context,
    where: Annotated[
        list[str] | None,
        typer.Argument(help="Clauses, such as 'ram >= 8 GiB'; devices that do not meet them say why."),
    ] = None,
    gate: Annotated[list[str] | None, GATE] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List the devices of the swarm, how they are, and whether they fit. Exit code 3: none meets the clauses."""
    from functools import partial

    import trio

    from protocol.values.requirement import Requirement, parse_clause
    from scheduler.output.fleet import device_info, observe_fleet
    from scheduler.output.tables import peer_remarks, peers_table
    from swarm.net.identity import load_or_create

    requirement = Requirement(clauses=tuple(parse_clause(text) for text in where or ()))
    me = load_or_create(ctx.obj.key("scheduler"))
    seen = trio.run(partial(observe_fleet, gates_of(ctx, gate, surely=True), requirement, signer=me))
    if as_json:
        print_json(
            {"count": len(seen), "peers": [device_info(item).model_dump(mode="json") for item in seen]}
        )
    elif not seen:
        print("The gate answers, but no device has joined yet: sark-node join")
    else:
        console = new_console()
        console.print(peers_table(seen, console.width))
        for line in peer_remarks(seen):
            console.print(Text(line), soft_wrap=True)
    if where and not any(item.fit.fits for item in seen):
        raise SystemExit(NothingFits.exit_code)


@app.command(rich_help_panel=PANEL)
def cancel(
    ctx: typer.Context,
    targets: Annotated[
        list[str],
        typer.Argument(
            help="Campaigns' ids, or tasks', such as c-ab23cd45/3.",
            metavar="ID...",
            autocompletion=completion.campaigns,
        ),
    ],
    gate: Annotated[list[str] | None, GATE] = None,
) -> None:
    """Cancel campaigns or tasks. Returns when the devices have confirmed that nothing of it runs any more."""
    from scheduler.store.opening import open_store
    from scheduler.submit.cancel import cancel_and_wait

    home: Home = ctx.obj
    with open_store(home) as store:
        whole: list[str] = []  # all are looked up before any is cancelled
        for target in targets:
            campaign, _, number = target.partition("/")
            if not campaign:
                raise CampaignError("no campaign is named", hint="list them: sark-node campaigns")
            if adopt.elsewhere(store, campaign):
                adopt.refuse_elsewhere(campaign)
            found = store.campaigns.resolve(campaign)
            whole.append(f"{found}/{number}" if number else found)
        keep_alive = keeper(ctx, gates_of(ctx, gate))
        for target in dict.fromkeys(whole):
            print(cancel_and_wait(store, target, keep_alive=keep_alive), flush=True)


@app.command(hidden=True)
def schedule(
    ctx: typer.Context,
    gate: Annotated[list[str] | None, GATE] = None,
    listen: Annotated[list[str] | None, typer.Option(help="Listen only there. Repeatable.")] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Wait for more campaigns when none is left.")] = False,
    stop_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Be the scheduler process of this home: run its campaigns until none is left. `submit` and `watch` start it by themselves."""
    import trio

    from scheduler.run.process import run_process
    from scheduler.store.settings import SchedulerSettings

    home: Home = ctx.obj
    settings = SchedulerSettings.load(
        home.config_file,
        ctx.meta["environment"],
        {"gates": tuple(gate) if gate else None, "listen": tuple(listen) if listen else None},
    )
    trio.run(run_process, home, settings, stay, stop_with_stdin)


@app.command(rich_help_panel="For all")
def demo(
    directory: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("sark-demo"),
    workers: Annotated[int, typer.Option(min=1, max=16, help="How many.")] = 3,
    fleet: Annotated[
        int,
        typer.Option(
            min=0,
            max=16,
            help="Simulate so many devices of all kinds instead, from a laptop to a GPU server: nothing is measured.",
        ),
    ] = 0,
) -> None:
    """Start a gate and three workers on this machine, run a campaign over them, show the results, stop all."""
    from scheduler.local.demo import run_demo

    raise SystemExit(run_demo(directory, workers, Console(), fleet=fleet))


app.add_typer(cli_why.app)
app.add_typer(adopt.app)
app.add_typer(analysis.app)
app.add_typer(db.app)
app.add_typer(report.app)
app.add_typer(top.app)

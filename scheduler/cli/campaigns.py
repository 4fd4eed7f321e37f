"""Commands for submitted campaigns: watch, campaigns, explain, events, results, cancel."""

from __future__ import annotations

import re
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from protocol.errors import CampaignError, Unreachable
from scheduler.cli import adopt, completion
from scheduler.cli.options import (
    CAMPAIGNS,
    RESULTS,
    AsJson,
    CampaignId,
    Gates,
    follow,
    gates_of,
    keeper,
    opened,
    write_out,
)
from scheduler.output.terminal import print_lines
from swarm.base.screen import new_console, print_json, print_json_with
from swarm.base.text import count
from swarm.base.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from results.export.raw import RawResult
    from scheduler.store.store import Store

app = typer.Typer()
POLL_S: Final = 0.5
_HASH: Final = re.compile(r"[0-9a-fA-F]{64}")


@app.command(rich_help_panel=CAMPAIGNS)
def watch(
    ctx: typer.Context,
    campaign: CampaignId = "",
    gate: Gates = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Write the results to this CSV file at the end.  \\[default: in this home]", metavar="PATH"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch a campaign until it ends.

    Restarts the scheduler process if needed; finished tasks are not run again.

    With the full id of a campaign that another machine of yours runs, shows what its devices report.
    """
    from results.export.raw import check_folder

    if csv is not None:
        check_folder(csv)
    with opened(ctx) as store:
        remote = adopt.is_elsewhere(store, campaign)
        campaign_id = campaign if remote else store.campaigns.resolve(campaign)
    if remote:
        adopt.watch_elsewhere(ctx, campaign, gate, as_json=as_json)
        return
    follow(ctx, campaign_id, keeper(ctx, gates_of(ctx, gate)), csv=csv, as_json=as_json)


app.command("attach", hidden=True)(watch)


@app.command(rich_help_panel=CAMPAIGNS)
def campaigns(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List this home's campaigns, newest first."""
    from scheduler.output.campaigns import campaigns_table
    from scheduler.store.progress import nobody_line
    from scheduler.submit.daemon import is_running
    from scheduler.submit.supervisor import crash_line, last_crash

    with opened(ctx) as store:
        summaries = store.campaigns.summaries()
    scheduling = is_running(ctx.obj)
    if as_json:
        from scheduler.output.schemas import campaign_info

        infos = [campaign_info(item, scheduling=scheduling) for item in summaries]
        print_json({"count": len(infos), "campaigns": infos})
    elif not summaries:
        print("No campaigns yet. Start with: sark-node init")
    else:
        console = new_console()
        console.print(campaigns_table(summaries, scheduling=scheduling))
        open_ = [item.campaign.id for item in summaries if item.campaign.ended is None]
        crash = crash_line(last_crash(ctx.obj), running=scheduling, wall=time.time()) if open_ else ""
        print_lines([crash] if crash else map(nobody_line, () if scheduling else open_), console)


@app.command(rich_help_panel=CAMPAIGNS)
def explain(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help="A campaign's id, or a task's, such as c-ab23cd45/3.  \\[default: the latest campaign]",
            metavar="[ID]",
            autocompletion=completion.campaigns,
        ),
    ] = "",
    gate: Gates = None,
    as_json: AsJson = False,
) -> None:
    """Explain why a campaign or task waits or failed, and what would help."""
    from scheduler.preview.explaining import explain_campaign
    from scheduler.preview.why import why_lines

    campaign, _, number = target.partition("/")
    with opened(ctx) as store:
        campaign_id = store.campaigns.resolve(campaign)
        report = explain_campaign(ctx.obj, store, campaign_id, number, lambda: gates_of(ctx, gate))
    if as_json:
        print_json(report)
        return
    console = new_console()
    for line in why_lines(report):
        console.print(Text(line), soft_wrap=not console.is_terminal)


@app.command(rich_help_panel=CAMPAIGNS)
def profile(
    ctx: typer.Context,
    task: Annotated[
        str,
        typer.Argument(
            help="A task's id, such as c-ab23cd45/3.", metavar="TASK", autocompletion=completion.campaigns
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show where a task's time went: waiting, at the device by stage, and on the way back."""
    from protocol.values.record import read_record
    from scheduler.output.profile import profile_table, task_profile

    campaign, _, number = task.partition("/")
    if not number.isdecimal():
        raise CampaignError(
            f"{task!r} is no task's id", hint="sark-node profile CAMPAIGN/NUMBER, such as c-ab23cd45/3"
        )
    with opened(ctx) as store:
        campaign_id, n = store.campaigns.resolve(campaign), int(number)
        stored = store.results.rows(campaign_id, n, n)
        if not stored:
            raise CampaignError(
                f"{campaign_id} has no task {n}", hint=f"list them: sark-node results {campaign_id}"
            )
        name, record = stored[0].task.id, stored[0].record
        events = store.events.of_task(campaign_id, name)
        found = store.campaigns.get(campaign_id)
        created = found.created if found is not None else time.time()
    stages = () if record is None else read_record(record).stages
    profiled = task_profile(name, created, events, stages, time.time())
    if as_json:
        print_json(profiled)
        return
    console = new_console()
    ended = "" if profiled.ended else " so far"
    console.print(
        Text(f"{name}: {show_duration(round(profiled.total_s))}{ended} since its campaign was created")
    )
    console.print(profile_table(profiled))


@app.command(rich_help_panel=CAMPAIGNS)
def events(
    ctx: typer.Context,
    campaign: CampaignId = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events until the campaign ends.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the hash chain instead of printing the events.")
    ] = False,
    last: Annotated[
        str,
        typer.Option(
            help="With --verify: an earlier last hash that must still be in the chain.", metavar="HASH"
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Print a campaign's events, or verify their hash chain.

    Each event has a hash over itself and the previous event. Exit code of --verify: 0 if the chain is intact, 1 if an event was changed,
    removed or inserted. Anyone who can write to this home can also rewrite the whole chain: store its last hash elsewhere, and check it
    later with --last.
    """
    from scheduler.output.events import event_line
    from scheduler.output.schemas import event_info

    if follow and (verify or as_json):
        raise CampaignError("--follow cannot be used with --verify or --json", hint="leave one of them out")
    if last and not verify:
        raise CampaignError("--last requires --verify", hint="sark-node events CAMPAIGN --verify --last HASH")
    if last and not _HASH.fullmatch(last):
        raise CampaignError(
            "--last is not an event's hash",
            hint="a hash has 64 hexadecimal digits: sark-node events CAMPAIGN --verify",
        )
    with opened(ctx) as store:
        campaign_id = store.campaigns.resolve(campaign)
        if verify:
            _verify_events(store, campaign_id, last.lower(), as_json=as_json)
            return
        if as_json:
            infos = [event_info(event) for event in store.events.all(campaign_id)]
            print_json({"campaign": campaign_id, "count": len(infos), "events": infos})
            return
        seq = 0
        while True:
            row = store.campaigns.get(campaign_id)
            for event in store.events.since(campaign_id, seq):
                print(event_line(event))
                seq = event.seq
            if not follow and seq >= store.events.count(campaign_id)[1]:
                return
            if follow:
                sys.stdout.flush()
                if row is None or row.ended is not None:
                    return
                time.sleep(POLL_S)


def _verify_events(store: Store, campaign: str, expected: str, *, as_json: bool) -> None:
    """Verify the chain; exit with 1 if it is broken."""
    from scheduler.store.events import check_chain

    number, newest = store.events.count(campaign)
    broken = check_chain(store.events.all(campaign), (number, newest), expected)
    head = "".join(event.hash for event in store.events.since(campaign, newest - 1, limit=1))
    if as_json:
        verdict = {
            "holds": not broken,
            "broken_at": broken and broken.seq,
            "why": broken.why if broken else "",
        }
        print_json({"campaign": campaign, "events": number, **verdict, "last_hash": head})
    elif broken is None:
        note = " and contains the expected hash" if expected else ""
        print(f"{campaign}: the chain of {count(number, 'event')} is intact{note}. Last hash: {head}")
    else:
        print(f"{campaign}: the chain is broken at event {broken.seq}: {broken.why}")
    if broken is not None:
        raise SystemExit(1)


@app.command(rich_help_panel=RESULTS)
def results(
    ctx: typer.Context,
    campaign: CampaignId = "",
    csv: Annotated[
        str | None, typer.Option(help="Write a CSV file; - for standard output.", metavar="PATH")
    ] = None,
    raw: Annotated[
        str | None,
        typer.Option(
            help="Write raw samples and signed records as JSON; - for standard output.", metavar="PATH"
        ),
    ] = None,
    jsonl: Annotated[
        str | None,
        typer.Option(
            help="Write one JSON object for each task, with samples; - for standard output.", metavar="PATH"
        ),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            help="Write a Parquet file with samples. Requires the extra \\[report].", metavar="PATH"
        ),
    ] = None,
    send: Annotated[
        str | None,
        typer.Option(
            help="Write CSV, report and signed records below this fsspec URL, such as s3://bucket/prefix. Requires the extra \\[storage].",
            metavar="URL",
        ),
    ] = None,
    operators: Annotated[
        bool, typer.Option("--operators", help="Show where the models' operators ran, and their times.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a campaign's results as a table, or write them to files."""
    from scheduler.output.results_table import ended_words, most_shown, show_results
    from scheduler.store.progress import nobody_line
    from scheduler.store.readers import RowReader

    piped = [csv, raw, jsonl, "-" if as_json else None].count("-")
    if piped > 1:
        raise CampaignError(
            "only one of --csv, --jsonl, --raw and --json can use standard output",
            hint="name a file for the others",
        )
    console, files = Console(), (csv, raw, jsonl, parquet) != (None,) * 4
    with opened(ctx) as store:
        campaign_id = store.campaigns.resolve(campaign)
        row = store.campaigns.get(campaign_id)
        unfinished = row is not None and row.ended is None
        counts = store.tasks.counts(campaign_id)
        ended = ended_words(counts)
        if send is not None:
            _send_results(ctx, campaign_id, send)
        if files:
            number = sum(ended.values())
            _write_results(store, campaign_id, number, csv=csv, raw=raw, jsonl=jsonl, parquet=parquet)
        if operators:
            _show_operators(campaign_id, RowReader(store, campaign_id).each_raw(), as_json=as_json)
        elif as_json:
            rows = RowReader(store, campaign_id).each_row()
            print_json_with({"campaign": campaign_id}, "results", rows, {})
        elif not files and send is None:
            first = list(islice(RowReader(store, campaign_id).each_row(), most_shown(console)))
            if first:
                show_results(first, console, ended=ended)
            else:
                print(f"No task of {campaign_id} has ended yet. Watch it: sark-node watch {campaign_id}")
            if unfinished and first:
                tasks = count(sum(counts.values()), "task")
                print(f"{sum(ended.values())} of {tasks} have ended; the campaign is still running.")
    if not unfinished:
        return
    from scheduler.submit.daemon import is_running

    if not is_running(ctx.obj):
        print(nobody_line(campaign_id), file=sys.stderr if piped else sys.stdout)


def _send_results(ctx: typer.Context, campaign: str, url: str) -> None:
    """Write the results below `url`, and record that if the campaign's own file names the URL. Raises `CampaignError`, `ResourceError`."""
    from pydantic_core import PydanticCustomError

    from scheduler.campaign.destination import check_destination
    from scheduler.output.sending import send_results

    try:
        url = check_destination(url)
    except PydanticCustomError as exc:
        context = exc.context or {}
        raise CampaignError(f"--send: {context.get('what')}", hint=context.get("hint", "")) from None
    with opened(ctx) as store:
        row = store.campaigns.get(campaign)
        if row is None or row.ended is None:
            raise CampaignError(f"{campaign} has not ended", hint=f"sark-node watch {campaign}")
        print(f"wrote the results of {campaign} to {send_results(store, campaign, url)}", file=sys.stderr)


def _show_operators(campaign: str, results: Iterable[RawResult], *, as_json: bool) -> None:
    """Show the operators of the model in each complete result."""
    from results.row.operators import operator_uses
    from results.row.simulated import mark_simulated
    from scheduler.output.operators_table import operators_lines

    known = ((result.row, operator_uses(result.ran)) for result in results if result.row.status == "Complete")
    if as_json:
        tasks = ({"task": row.job_id, "operators": uses} for row, uses in known)
        print_json_with({"campaign": campaign}, "tasks", tasks, {})
        return
    for row, uses in known:
        device = mark_simulated(row.device_name or "", row.simulated)
        title = f"{row.job_id.rpartition('/')[2]} · {row.file_name} on {device}, {row.compute_units}"
        print_lines([*operators_lines(title, uses), ""])


def _write_results(
    store: Store,
    campaign: str,
    number: int,
    *,
    csv: str | None,
    raw: str | None,
    jsonl: str | None,
    parquet: Path | None,
) -> None:
    """Write the requested files, of `number` tasks. Raises `ResourceError`."""
    from results.export.columnar import jsonl_lines, write_parquet
    from results.export.csv import csv_lines
    from results.export.raw import json_lines
    from scheduler.store.readers import RowReader

    def reader() -> RowReader:
        return RowReader(store, campaign)

    if raw is not None:
        lines = json_lines(campaign, reader().each_raw())
        write_out(raw, lines, f"raw samples of {count(number, 'task')}")
    if jsonl is not None:
        write_out(jsonl, jsonl_lines(reader().each_raw()), count(number, "line"))
    if parquet is not None:
        write_parquet(parquet, campaign, reader().each_raw())
        print(f"wrote {count(number, 'row')} to {parquet}", file=sys.stderr)
    if csv is not None:
        write_out(csv, csv_lines(reader().each_row()), count(number, "row"))


@app.command(rich_help_panel=CAMPAIGNS)
def cancel(
    ctx: typer.Context,
    targets: Annotated[
        list[str],
        typer.Argument(
            help="Ids of campaigns or tasks, such as c-ab23cd45/3.",
            metavar="ID...",
            autocompletion=completion.campaigns,
        ),
    ],
    gate: Gates = None,
) -> None:
    """Cancel campaigns or tasks, and wait until the devices have confirmed it.

    Exit code 4: a device did not confirm it. The scheduler asks the device again when it is back; if it stays away, its run ends with the
    lease.
    """
    from scheduler.submit.submit import CancelRequest

    with opened(ctx) as store:
        resolved: list[str] = []  # check all ids before anything is cancelled
        for target in targets:
            campaign, slash, number = target.partition("/")
            if not campaign:
                raise CampaignError("no campaign is named", hint="list campaigns: sark-node campaigns")
            if adopt.is_elsewhere(store, campaign):
                adopt.refuse_elsewhere(campaign)
            resolved.append(store.campaigns.resolve(campaign) + (slash + number if number else ""))
        keep_alive = keeper(ctx, gates_of(ctx, gate))
        requests = [CancelRequest(store, target) for target in dict.fromkeys(resolved)]
        unconfirmed: list[Unreachable] = []
        for request in requests:
            try:
                print(request.wait(keep_alive=keep_alive), flush=True)
            except Unreachable as exc:
                unconfirmed.append(exc)
        if unconfirmed:
            raise Unreachable("\n".join(exc.what for exc in unconfirmed), hint=unconfirmed[0].hint)

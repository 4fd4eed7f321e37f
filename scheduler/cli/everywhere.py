"""`sark-node bench --on`: measures on the devices that answer, and shows a matrix."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console

from protocol.errors import NothingFits, ResourceError
from scheduler.cli.options import answering_gates, crash_words, fetching, keeper, opened
from scheduler.cli.trust import ask_about
from swarm.base.screen import new_console
from swarm.base.text import count, safe_text

if TYPE_CHECKING:
    from protocol.values.requirement import Requirement
    from scheduler.campaign.model import Campaign
    from scheduler.local.everywhere import Places
    from scheduler.models.files import Models
    from scheduler.output.tables import ShowRows
    from scheduler.preview.answering import AnsweringDevices, BuildCampaign
    from scheduler.store.rows import CampaignRow
    from scheduler.store.store import Store

WAIT_S = 60.0
"""Seconds to wait for a device that answered and went away."""


def measure_on(
    ctx: typer.Context,
    models: Sequence[str],
    on: Sequence[str],
    units: Sequence[str],
    options: dict[str, Any],
    *,
    spread: str | None,
    gate: list[str] | None,
    csv: Path | None,
    raw: Path | None,
    report: Path | None,
    as_json: bool,
) -> NoReturn:
    """Measure on every device that `on` means, and exit with 0: all is measured, 1: some is not, 3: no device fits. `spread`: as in a
    campaign; None: workers count separately if they are named.
    """
    from scheduler.local.everywhere import campaign_on, offered_units, read_places
    from scheduler.output.results_table import show_results
    from scheduler.output.tables import show_matrix

    places = read_places(on)
    every_unit = list(units) == ["all"]
    named = () if every_unit else tuple(units)
    models_by_name = describe(ctx, campaign_on(models, named, places.clauses, options))
    gates = answering_gates(ctx, gate)

    def campaign(adverts: Sequence[Any]) -> Campaign:
        from scheduler.local.everywhere import clauses_on

        chosen = offered_units(models, adverts) if every_unit else named
        return campaign_on(
            models, chosen, clauses_on(places, adverts), options, adverts, spread or places.spread(adverts)
        )

    needs = _needs(campaign_on(models, named, places.clauses, options), places, every_unit)
    found = _find(ctx, campaign, models_by_name, needs, gates, ask=not as_json)
    _announce(ctx, found, places)
    show = show_results if options.get("against") else show_matrix
    code = _run(ctx, found, models_by_name, gates, show, csv=csv, raw=raw, report=report, as_json=as_json)
    raise SystemExit(code)


def describe(ctx: typer.Context, campaign: Campaign) -> Models:
    """The models as found here. Raises `CampaignError`, with the option to add if an input needs a size."""
    from scheduler.models.describe import describe_models
    from scheduler.models.inspect import UnshapedModel

    try:
        return describe_models(campaign, Path(), fetching(ctx.obj))
    except UnshapedModel as error:
        error.hint = error.missing.options
        raise


def _needs(campaign: Campaign, places: Places, every_unit: bool) -> tuple[Requirement, ...]:
    from protocol.values.requirement import Requirement
    from scheduler.planning.tasks import requirements

    return (Requirement(clauses=places.clauses),) if every_unit else requirements(campaign)


def _find(
    ctx: typer.Context,
    campaign: BuildCampaign,
    models: Models,
    needs: Sequence[Requirement],
    gates: tuple[str, ...],
    *,
    ask: bool,
) -> AnsweringDevices:
    """Find the devices; repeat this once a person at a terminal trusts more of them."""
    from scheduler.preview.answering import find_answering
    from scheduler.trust.home import read_book

    look = partial(find_answering, ctx.obj, campaign, models, needs, gates)
    found = look()
    serving = [device for device in found.untrusted if device.serves]
    if not (serving and ask and sys.stdin.isatty() and sys.stderr.isatty()):
        return found
    ask_about(ctx.obj, serving, partial(typer.confirm, default=False, err=True))
    book = read_book(ctx.obj, time.time())
    return look() if any(book.knows(device.peer) for device in serving) else found


def _announce(ctx: typer.Context, found: AnsweringDevices, places: Places) -> None:
    """Say where the models are measured, and where not. Raises `NothingFits`."""
    from scheduler.trust.untrusted import untrusted_lines
    from swarm.join.known_gates import worker_addresses

    names = sorted(found.counted.values())
    noun = "worker" if found.campaign.devices.spread == "worker" else "device"
    untrusted = untrusted_lines(found.untrusted)
    if not names:
        lines = [line for why in found.why for line in why.splitlines()]
        raise NothingFits("no device measures this now", hint="\n".join([*lines, *untrusted]))
    lines = [f"Measuring on {count(len(names), noun)}: {', '.join(names)}"]
    if places.everywhere and not worker_addresses(ctx.obj):
        lines.append("This machine has no worker and is left out: sark-node join")
    lines += [f"Left out: {line}" for line in found.silent]
    for line in (*lines, *untrusted):
        print(safe_text(line, 600), file=sys.stderr)


def _run(
    ctx: typer.Context,
    found: AnsweringDevices,
    models: Models,
    gates: tuple[str, ...],
    show: ShowRows,
    *,
    csv: Path | None,
    raw: Path | None,
    report: Path | None,
    as_json: bool,
) -> int:
    """Store the campaign, show it until it has ended, and write the requested files; Ctrl-C cancels the campaign."""
    from scheduler.output.live_matrix import LiveMatrix
    from scheduler.output.tables import finish
    from scheduler.output.watch import watch
    from scheduler.submit.submit import new_campaign_id, request_cancel, store_campaign
    from swarm.join.known_gates import save_gates

    home, console = ctx.obj, Console(stderr=True) if as_json else new_console()
    keep_alive, id = keeper(ctx, gates), new_campaign_id()
    with opened(ctx) as store:
        try:
            store_campaign(
                home,
                store,
                found.campaign,
                models,
                folder=str(Path.cwd()),
                wait_s=WAIT_S,
                campaign_id=id,
                devices=found.adverts,
            )
            with contextlib.suppress(ResourceError):
                neighbours = ctx.meta.get("neighbours", ())
                save_gates(home, [gate for gate in gates if gate not in neighbours])
            keep_alive()
            campaign = watch(
                store,
                id,
                console,
                keep_alive=keep_alive,
                crash=crash_words(ctx),
                hint="q or Ctrl-C cancels it",
                draw=LiveMatrix(store, id, found.names),
            )
        except KeyboardInterrupt:
            if store.campaigns.get(id) is not None:
                request_cancel(store, id)
                print(f"\n{id} is being cancelled. What it measured: sark-node results {id}", file=sys.stderr)
            raise SystemExit(130) from None
        code = finish(
            store,
            campaign,
            console,
            csv=csv,
            raw=home.data / "results" / id,
            as_json=as_json,
            show=show,
        )
        _write(store, campaign, raw, report, home)
    return code


def _write(store: Store, campaign: CampaignRow, raw: Path | None, report: Path | None, home: Any) -> None:
    from results.export.raw import json_lines, write_lines
    from scheduler.output.comparisons import read_source
    from scheduler.output.render import ReportFormat, make_report, render
    from scheduler.store.readers import raw_results

    if raw is not None:
        write_lines(
            raw,
            json_lines(
                campaign.id,
                raw_results(store.results.rows(campaign.id), store.campaigns.evaluations(campaign.id)),
            ),
        )
    if report is not None:
        form = ReportFormat.MD if report.suffix.lower() in (".md", ".markdown") else ReportFormat.HTML
        source = read_source(campaign.id, home)
        made = make_report(source, store.campaigns.summary(campaign.id), time.time())
        write_lines(report, [render(made, form)])
        print(f"Report       {report.absolute()}", file=sys.stderr)

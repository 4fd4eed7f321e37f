"""`sark-node delete`: deletes campaigns with everything kept of them, here and on the devices that ran them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from protocol.errors import CampaignError, SarkError
from scheduler.cli import completion
from scheduler.cli.options import CAMPAIGNS, AsJson, Gates, gates_of, keeper, opened
from swarm.base.screen import print_json
from swarm.base.text import count, safe_text

if TYPE_CHECKING:
    from scheduler.experiments.deletion import DeletedCampaign
    from scheduler.store.store import Store

app = typer.Typer()
WAIT_S: Final = 20.0
"""Seconds to wait for the devices to answer."""
POLL_S: Final = 0.1


@app.command(rich_help_panel=CAMPAIGNS)
def delete(
    ctx: typer.Context,
    campaigns: Annotated[
        list[str],
        typer.Argument(
            help="Ids of campaigns that have ended.",
            metavar="CAMPAIGN...",
            autocompletion=completion.campaigns,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    gate: Gates = None,
    as_json: AsJson = False,
) -> None:
    """Delete campaigns with everything stored for them: results, signed records, events, files, and models that no other campaign needs.

    The devices that ran them are asked to do the same; for 30 days, an offline device is asked when a campaign of yours finds it online.
    Files that you wrote or uploaded, logs, and models that devices added or pinned remain. This cannot be undone.
    """
    from scheduler.experiments.deletion import delete_campaign, too_old, too_old_line
    from scheduler.store.deletion import not_ended

    if "" in campaigns:
        raise CampaignError("no campaign is named", hint="list campaigns: sark-node campaigns")
    with opened(ctx) as store:
        ids = list(dict.fromkeys(map(store.campaigns.resolve, campaigns)))
        open_ = store.campaigns.unfinished_ids()
        if running := [campaign for campaign in ids if campaign in open_]:
            raise not_ended(running[0])  # before any other is deleted
        if not yes and not _sure(ids):
            return
        deleted = []
        for campaign in ids:
            deleted.append(delete_campaign(ctx.obj, store, campaign))
            if not as_json:
                print(deleted_line(deleted[-1]), flush=True)
        away: dict[str, tuple[str, ...]] = {}
        old: dict[str, str] = {}
        if any(one.devices for one in deleted):
            _await_devices(ctx, store, ids, gate)
            away = {campaign: waiting_for(store, campaign) for campaign in ids}
            old = too_old(store, [row for campaign in ids for row in store.deletions.owed(campaign)])
        if as_json:
            waiting = [
                {**one.model_dump(mode="json"), "waits_for": away.get(one.campaign, ())} for one in deleted
            ]
            print_json({"count": len(deleted), "deleted": waiting})
            return
        names = dict.fromkeys(safe_text(name, 60) for devices in away.values() for name in devices)
        asked = sum(len(one.devices) for one in deleted) - sum(map(len, away.values()))
        if asked:
            print(f"Also forgotten by {count(asked, 'device')}.")
        for device, version in old.items():
            print(too_old_line(device, version))
        if names:
            print(
                f"Not yet forgotten by {', '.join(names)}: each is asked again when a campaign of yours finds it online."
            )


def _sure(campaigns: list[str]) -> bool:
    if not sys.stdin.isatty():
        raise CampaignError(
            "delete cannot be undone, and there is no terminal here to ask for confirmation",
            hint="sark-node delete --yes CAMPAIGN",
        )
    return typer.confirm(f"Delete {', '.join(campaigns)} with all results? This cannot be undone.")


def _await_devices(ctx: typer.Context, store: Store, campaigns: list[str], gate: list[str] | None) -> None:
    """Wait until the devices have answered, or the scheduler process has done what it can for now."""
    from scheduler.submit.daemon import is_running

    deadline, seen = time.monotonic() + WAIT_S, False
    try:
        keeper(ctx, gates_of(ctx, gate))()
        while any(store.deletions.owed(campaign) for campaign in campaigns) and time.monotonic() < deadline:
            running = is_running(ctx.obj)
            if seen and not running:
                return
            seen = running
            time.sleep(POLL_S)
    except SarkError as exc:  # everything is deleted here; devices are asked later
        print(f"No device could be asked now: {exc.what}", file=sys.stderr)


def waiting_for(store: Store, campaign: str) -> tuple[str, ...]:
    """Names of the devices that have not forgotten a campaign yet."""
    from scheduler.experiments.deletion import devices_of

    return devices_of(store.deletions.owed(campaign))


def deleted_line(deleted: DeletedCampaign) -> str:
    """`c-ab23cd45 is deleted: 12 tasks, 11 records, 3 files.`"""
    parts = [count(deleted.tasks, "task"), count(deleted.records, "record")]
    parts += [count(deleted.files, "file")] if deleted.files else []
    run = (
        f" It was a run of {safe_text(deleted.run_of, 70)}, and is removed from its history."
        if deleted.run_of
        else ""
    )
    return f"{deleted.campaign} is deleted: {', '.join(parts)}.{run}"

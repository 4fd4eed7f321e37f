"""Commands for campaigns of other machines: delegating, adopting, and watching from elsewhere."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from protocol.errors import CampaignError, NotPermitted, ResourceError
from scheduler.cli import completion
from scheduler.cli.options import CAMPAIGNS, AsJson, Gates, duration_option, follow, gates_of, keeper, opened
from swarm.base.home import Home
from swarm.base.screen import print_json
from swarm.base.text import count, safe_text
from swarm.base.units import DAY_S, local_time

if TYPE_CHECKING:
    from scheduler.adoption.remote import CurrentLeader, RemoteView
    from scheduler.store.store import Store
    from swarm.net.identity import Identity

app = typer.Typer()
MAX_TTL_S: Final = 3_650 * DAY_S
_FULL_ID: Final = re.compile(r"c-[a-z0-9]{8}")
"""A full campaign id, as `scheduler.submit.submit` generates it."""


@app.command(rich_help_panel=CAMPAIGNS)
def delegate(
    ctx: typer.Context,
    campaign: Annotated[
        str,
        typer.Argument(help="A campaign's id or its first characters.", autocompletion=completion.campaigns),
    ],
    to: Annotated[
        str, typer.Option(help="The other scheduler's id, which `sark-node info` prints there.", metavar="ID")
    ],
    ttl: Annotated[
        str, typer.Option(help="How long the token is valid, such as 12h or 7d.", metavar="DURATION")
    ] = "7d",
    gate: Gates = None,
) -> None:
    """Print a token with which another machine can adopt a campaign of yours."""
    from scheduler.adoption.token import Handover, passed_on, write_handover
    from swarm.net.identity import load_or_create, peer_id_bytes
    from swarm.pools.membership import credentials

    home: Home = ctx.obj
    ttl_s = duration_option("--ttl", ttl, max_s=MAX_TTL_S)
    try:
        peer_id_bytes(to)
    except ValueError:
        raise CampaignError(
            f"{safe_text(to, 80)!r} is not a scheduler's id",
            hint="run `sark-node info` on the other machine: the id starts with 12D3Koo",
        ) from None
    key = load_or_create(home.key("scheduler"))
    with opened(ctx) as store:
        result = store.campaigns.resolve(campaign)
        row = store.campaigns.get(result)
        if row is not None and row.scheduler != key.peer_id:
            raise NotPermitted(f"{result} belongs to another scheduler", hint="ask its owner for a token")
        if row is not None and row.ended is not None:
            raise CampaignError(f"{result} has ended", hint=f"sark-node results {result}")
    now = time.time()
    tokens = passed_on(key, credentials(home, now=now), to, result, own=True, lasts_s=ttl_s, now=now)
    gates = gates_of(ctx, gate)[:8]
    text = write_handover(Handover(campaign=result, owner=key.peer_id, gates=gates, tokens=tokens))
    print(text)
    print(
        f"Valid until {local_time(now + ttl_s)} for that scheduler only. Send it privately.", file=sys.stderr
    )
    print(f"On the other machine:  sark-node adopt {result} --token {text[:12]}…", file=sys.stderr)


@app.command(rich_help_panel=CAMPAIGNS)
def adopt(
    ctx: typer.Context,
    campaign: Annotated[str, typer.Argument(help="The campaign's full id.")],
    key: Annotated[
        Path | None,
        typer.Option(
            help="The owner's scheduler.key, copied from the other machine. It becomes this home's key.",
            metavar="FILE",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="The token that `sark-node delegate` printed, a file that contains it, or - for standard input."
        ),
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="Folder with models that no device has any more.", metavar="FOLDER")
    ] = None,
    gate: Gates = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when the campaign is adopted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Continue a campaign of another machine, which may still run it or may have lost its store.

    Tasks that are running or have finished are not repeated.
    """
    import trio

    from scheduler.adoption.adopt import adopt_campaign
    from scheduler.adoption.remote import visiting
    from scheduler.trust.home import read_book
    from swarm.base.durable import write_durably
    from swarm.join.known_gates import save_gates
    from swarm.pools.membership import store_tokens
    from swarm.pools.tickets import secret_text

    home: Home = ctx.obj
    if key is not None and token is not None:
        raise CampaignError("--key and --token cannot be used together", hint="--token needs no secret")
    owner_key = None if key is None else _read_owner_key(ctx, key)
    if token is not None:
        token = secret_text(token, sys.stdin)
    leader, token_gates = _leader(home, campaign, token, owner_key)
    gates = tuple(gate or ()) or token_gates or gates_of(ctx, None)

    def keep() -> None:
        if key is not None:
            write_durably(home.key("scheduler"), key.read_bytes())
        if token is not None:
            store_tokens(home, leader.held)

    with opened(ctx) as store:

        async def recover() -> str:
            async with visiting(gates, campaign, leader) as recovery:
                adoption = await adopt_campaign(
                    recovery,
                    campaign=campaign,
                    owner=leader.owner,
                    store=store,
                    spool=home.spool,
                    models=models,
                    wall=time.time,
                    trust_of=read_book(home, time.time()).trust_of,
                    keep=keep,
                )
            for reason in adoption.silent.values():
                print(safe_text(f"{reason}; its tasks are run again elsewhere", 400), file=sys.stderr)
            for name in adoption.missing:
                note = f"tasks wait for the model {name}, which no device has: sark-node adopt {campaign} --models FOLDER"
                print(safe_text(note, 400), file=sys.stderr)
            return adoption.line()

        line = already_here(home, store, campaign, models, leader, renew=token is not None) or trio.run(
            recover
        )
    with contextlib.suppress(ResourceError):
        save_gates(home, gates)
    print(f"{campaign} is adopted: {line}", file=sys.stderr if as_json else sys.stdout)
    keep_alive = keeper(ctx, gates)
    keep_alive()
    if not detach:
        follow(ctx, campaign, keep_alive, csv=Path(f"{campaign}.csv"), as_json=as_json)
    print(f"  sark-node watch {campaign}", file=sys.stderr)
    if as_json:
        print_json({"campaign": campaign})


def watch_elsewhere(ctx: typer.Context, campaign: str, gate: list[str] | None, *, as_json: bool) -> None:
    """Watch a campaign of this home's key that is in another home's store."""
    import trio

    from scheduler.adoption.remote import look_on, visiting

    home: Home = ctx.obj
    leader, _ = _leader(home, campaign, None)

    def show(view: RemoteView) -> None:
        print(safe_text(view.line(), 400), file=sys.stderr if as_json else sys.stdout, flush=True)

    async def watch() -> RemoteView:
        async with visiting(gates_of(ctx, gate), campaign, leader) as recovery:
            return await look_on(recovery, leader.owner, show)

    try:
        view = trio.run(watch)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if as_json:
        print_json(view.json())
        return
    if view.is_complete:
        print(
            f"All tasks have run. The results are on the machine that runs the campaign; to get them here: sark-node adopt {campaign}"
        )
    else:
        left = count(view.adoption.to_do, "task")
        print(f"The campaign is idle with {left} left. Continue it here: sark-node adopt {campaign}")


def is_elsewhere(store: Store, campaign: str) -> bool:
    """Whether this is a full campaign id that this home does not know."""
    return bool(_FULL_ID.fullmatch(campaign)) and not store.campaigns.find(campaign)


def refuse_elsewhere(campaign: str) -> NoReturn:
    """Refuse to cancel another scheduler's campaign: that scheduler would run the tasks again."""
    raise CampaignError(
        f"no campaign {campaign!r} on this home",
        hint="list campaigns: sark-node campaigns\n"
        f"if another machine runs it, cancel it there, or adopt it first: sark-node adopt {campaign}",
    )


def _leader(
    home: Home, campaign: str, token: str | None, owner_key: Identity | None = None
) -> tuple[CurrentLeader, tuple[str, ...]]:
    """The leader on whose behalf we act, and the gates in a token. `owner_key`: the key to use instead of this home's."""
    from scheduler.adoption.remote import CurrentLeader
    from scheduler.adoption.token import read_handover
    from swarm.net.identity import load_or_create

    now = time.time()
    key = owner_key or load_or_create(home.key("scheduler"))
    if token is None:
        return CurrentLeader(key, key.peer_id, (), own=True), ()
    handover, handed = read_handover(token, key.peer_id, now=now)
    if handover.campaign != campaign:
        raise NotPermitted(
            f"the token is for campaign {handover.campaign}, not for {safe_text(campaign, 80)}"
        )
    return CurrentLeader(key, handover.owner, handed, own=False), handover.gates


def already_here(
    home: Home, store: Store, campaign: str, models: Path | None, leader: CurrentLeader, *, renew: bool
) -> str:
    """For a campaign that was adopted before: add missing models and, with `renew`, store the leader's newer tokens.

    Returns a text about what was done; '' if the campaign is not here yet. Raises `CampaignError` if there was nothing to do.
    """
    from protocol.values.task import read_task
    from scheduler.adoption.adopt import bring_models
    from scheduler.run.seats import place_of
    from scheduler.store.progress import ADOPTED
    from scheduler.store.rows import CampaignStatus
    from swarm.pools.membership import store_tokens

    row = store.campaigns.get(campaign)
    if row is None:
        return ""
    done: list[str] = []
    if renew and row.ended is None:
        if row.scheduler != leader.owner:
            raise NotPermitted(f"the token is not from the owner of {campaign}")
        store_tokens(home, leader.held)
        done.append("The new token is stored.")
    if models is not None:
        missing = bring_models(
            map(read_task, store.tasks.bodies(campaign).values()), row.spec, home.spool, models
        )
        if missing:
            raise CampaignError(
                f"{models} has no {', '.join(safe_text(model.name, 80) for model in missing)}"
            )
        done.append("All models of the campaign are stored.")
        place = store.seats.leader_place(campaign)
        if place and place != place_of(home):
            done.append(f"But the scheduler at {safe_text(place, 200)} runs it: run the same command there.")
    if not done:
        if row.outcome is CampaignStatus.ADOPTED:
            raise CampaignError(
                f"{campaign} is {row.detail or ADOPTED}",
                hint=f"run its remaining tasks here: sark-node retry {campaign} --adopted",
            )
        raise CampaignError(f"{campaign} is already on this home", hint=f"sark-node watch {campaign}")
    return " ".join(done)


def _read_owner_key(ctx: typer.Context, file: Path) -> Identity:
    """The key in `file`. Raises `CampaignError` if this home has campaigns under another key."""
    from scheduler.submit.daemon import is_running
    from swarm.net.identity import load_or_create

    if not file.is_file():
        raise CampaignError(
            f"no such file: {file}", hint="copy data/keys/scheduler.key from the other machine"
        )
    owner, place = load_or_create(file), ctx.obj.key("scheduler")
    if place.exists() and load_or_create(place).peer_id != owner.peer_id:
        with opened(ctx) as store:
            if store.campaigns.find("") or is_running(ctx.obj):
                raise CampaignError(
                    "this home has campaigns under another scheduler key",
                    hint="adopt into an empty home with --home FOLDER, or ask for a token: sark-node delegate",
                )
    return owner

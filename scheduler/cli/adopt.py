"""Commands for a campaign that another machine began: adopt it, let another adopt it, watch it from afar."""

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
from scheduler.cli.options import GATE, JSON, PANEL, duration_option, gates_of, keeper, print_json
from swarm.base.home import Home
from swarm.base.text import count, safe_text
from swarm.base.units import DAY_S

if TYPE_CHECKING:
    from scheduler.adoption.remote import CurrentLeader, RemoteView
    from scheduler.store.store import Store
    from swarm.net.identity import Identity

app = typer.Typer()
_WHOLE: Final = re.compile(r"c-[a-z0-9]{8}")
"""As `scheduler.submit.submit` makes them."""


@app.command(rich_help_panel=PANEL)
def delegate(
    ctx: typer.Context,
    campaign: Annotated[
        str, typer.Argument(help="Its id, or the beginning of it.", autocompletion=completion.campaigns)
    ],
    to: Annotated[
        str,
        typer.Option(help="Id of the other machine's scheduler: sark-node info shows it.", metavar="ID"),
    ],
    lasts: Annotated[str, typer.Option("--for", help="How long it may, such as 12h or 7d.")] = "7d",
    gate: Annotated[list[str] | None, GATE] = None,
) -> None:
    """Let another machine carry on a campaign of yours, if this one cannot. Prints the token for its adopt command."""
    from scheduler.adoption.token import Handover, passed_on, write_handover
    from scheduler.store.opening import open_store
    from swarm.net.identity import load_or_create, peer_id_bytes
    from swarm.pools.membership import credentials

    home: Home = ctx.obj
    lasts_s = duration_option("--for", lasts, max_s=MAX_LASTS_S)
    try:
        peer_id_bytes(to)
    except ValueError:
        raise CampaignError(
            f"{safe_text(to, 80)!r} is no scheduler's id",
            hint="on the other machine: sark-node info; it begins with 12D3Koo",
        ) from None
    key = load_or_create(home.key("scheduler"))
    with open_store(home) as store:
        found = store.campaigns.resolve(campaign)
        row = store.campaigns.get(found)
        if row is not None and row.scheduler != key.peer_id:
            raise NotPermitted(
                f"{found} is another scheduler's, which let this one carry it on",
                hint="ask its owner for a token",
            )
        if row is not None and row.ended is not None:
            raise CampaignError(
                f"{found} has ended: nothing is left to carry on", hint=f"sark-node results {found}"
            )
    now = time.time()
    tokens = passed_on(key, credentials(home, now=now), to, found, own=True, lasts_s=lasts_s, now=now)
    gates = gates_of(ctx, gate)[:8]
    text = write_handover(Handover(campaign=found, owner=key.peer_id, gates=gates, tokens=tokens))
    print(text)
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(now + lasts_s))
    print(f"Good until {until}, for that scheduler alone. Send it privately.", file=sys.stderr)
    print(f"On the other machine:  sark-node adopt {found} --token {text[:12]}…", file=sys.stderr)


@app.command(rich_help_panel=PANEL)
def adopt(
    ctx: typer.Context,
    campaign: Annotated[str, typer.Argument(help="Its whole id.")],
    key: Annotated[
        Path | None,
        typer.Option(
            help="The owner's scheduler.key, copied from the other machine. It becomes this home's.",
            metavar="FILE",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="What sark-node delegate printed on the owner's machine; or a file that holds it; or - for standard input."
        ),
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="A folder with models that no device has any more.", metavar="FOLDER")
    ] = None,
    gate: Annotated[list[str] | None, GATE] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it is taken over.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Carry on a running campaign that another machine began, or whose store is lost. What runs or has run is not run again."""
    import trio

    from scheduler.adoption.adopt import adopt_campaign
    from scheduler.adoption.remote import visiting
    from scheduler.cli.options import follow
    from scheduler.store.opening import open_store
    from swarm.base.durable import write_durably
    from swarm.join.known_gates import save_gates
    from swarm.pools.files import secret_text
    from swarm.pools.membership import store_tokens

    home: Home = ctx.obj
    if key is not None and token is not None:
        raise CampaignError(
            "--key and --token are two ways to the same; give one", hint="--token needs no secret"
        )
    given = None if key is None else _given_key(home, key)
    if token is not None:
        token = secret_text(token, sys.stdin)
    speaks, ways = _speaks(home, campaign, token, given)
    gates = tuple(gate or ()) or ways or gates_of(ctx, None)

    def keep() -> None:
        if key is not None:
            write_durably(home.key("scheduler"), key.read_bytes())
        if token is not None:
            store_tokens(home, speaks.held)

    with open_store(home) as store:

        async def go() -> str:
            async with visiting(gates, campaign, speaks) as gatherer:
                adoption = await adopt_campaign(
                    gatherer,
                    campaign=campaign,
                    owner=speaks.owner,
                    store=store,
                    spool=home.spool,
                    models=models,
                    wall=time.time,
                    keep=keep,
                )
            for words in adoption.silent.values():
                told = safe_text(f"{words}; what it has of the campaign is run again elsewhere", 400)
                print(told, file=sys.stderr)
            for name in adoption.lacking:
                told = f"tasks wait for the model {name}, which no device has: sark-node adopt {campaign} --models FOLDER"
                print(safe_text(told, 400), file=sys.stderr)
            return adoption.line()

        line = already_here(home, store, campaign, models, speaks, renew=token is not None) or trio.run(go)
    with contextlib.suppress(ResourceError):
        save_gates(home, gates)
    out = sys.stderr if as_json else sys.stdout
    print(f"{campaign} is carried on here: {line}", file=out)
    if detach:
        print(f"  sark-node watch {campaign}", file=sys.stderr)
    keep_alive = keeper(ctx, gates)
    keep_alive()
    if not detach:
        follow(ctx, campaign, keep_alive, csv=Path(f"{campaign}.csv"), as_json=as_json)
    elif as_json:
        print_json({"campaign": campaign})


def watch_elsewhere(ctx: typer.Context, campaign: str, gate: list[str] | None, *, as_json: bool) -> None:
    """Watch a campaign of this home's key that is not in its store."""
    import trio

    from scheduler.adoption.remote import look_on, visiting

    home: Home = ctx.obj
    speaks, _ = _speaks(home, campaign, None)

    def show(sight: RemoteView) -> None:
        print(safe_text(sight.line(), 400), file=sys.stderr if as_json else sys.stdout, flush=True)

    async def go() -> RemoteView:
        async with visiting(gates_of(ctx, gate), campaign, speaks) as gatherer:
            return await look_on(gatherer, speaks.owner, show)

    try:
        sight = trio.run(go)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if as_json:
        print_json(sight.json())
        return
    if sight.over:
        print(
            f"Every task has run. The results are on the machine that runs it; or: sark-node adopt {campaign}"
        )
    else:
        left = count(sight.adoption.to_do, "task")
        print(
            f"Nothing of it runs or waits any more; {left} to do. Carry it on here: sark-node adopt {campaign}"
        )


def elsewhere(store: Store, campaign: str) -> bool:
    """Whether this is a whole campaign's id, and none of this home's."""
    return bool(_WHOLE.fullmatch(campaign)) and not store.campaigns.find(campaign)


def refuse_elsewhere(campaign: str) -> NoReturn:
    """Only who carries a campaign on can end it: else its scheduler would run the tasks again."""
    raise CampaignError(
        f"no campaign {campaign!r} on this home",
        hint="list them: sark-node campaigns\n"
        f"if another machine runs it, cancel it there, or take it over first: sark-node adopt {campaign}",
    )


def _speaks(
    home: Home, campaign: str, token: str | None, given: Identity | None = None
) -> tuple[CurrentLeader, tuple[str, ...]]:
    """On whose behalf we act, and the gates that a token names. `given`: the key to act with, if it is not this home's."""
    from scheduler.adoption.remote import CurrentLeader
    from scheduler.adoption.token import read_handover
    from swarm.net.identity import load_or_create

    now = time.time()
    key = given or load_or_create(home.key("scheduler"))
    if token is None:
        return CurrentLeader(key, key.peer_id, (), own=True), ()
    handover, handed = read_handover(token, key.peer_id, now=now)
    if handover.campaign != campaign:
        raise NotPermitted(
            f"this token is for campaign {handover.campaign}, not for {safe_text(campaign, 80)}"
        )
    return CurrentLeader(key, handover.owner, handed, own=False), handover.gates


def already_here(
    home: Home, store: Store, campaign: str, models: Path | None, speaks: CurrentLeader, *, renew: bool
) -> str:
    """For a campaign that was adopted before: bring the models it still lacks, and with `renew` keep the newer tokens of `speaks`.

    Gives what was done, for people; empty when the campaign is not here yet. Raises `CampaignError` when there was nothing to do.
    """
    from protocol.values.task import read_task
    from scheduler.adoption.adopt import bring_models
    from swarm.pools.membership import store_tokens

    row = store.campaigns.get(campaign)
    if row is None:
        return ""
    told: list[str] = []
    if renew and row.ended is None:
        if row.scheduler != speaks.owner:
            raise NotPermitted(f"this token is not from the owner of {campaign}")
        store_tokens(home, speaks.held)
        told.append("The token is kept: the campaign goes on with it.")
    if models is not None:
        left = bring_models(
            map(read_task, store.tasks.bodies(campaign).values()), row.spec, home.spool, models
        )
        if left:
            raise CampaignError(f"{models} has no {', '.join(safe_text(name, 80) for name in left)}")
        told.append("All models of the campaign are here.")
    if not told:
        raise CampaignError(f"{campaign} is on this home already", hint=f"sark-node watch {campaign}")
    return " ".join(told)


def _given_key(home: Home, file: Path) -> Identity:
    """The key in `file`. Raises `CampaignError` if this home cannot take it: that would leave campaigns of another key behind."""
    from scheduler.store.opening import open_store
    from scheduler.submit.daemon import is_running
    from swarm.net.identity import load_or_create

    if not file.is_file():
        raise CampaignError(
            f"there is no file {file}", hint="copy data/keys/scheduler.key from the other machine"
        )
    owner, place = load_or_create(file), home.key("scheduler")
    if place.exists() and load_or_create(place).peer_id != owner.peer_id:
        with open_store(home) as store:
            if store.campaigns.find("") or is_running(home):
                raise CampaignError(
                    "this home has campaigns under another scheduler key, which must stay",
                    hint="adopt into an empty home: --home FOLDER; or ask for a token: sark-node delegate",
                )
    return owner


MAX_LASTS_S: Final = 3_650 * DAY_S

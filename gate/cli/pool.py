"""`sark-node pool …`: what a pool's owner types, and who was given a ticket for submitting."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from gate.settings import GateSettings
from protocol.errors import NotPermitted, ResourceError, Unreachable
from protocol.words import Role
from swarm.base.home import Home
from swarm.base.settings import SettingsError
from swarm.base.units import DAY_S, DurationError, parse_duration
from swarm.join.known_gates import local_gates, remember_gates, remembered_gates
from swarm.net.settings import RoleSettings

if TYPE_CHECKING:
    from swarm.pools.membership import Membership
    from swarm.pools.owner import OwnPool

app = typer.Typer()
pool = typer.Typer(no_args_is_help=True, help="Pools: let others use your devices, and take it back.")
app.add_typer(pool, name="pool", rich_help_panel="For a pool's owner")

PIPE_WIDTH: Final = 1000
DEFAULT_LASTS: Final = "30d"
DEVICES: Final = 25
"""A ticket for devices is for so many of them: one string for a rack, and too few to fill a pool."""
MAX_VALIDITY_S: Final = 3_650 * DAY_S

NAME = typer.Argument(help="The pool's name.", metavar="NAME")
GATE = typer.Option(
    help="A gate that newcomers can reach. Repeatable.  \\[default: the gate on this --home]",
    metavar="ADDRESS",
)


@pool.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    gate: Annotated[list[str] | None, GATE] = None,
) -> None:
    """Make a pool: a key of its own on this home. The gate of this home lets in whoever has a ticket.

    This home's own scheduler may submit to the pool from now on.
    """
    from protocol.messages.pool import PoolMember
    from swarm.net.identity import load_or_create
    from swarm.pools.manifests import with_member
    from swarm.pools.owner import create_pool

    home: Home = ctx.obj
    made = create_pool(home, name, _given_gates(ctx, gate))
    me = load_or_create(home.key("scheduler")).peer_id
    made.change(lambda m: with_member(m, PoolMember(peer=me, role=Role.SUBMIT, name="owner")))
    print(f"pool {name} is made: {made.id}")
    print(f"  its key: {made.folder / 'pool.key'}   keep a copy: who has it has the pool")
    print(f"  invite a device: sark-node pool invite {_quoted(name)}")
    print(f"  invite somebody to submit: sark-node pool invite {_quoted(name)} --submit")
    if not _gates_of(ctx, made):
        print("No gate is known here. Tickets need one: sark-node gate, on this --home.", file=sys.stderr)


@pool.command()
def invite(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    submit: Annotated[
        bool, typer.Option("--submit", help="For somebody who submits campaigns, instead of for a device.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            help="Only for this scheduler (shown by: sark-node info); it needs to ask no gate. Implies --submit.",
            metavar="SCHEDULER_ID",
        ),
    ] = None,
    member: Annotated[
        str | None, typer.Option("--name", help="With --to: what `members` calls it.", metavar="MEMBER")
    ] = None,
    priority: Annotated[
        int, typer.Option(min=0, max=100, help="The highest priority that counts for it.")
    ] = 100,
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Places and tickets it may have at a time at each worker."),
    ] = None,
    team: Annotated[str, typer.Option(help="On whose account it works.", metavar="TEAM")] = "",
    uses: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help=f"How many may come by it.  \\[default: {DEVICES} for devices, 1 for who submits]",
            show_default=False,
        ),
    ] = None,
    good_for: Annotated[
        str, typer.Option("--for", help="How long the ticket can be used.", metavar="24h")
    ] = "24h",
    lasts: Annotated[
        str,
        typer.Option(help="How long what it gives lasts; members renew it by themselves.", metavar="30d"),
    ] = DEFAULT_LASTS,
    gate: Annotated[list[str] | None, GATE] = None,
) -> None:
    """Print a ticket, and nothing else, on standard output. What it is good for is told on standard error.

    A device uses it with `sark-node join TICKET`, who submits with `sark-node pool join TICKET`.
    """
    from gate.admission.tickets import give_ticket
    from swarm.pools.owner import check_name
    from swarm.pools.tickets import write_ticket

    now = time.time()
    found = _find(ctx, name)
    gates = _given_gates(ctx, gate) or _gates_of(ctx, found)
    if not gates and to is None:
        raise ResourceError(
            "no gate is known here, and a ticket must name one",
            hint=f"start it on this --home: sark-node gate\nor name it: sark-node pool invite {_quoted(name)} --gate ADDRESS",
        )
    if member is not None and to is None:
        raise SettingsError("--name goes with --to", hint="who joins by a ticket says its own name")
    if member is not None:
        check_name(member)
    if uses is not None and to is not None:
        raise SettingsError("--uses goes with no --to", hint="a ticket for one scheduler is for that one")
    role = Role.SUBMIT if submit or to is not None else Role.WORKER
    if role is Role.WORKER and (priority != 100 or slots is not None or team):
        raise SettingsError(
            "--priority, --slots and --team are for who submits, and this ticket is for a device",
            hint="add --submit, or leave them out",
        )
    if uses is None:
        uses = DEVICES if role is Role.WORKER else 1
    try:
        ticket, note = give_ticket(
            found,
            gates,
            role=role,
            to=to,
            member=member,
            priority=priority,
            slots=slots,
            team=team,
            ticket_s=_seconds("--for", good_for),
            lasts_s=_seconds("--lasts", lasts),
            now=now,
            uses=uses,
        )
    except ValueError as exc:
        raise SettingsError(str(exc), hint="see: sark-node pool invite --help") from None
    how = "pool join" if role is Role.SUBMIT else "join"
    each = "device" if role is Role.WORKER else "home"
    many = f"1 {each}" if uses == 1 else f"{uses} {each}s"
    whom = (
        f"scheduler {to} alone"
        if to
        else f"the first {many} that {'uses' if uses == 1 else 'use'} it (--uses)"
    )
    until = time.strftime(
        "%Y-%m-%d %H:%M" if note.until - now > 3600 else "%H:%M:%S", time.localtime(note.until)
    )
    what = "submitting to" if role is Role.SUBMIT else "joining a device to"
    print(f"A ticket for {what} pool {found.name}, good for {whom} until {until}.", file=sys.stderr)
    print(f"  used with: sark-node {how} TICKET", file=sys.stderr)
    print(f"  taken back with: sark-node pool revoke {_quoted(name)} {note.id.hex()}", file=sys.stderr)
    if to is None:
        print(
            "  It is as good as a key while it lasts: send it privately. In its place a file that holds it",
            file=sys.stderr,
        )
        print(
            "  can be named, or - for standard input: what is typed shows in the list of processes.",
            file=sys.stderr,
        )
    print(write_ticket(ticket))


@pool.command()
def members(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show who is in a pool, which tickets are out, and what was taken back; of one joined here, who is in it as last heard."""
    from gate.cli.pool_views import members_table

    joined = _only_joined(ctx, name)
    if joined is not None:
        _show_joined(ctx, joined, as_json=as_json)
        return
    found = _find(ctx, name)
    manifest, tickets = found.manifest(), found.notes.tickets(time.time())
    if as_json:
        document = {
            "pool": found.id,
            "name": found.name,
            "number": manifest.number,
            "members": [member.model_dump(mode="json") for member in manifest.members],
            "tickets": [
                {
                    "id": note.id.hex(),
                    "role": str(note.role),
                    "until": note.until,
                    "to": note.to,
                    "uses": note.uses,
                    "used": list(note.used),
                }
                for note in tickets
            ],
            "revoked": list(manifest.revoked),
            "revoked_tokens": [token.hex() for token in manifest.revoked_tokens],
        }
        json.dump(document, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    console.print(f"pool {found.name}, manifest {manifest.number}: {found.id}", markup=False, highlight=False)
    console.print(
        members_table(manifest.members, console.width) if manifest.members else "nobody is in it yet"
    )
    for note in tickets:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(note.until))
        used = f"used by {len(note.used)} of {note.uses}" if note.to is None else f"for {note.to}"
        back = ", taken back" if note.id in manifest.revoked_tokens else ""
        console.print(
            f"ticket {note.id.hex()}: {note.role}, until {until}, {used}{back}", markup=False, highlight=False
        )
    for peer in manifest.revoked:
        console.print(f"taken back: {peer}", markup=False, highlight=False)


def _only_joined(ctx: typer.Context, name: str) -> Membership | None:
    """The joined pool of that name, or id; None: there is none, or one of that name was made here."""
    from swarm.pools.membership import joined_pools
    from swarm.pools.owner import own_pools

    home: Home = ctx.obj
    if any(name in (own.name, own.id) for own in own_pools(home)):
        return None
    found = [pool for role in (Role.WORKER, Role.SUBMIT) for pool in joined_pools(home, role)]
    return next((pool for pool in found if name in (pool.name, pool.pool)), None)


def _show_joined(ctx: typer.Context, joined: Membership, *, as_json: bool) -> None:
    from gate.cli.pool_views import members_table
    from swarm.pools.manifests import verified
    from swarm.pools.membership import kept_manifest

    kept = kept_manifest(ctx.obj, joined.pool)
    manifest = verified(kept.body, kept.signature) if kept is not None else None
    if as_json:
        shown = [] if manifest is None else [one.model_dump(mode="json") for one in manifest.members]
        document = {"pool": joined.pool, "name": joined.name, "members": shown}
        json.dump(document, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    console.print(f"pool {joined.name}, made elsewhere: {joined.pool}", markup=False, highlight=False)
    if manifest is None:
        print("Nothing was heard of its members yet; its owner can list them there: sark-node pool members")
    else:
        console.print(members_table(manifest.members, console.width))


@pool.command("list")
def list_(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the pools of this home: those made here, and those it joined with its device or to submit."""
    from gate.cli.pool_views import pools_table
    from swarm.pools.membership import joined_pools
    from swarm.pools.owner import own_pools

    home: Home = ctx.obj
    lines = [(own.name, "made here", own.id) for own in own_pools(home)]
    for role, what in ((Role.WORKER, "its device works for it"), (Role.SUBMIT, "may submit to it")):
        for one in joined_pools(home, role):
            until = time.strftime("%Y-%m-%d", time.localtime(one.until)) if one.until else ""
            lines.append(
                (one.name, what + (f" until {until}" if until and role is Role.SUBMIT else ""), one.pool)
            )
    if as_json:
        told = [{"name": name, "what": what, "pool": peer} for name, what, peer in lines]
        json.dump({"count": len(told), "pools": told}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif not lines:
        print("No pool was made or joined here. Make one: sark-node pool create NAME")
    else:
        console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
        console.print(pools_table(lines, console.width))


@pool.command()
def revoke(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    who: Annotated[str, typer.Argument(help="A member's name or peer id, or a ticket's id.", metavar="WHO")],
    with_members: Annotated[
        bool, typer.Option("--with-members", help="With a ticket: also what all were given who came by it.")
    ] = False,
) -> None:
    """Take back what a member, or a ticket, was given; the swarm is told at once, and every worker within a minute and a half.

    With a member, the ticket by which it came is taken back too: others that came by it stay. With a ticket for one scheduler,
    what that has is taken back.
    """
    import trio

    from gate.admission.tickets import take_back
    from gate.status.visit import tell_swarm

    found = _find(ctx, name)
    told = take_back(found, who, time.time(), with_members=with_members)
    for line in told:
        print(line)
    gates = _gates_of(ctx, found)
    try:
        heard = trio.run(tell_swarm, gates, found)
    except* (NotPermitted, ResourceError, Unreachable) as group:
        print(f"the swarm could not be told now: {_first(group)}", file=sys.stderr)
    else:
        if heard.kept:
            nodes = "1 node" if heard.kept == 1 else f"{heard.kept} nodes"
            print(
                f"{nodes} of {heard.asked} that were found heard it; the others ask within a minute and a half"
            )
        else:
            print("no node could be told now; the pool's gate tells it when it runs", file=sys.stderr)


@pool.command("join")
def join(
    ctx: typer.Context,
    ticket: Annotated[
        str,
        typer.Argument(
            help="The ticket: one string that begins with sark1; or a file that holds it; or - for standard input."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="What the pool's owner sees you called by.  \\[default: the host's name]"),
    ] = None,
) -> None:
    """Be one who submits to a pool: what this home submits may run on the pool's devices from then on."""
    import trio

    from gate.status.visit import be_let_in
    from swarm.base.locks import lock_folder
    from swarm.net.identity import load_or_create
    from swarm.pools.files import secret_text
    from swarm.pools.membership import host_name, join_pool, keep_joined, leave_pool
    from swarm.pools.owner import check_name
    from swarm.pools.tickets import read_ticket

    home: Home = ctx.obj
    if name is not None:
        check_name(name)
    said = read_ticket(secret_text(ticket, sys.stdin))
    me = load_or_create(home.key("scheduler")).peer_id
    joined = join_pool(home, said, Role.SUBMIT, me, now=time.time())
    if joined.gates and not remembered_gates(home, ("scheduler",)):
        remember_gates(home, joined.gates)  # so that submit needs no --gate
    if joined.ticket is not None and not joined.spent:
        gates = tuple(dict.fromkeys((*joined.gates, *_settings(ctx, None).gates, *local_gates(home))))
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lock_folder(home.folder("scheduler")))
            except ResourceError:
                print(
                    "This home's scheduler is running: it shows the ticket to the pool's gate.",
                    file=sys.stderr,
                )
            else:
                try:
                    joined = trio.run(be_let_in, home, joined, gates, name or host_name())
                except* NotPermitted:
                    if joined.credential is None:
                        leave_pool(home, joined.pool, Role.SUBMIT)
                    else:  # what an earlier ticket gave stays
                        keep_joined(home, joined.model_copy(update={"spent": True}))
                    raise
                except* (ResourceError, Unreachable):
                    raise Unreachable(
                        f"no gate of pool {joined.name} answers now; the ticket is kept",
                        hint="the same command again shows it, and so does this home's scheduler whenever it runs",
                    ) from None
    if joined.credential is None:
        return
    until = time.strftime("%Y-%m-%d", time.localtime(joined.until))
    print(f"This home may submit to pool {joined.name} until {until}; it renews that by itself.")
    print(f'  a campaign for its devices alone:  where: ["pools has {joined.name}"]')


def _find(ctx: typer.Context, name: str) -> OwnPool:
    from swarm.pools.owner import own_pool

    home: Home = ctx.obj
    return own_pool(home, name)


def _settings(ctx: typer.Context, gates: Sequence[str] | None) -> RoleSettings:
    home: Home = ctx.obj
    return GateSettings.load(
        home.config_file, ctx.meta["environment"], {"gates": tuple(gates) if gates else None}
    )


def _given_gates(ctx: typer.Context, gates: Sequence[str] | None) -> tuple[str, ...]:
    """Those of the command line, checked."""
    from swarm.pools.tickets import MAX_GATES

    if gates and len(gates) > MAX_GATES:
        raise SettingsError(f"{len(gates)} gates", hint=f"name at most {MAX_GATES}")
    return _settings(ctx, gates).gates if gates else ()


def _gates_of(ctx: typer.Context, found: OwnPool) -> tuple[str, ...]:
    """The pool's own, else this home's, else those that are set. Loopback is of no use to others, unless there is nothing else."""
    from swarm.pools.tickets import MAX_GATES

    home: Home = ctx.obj
    gates = found.gates or local_gates(home) or _settings(ctx, None).gates
    told = [gate for gate in gates if not gate.startswith(("/ip4/127.", "/ip6/::1/"))]
    return tuple(told or gates)[:MAX_GATES]


def _seconds(flag: str, text: str) -> float:
    """`90s`, `24h`, `30d`. Raises `SettingsError`."""
    try:
        return parse_duration(text, max_s=MAX_VALIDITY_S)
    except DurationError as exc:
        raise SettingsError(f"{flag}: {exc.what}", hint=exc.hint) from None


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first

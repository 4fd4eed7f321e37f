"""`sark-node pool …`: create pools, invite, revoke, and join one to submit to it."""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from gate.cli.arguments import contacts_for_calls, duration, given_gates, listed_gates
from gate.settings import GateSettings
from protocol.errors import NotPermitted, ResourceError, SettingsError, Unreachable, first_error
from protocol.messages.pool import PoolMember
from protocol.words import Role
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json
from swarm.base.text import count
from swarm.join.known_gates import local_gates, recent_gates, save_gates
from swarm.net.settings import RoleSettings

if TYPE_CHECKING:
    from swarm.pools.client import SpreadResult
    from swarm.pools.membership import Membership
    from swarm.pools.owner import OwnPool

app = typer.Typer()
pool = typer.Typer(no_args_is_help=True, help="Manage pools: share devices with others, and revoke access.")
app.add_typer(pool, name="pool", rich_help_panel="Gates and pools")

ROOMY: Final = 120
"""Terminal width in columns from which whole peer ids fit."""
TAIL: Final = 8
"""Trailing characters of a peer id that stand for it."""
DEFAULT_TTL: Final = "30d"
DEVICES: Final = 25
"""Uses of a ticket for devices: enough for a rack, too few to fill a pool."""
PUSH_S: Final = 20.0

NAME = typer.Argument(help="The pool's name.", metavar="NAME")
GATE = typer.Option(
    help="Address of a gate that newcomers can reach. Repeatable.  \\[default: the gate of this home]",
    metavar="ADDRESS",
)
JSON = typer.Option("--json", help="Print JSON.")


@pool.command()
def create(
    ctx: typer.Context, name: Annotated[str, NAME], gate: Annotated[list[str] | None, GATE] = None
) -> None:
    """Create a pool, and store its key on this home.

    The gate of this home admits newcomers who have a ticket. This home's scheduler may submit to the pool.
    """
    from swarm.pools.home_pool import owner_line
    from swarm.pools.manifests import with_member
    from swarm.pools.owner import create_pool

    home: Home = ctx.obj
    created = create_pool(home, name, given_gates(ctx, gate))
    owner = owner_line(home)
    created.change(lambda manifest: with_member(manifest, owner, time.time()))
    print(f"Created pool {name}: {created.id}")
    print(f"  {key_line(created)}")
    print(f"  invite a device: sark-node pool invite {_quoted(name)}")
    print(f"  invite a submitter: sark-node pool invite {_quoted(name)} --submit")
    if not _gates_of(ctx, created):
        print(
            "Tickets need a gate, and none is known. Start one on this home: sark-node gate", file=sys.stderr
        )


def key_line(own: OwnPool) -> str:
    """The line that says where the key of a pool made here is stored."""
    return f"its key: {own.key_file}   keep a copy; anyone who has it controls the pool"


@pool.command()
def invite(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    submit: Annotated[bool, typer.Option("--submit", help="Invite a submitter instead of a device.")] = False,
    to: Annotated[
        str | None,
        typer.Option(
            help="Invite only this scheduler; `sark-node info` on its home shows the id. It joins without a gate. Implies --submit.",
            metavar="SCHEDULER_ID",
        ),
    ] = None,
    member: Annotated[
        str | None, typer.Option("--name", help="With --to: the member's name.", metavar="MEMBER")
    ] = None,
    priority: Annotated[
        int, typer.Option(min=0, max=100, help="Highest priority of the member's tasks.")
    ] = 100,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, help="Maximum number of the member's runs and queued tasks on each worker."
        ),
    ] = None,
    team: Annotated[str, typer.Option(help="Team that the member belongs to.", metavar="TEAM")] = "",
    uses: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help=f"How many members may join with this ticket.  \\[default: {DEVICES} devices, or 1 submitter]",
            show_default=False,
        ),
    ] = None,
    valid_for: Annotated[
        str, typer.Option("--for", help="How long the ticket can be used.", metavar="24h")
    ] = "24h",
    ttl: Annotated[
        str,
        typer.Option(help="How long a membership lasts; members renew theirs automatically.", metavar="30d"),
    ] = DEFAULT_TTL,
    gate: Annotated[list[str] | None, GATE] = None,
) -> None:
    """Print a ticket to a pool.

    Devices use it with `sark-node join TICKET`, submitters with `sark-node pool join TICKET`. Only the ticket goes to standard output.
    """
    from swarm.pools.enrolment import invite as issue_ticket
    from swarm.pools.enrolment import invite_peer
    from swarm.pools.home_pool import named_pool
    from swarm.pools.owner import HOME_POOL, MemberTerms, check_name
    from swarm.pools.tickets import write_ticket
    from swarm.pools.tokens import check_team

    now = time.time()
    if name == HOME_POOL and not submit and to is None:
        raise SettingsError(
            f"pool {HOME_POOL} has a command of its own for devices", hint="invite one with: sark-node invite"
        )
    own = named_pool(ctx.obj, name, now)
    gates = given_gates(ctx, gate) or _gates_of(ctx, own)
    if not gates and to is None:
        raise ResourceError(
            "a ticket must name a gate, and none is known",
            hint=f"start one on this home: sark-node gate\nor name one: sark-node pool invite {_quoted(name)} --gate ADDRESS",
        )
    if member is not None:
        if to is None:
            raise SettingsError(
                "--name needs --to", hint="a submitter that joins with a ticket chooses its own name"
            )
        check_name(member)
    if uses is not None and to is not None:
        raise SettingsError("--uses cannot be used with --to", hint="that ticket is for one scheduler")
    role = Role.SUBMIT if submit or to is not None else Role.WORKER
    if role is Role.WORKER and (priority != 100 or slots is not None or team):
        raise SettingsError(
            "--priority, --slots and --team are for submitters, and this ticket is for a device",
            hint="add --submit, or leave them out",
        )
    uses = uses or (DEVICES if role is Role.WORKER else 1)
    for_s, ttl_s = duration("--for", valid_for), int(duration("--ttl", ttl))
    try:
        if team:
            check_team(team)
        terms = MemberTerms(role=role, ttl_s=ttl_s, priority=priority, slots=slots, team=team)
        if to is not None:
            ticket = invite_peer(own, gates, terms, to, now=now, name=member)
            whom, revocable = f"scheduler {to}", to
        else:
            ticket, record = issue_ticket(own, gates, terms, now=now, for_s=for_s, uses=uses)
            whom = count(uses, "device" if role is Role.WORKER else "submitter")
            revocable = record.id
    except ValueError as exc:
        raise SettingsError(str(exc), hint="see: sark-node pool invite --help") from None
    form = "%Y-%m-%d %H:%M" if ticket.until - now > 3600 else "%H:%M:%S"
    until = time.strftime(form, time.localtime(ticket.until))
    how = "pool join" if role is Role.SUBMIT else "join"
    lines = [
        f"Ticket to pool {own.name} for {whom}, valid until {until}.",
        f"  use: sark-node {how} TICKET",
        f"  revoke: sark-node pool revoke {_quoted(name)} {revocable}",
    ]
    if to is None:
        lines += [
            "  Anyone who has the ticket can join: send it privately. `TICKET` can also be a file that contains it,",
            "  or - for standard input, since other users of a machine can see its command lines.",
        ]
    print("\n".join(lines), file=sys.stderr)
    print(write_ticket(ticket))


@pool.command()
def members(ctx: typer.Context, name: Annotated[str, NAME], as_json: Annotated[bool, JSON] = False) -> None:
    """Show the members of a pool, and for a pool made on this home also its open tickets and revoked peers."""
    from protocol.messages.pool import read_manifest
    from swarm.pools.home_pool import named_pool
    from swarm.pools.membership import joined_pools, stored_manifest
    from swarm.pools.owner import HOME_POOL, own_pools

    home: Home = ctx.obj
    joined = [pool for role in (Role.WORKER, Role.SUBMIT) for pool in joined_pools(home, role)]
    elsewhere = next((pool for pool in joined if name in (pool.name, pool.pool)), None)
    lines: list[str] = []
    made_here = name == HOME_POOL or any(name in (own.name, own.id) for own in own_pools(home))
    if elsewhere is not None and not made_here:
        stored = stored_manifest(home, elsewhere.pool)
        listed = read_manifest(stored.body).members if stored is not None else ()
        title = f"pool {elsewhere.name}, made elsewhere: {elsewhere.pool}"
        document: dict[str, Any] = {"pool": elsewhere.pool, "name": elsewhere.name}
        none = "This home has not received its member list yet."
    else:
        own = named_pool(home, name, time.time())
        manifest, listed = own.manifest(), own.manifest().members
        title, none = f"pool {own.name}, manifest {manifest.number}: {own.id}", "no members yet"
        lines.append(key_line(own))
        tickets, revoked = own.open_tickets(time.time()), [each.peer for each in manifest.revoked]
        document = {"pool": own.id, "name": own.name, "number": manifest.number, "revoked": revoked}
        document["tickets"] = [
            {"id": ticket.id, **ticket.model_dump(mode="json", include={"role", "until", "uses", "used"})}
            for ticket in tickets
        ]
        for ticket in tickets:
            until = time.strftime("%Y-%m-%d %H:%M", time.localtime(ticket.until))
            used = f"used by {len(ticket.used)} of {ticket.uses}"
            lines.append(f"ticket {ticket.id}: {ticket.role}, until {until}, {used}")
        lines += [f"revoked: {peer}" for peer in revoked]
    if as_json:
        print_json({**document, "members": [member.model_dump(mode="json") for member in listed]})
        return
    console = new_console()
    print(title)
    console.print(members_table(listed, console.width) if listed else none)
    for line in lines:
        print(line)


@pool.command("list")
def list_(ctx: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """List the pools that this home made or joined."""
    from swarm.net.identity import load_or_create
    from swarm.pools.membership import joined_pools, membership_of
    from swarm.pools.owner import own_pools

    home: Home = ctx.obj
    rows = [(own.name, "made here", own.id) for own in own_pools(home)]
    rows += [
        (one.name, "this home's device works for it", one.pool) for one in joined_pools(home, Role.WORKER)
    ]
    for one in joined_pools(home, Role.SUBMIT):
        me = load_or_create(home.key("scheduler")).peer_id
        member = membership_of(home, one, me, time.time())
        until = f" until {_date(member.until)}" if member is not None and member.until is not None else ""
        rows.append((one.name, f"may submit to it{until}", one.pool))
    if as_json:
        pools = [{"name": name, "what": what, "pool": peer} for name, what, peer in rows]
        print_json({"count": len(pools), "pools": pools})
    elif not rows:
        print("This home has no pools. Create one: sark-node pool create NAME")
    else:
        console = new_console()
        console.print(pools_table(rows, console.width))


@pool.command()
def revoke(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    who: Annotated[str, typer.Argument(help="A member's name or peer id, or a ticket's id.", metavar="WHO")],
    with_members: Annotated[
        bool,
        typer.Option(
            "--with-members", help="When revoking a ticket: also revoke all members who joined with it."
        ),
    ] = False,
) -> None:
    """Revoke a member or a ticket.

    Revoking a member also revokes the ticket with which it joined; others who joined with that ticket stay.
    Workers that can be found learn of the revocation at once, all others within 90 seconds.
    """
    import trio

    from swarm.pools.enrolment import revoke as revoke_in
    from swarm.pools.home_pool import named_pool, owner_line
    from swarm.pools.owner import HOME_POOL

    own = named_pool(ctx.obj, name, time.time())
    keep = {owner_line(ctx.obj).peer} if own.name == HOME_POOL else ()
    for line in revoke_in(own, who, time.time(), with_members=with_members, keep=keep):
        print(line)
    try:
        result = trio.run(push_manifest, contacts_for_calls(ctx, _gates_of(ctx, own)), own)
    except* (NotPermitted, ResourceError, Unreachable) as group:
        print(f"could not reach the swarm now: {first_error(group)}", file=sys.stderr)
    else:
        if result.stored:
            nodes = count(result.called, "node")
            print(f"sent to {result.stored} of {nodes}; the others ask within 90 seconds")
        else:
            print(
                "no node could be reached now; this home's gate or scheduler sends it when it runs",
                file=sys.stderr,
            )


@pool.command("join")
def join(
    ctx: typer.Context,
    ticket: Annotated[
        str,
        typer.Argument(
            help="The ticket, which begins with sark1, a file that contains it, or - for standard input."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Your name in the pool.  \\[default: the host's name]")
    ] = None,
) -> None:
    """Join a pool as a submitter: this home's campaigns may then run on the pool's devices."""
    import trio

    from swarm.base.locks import lock_folder
    from swarm.net.identity import load_or_create
    from swarm.pools.membership import host_name, join_pool, leave_pool, membership_of, store_membership
    from swarm.pools.owner import check_name
    from swarm.pools.tickets import read_ticket, secret_text

    home: Home = ctx.obj
    if name is not None:
        check_name(name)
    content = read_ticket(secret_text(ticket, sys.stdin))
    me = load_or_create(home.key("scheduler")).peer_id
    joined = join_pool(home, content, Role.SUBMIT, me, now=time.time())
    if joined.gates and not recent_gates(home, ("scheduler",)):
        save_gates(home, joined.gates)  # so that submit needs no --gate
    if joined.unused:
        gates = tuple(dict.fromkeys((*joined.gates, *_settings(ctx).gates, *local_gates(home))))
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lock_folder(home.folder("scheduler")))
            except ResourceError:
                print("This home's scheduler is running: it uses the ticket.", file=sys.stderr)
            else:
                try:
                    trio.run(enrol_scheduler, home, joined, gates, name or host_name())
                except* NotPermitted:
                    if membership_of(home, joined, me, time.time()) is None:
                        leave_pool(home, joined.pool, Role.SUBMIT)
                    else:  # an earlier membership stays
                        store_membership(home, joined.model_copy(update={"spent": True}))
                    raise
                except* (ResourceError, Unreachable):
                    raise Unreachable(
                        f"no gate of pool {joined.name} answers now; the ticket is stored",
                        hint="run the same command later, or start this home's scheduler, which uses it too",
                    ) from None
    member = membership_of(home, joined, me, time.time())
    if member is None:
        return
    until = f" until {_date(member.until)}, and renews that automatically" if member.until is not None else ""
    print(f"This home may submit to pool {joined.name}{until}.")
    print(f'  to run a campaign on its devices only:  where: ["pools has {joined.name}"]')


# -- over the network ---------------------------------------------------------------------------------------------------------


async def push_manifest(gates: Sequence[str], pool: OwnPool) -> SpreadResult:
    """Send the pool's manifest to the gates, holders and workers that can be found. Finding none is no error."""
    import trio

    from swarm.join.ephemeral import open_ephemeral_node
    from swarm.pools.client import PoolClient, SpreadResult

    result = SpreadResult(0, 0)
    with contextlib.suppress(Unreachable):
        async with open_ephemeral_node(gates) as (network, index, nursery):
            client = PoolClient(network, nursery, index, random.Random())
            with trio.move_on_after(PUSH_S):
                result = await client.push(gates, pool, workers=True, now=time.time())
    return result


async def enrol_scheduler(home: Home, joined: Membership, gates: Sequence[str], name: str) -> Membership:
    """Show a ticket as this home's scheduler. No other process may use the scheduler's key now. Raises `Unreachable`, `NotPermitted`."""
    from protocol.messages.pool import read_manifest
    from swarm.join.ephemeral import open_ephemeral_node
    from swarm.net.identity import load_or_create
    from swarm.pools.client import PoolClient
    from swarm.pools.membership import store_manifest, store_membership, stored_manifest

    stored = stored_manifest(home, joined.pool)
    manifest = read_manifest(stored.body) if stored is not None else None
    async with open_ephemeral_node(gates, load_or_create(home.key("scheduler"))) as (network, index, nursery):
        client = PoolClient(network, nursery, index, random.Random())
        fresh, signed = await client.enrol(gates, joined, manifest, name, now=time.time())
    store_membership(home, fresh)
    store_manifest(home, signed)
    return fresh


# -- tables -------------------------------------------------------------------------------------------------------------------


def members_table(members: Iterable[PoolMember], width: int = 80) -> Table:
    """A table with a row for each member, and the whole peer id if it fits."""
    members = tuple(members)
    devices = any(one.device for one in members)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("member", "role", "team", "priority", "slots", *(["device"] if devices else []), "peer"):
        wraps = column in ("member", "team")
        justify: Any = "right" if column in ("priority", "slots") else "left"
        table.add_column(column, no_wrap=not wraps, overflow="fold", justify=justify)
    for one in members:
        table.add_row(
            Text(one.name),
            str(one.role),
            Text(one.team or "-"),
            str(one.priority),
            "any" if one.slots is None else str(one.slots),
            *([one.device or "-"] if devices else []),
            _peer(one.peer, width),
        )
    return table


def pools_table(rows: Sequence[tuple[str, str, str]], width: int = 80) -> Table:
    """A table of pools. `rows`: (name, this home's role in the pool, id)."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("pool", "this home", "id"):
        table.add_column(column, no_wrap=column != "this home", overflow="fold")
    for name, what, peer in rows:
        table.add_row(Text(name), Text(what), _peer(peer, width))
    return table


def _peer(peer: str, width: int) -> str:
    return peer if width >= ROOMY else f"…{peer[-TAIL:]}"


def _date(wall_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(wall_s))


# -- arguments ----------------------------------------------------------------------------------------------------------------


def _settings(ctx: typer.Context) -> RoleSettings:
    return GateSettings.load(ctx.obj.config_file, ctx.meta["environment"], {})


def _gates_of(ctx: typer.Context, own: OwnPool) -> tuple[str, ...]:
    """The pool's own gates, else this home's, else the configured ones. Loopback addresses only if there are no others."""
    return listed_gates(own.gates or local_gates(ctx.obj) or _settings(ctx).gates)


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name

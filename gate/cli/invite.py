"""`sark-node invite`: adds a device of one's own in one step. The device serves this home, and this home trusts the device."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gate.cli.arguments import duration, given_gates, listed_gates
from gate.settings import GateSettings
from protocol.errors import NotPermitted, ResourceError, SettingsError
from protocol.words import Role
from swarm.base.home import Home
from swarm.base.screen import print_json
from swarm.base.text import count
from swarm.join.known_gates import any_gate_answers, local_gates, recent_gates, save_gates

if TYPE_CHECKING:
    from swarm.pools.owner import OwnPool, TicketRecord
    from swarm.pools.tickets import Ticket

app = typer.Typer()

LOOK_S: Final = 0.5
"""Seconds between checks for new uses of the ticket."""
LINGER_S: Final = 1.0
"""Seconds that the last answer has to arrive."""
NOBODY: Final = "or invite one worker, which needs no admission: sark-node invite --to WORKER_ID   (sark-node info on it shows its id)"


@app.command(rich_help_panel="This device")
def invite(
    ctx: typer.Context,
    to: Annotated[
        str | None,
        typer.Option(
            help="Invite only this worker; `sark-node info` on the device shows its id. Nobody has to admit it.",
            metavar="WORKER_ID",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="With --to: the device's name in the pool.", metavar="DEVICE")
    ] = None,
    uses: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="How many devices may join with this ticket.  \\[default: 1]",
            show_default=False,
        ),
    ] = None,
    valid_for: Annotated[
        str, typer.Option("--for", help="How long the ticket can be used.", metavar="24h")
    ] = "24h",
    ttl: Annotated[
        str | None,
        typer.Option(
            help="How long the device stays in the pool.  \\[default: until you revoke it]",
            metavar="30d",
            show_default=False,
        ),
    ] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            help="Address of a gate that both machines use. Repeatable.  \\[default: the gates that this home uses]",
            metavar="ADDRESS",
        ),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            help="Listen only on this address while waiting, such as /ip4/192.0.2.7/tcp/4103. Repeatable.",
            metavar="ADDRESS",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Invite a device of yours: print the command to run on it.

    The device then serves this home, and this home trusts the device: it is in the pool `home`, which every home has. If no gate of
    this home runs, the command waits and admits the device itself, until the ticket is used up or Ctrl-C. Only the command goes to
    standard output.
    """
    import trio

    from swarm.pools.enrolment import invite as issue_ticket
    from swarm.pools.enrolment import invite_peer
    from swarm.pools.home_pool import home_pool
    from swarm.pools.owner import MemberTerms, check_name

    home: Home = ctx.obj
    for_s = duration("--for", valid_for)
    terms = MemberTerms(role=Role.WORKER, ttl_s=None if ttl is None else int(duration("--ttl", ttl)))
    if to is None and name is not None:
        raise SettingsError(
            "--name needs --to", hint="a device that joins with a ticket chooses its own name"
        )
    if to is not None and uses is not None:
        raise SettingsError("--uses cannot be used with --to", hint="that ticket is for one device")
    if name is not None:
        check_name(name)
    now = time.time()
    own = home_pool(home, now)
    settings = GateSettings.load(home.config_file, ctx.meta["environment"], {})
    here = local_gates(home)
    ways = given_gates(ctx, gate) or listed_gates(here or settings.gates or recent_gates(home))
    if gate and any_gate_answers(ways):
        save_gates(home, ways)  # so that later commands use the same gates
    if to is not None:
        try:
            ticket = invite_peer(own, ways, terms, to, now=now, name=name, for_s=for_s)
        except ValueError as exc:
            raise SettingsError(str(exc), hint="see: sark-node invite --help") from None
        show(ticket, None, as_json, (f"revoke: sark-node pool revoke home {to}",))
        return
    issue = partial(issue_ticket, own, ways, terms, now=now, for_s=for_s, uses=uses or 1)
    if here and not gate and any_gate_answers(here):
        ticket, record = issue()
        devices = "device" if record.uses == 1 else "devices"
        admits = f"the gate of this home admits the {devices}; keep the gate running until then"
        show(ticket, record, as_json, (*_reach_note(ways), *_terms(record), admits))
        return
    raise typer.Exit(trio.run(_admit, home, own, ways, tuple(listen or ()), issue, as_json))


def show(ticket: Ticket, record: TicketRecord | None, as_json: bool, lines: Sequence[str]) -> None:
    """Print the command for the other device to standard output, the rest to standard error."""
    from swarm.pools.tickets import write_ticket

    text = write_ticket(ticket)
    if as_json:
        print_json(
            {
                "command": f"sark-node join {text}",
                "ticket": text,
                "id": record.id if record is not None else None,
                "to": ticket.to,
                "pool": ticket.pool,
                "uses": record.uses if record is not None else 1,
                "until": ticket.until,
                "gates": list(ticket.gates),
                "admits": list(ticket.admits),
            }
        )
        sys.stdout.flush()
        return
    form = "%Y-%m-%d %H:%M" if ticket.until - time.time() > 3600 else "%H:%M:%S"
    until = time.strftime(form, time.localtime(ticket.until))
    whom = f"worker {ticket.to}" if record is None else count(record.uses, "device")
    print(f"Run this on the other device by {until} (for {whom}):", file=sys.stderr, flush=True)
    print(f"sark-node join {text}", flush=True)
    for line in lines:
        print(f"  {line}", file=sys.stderr, flush=True)


def _terms(record: TicketRecord) -> tuple[str, ...]:
    return (
        "anyone who has the ticket can join: send it privately",
        f"revoke: sark-node pool revoke home {record.id}",
    )


def _reach_note(addresses: Sequence[str], why: str = "") -> tuple[str, ...]:
    """Notes on where a ticket with these `addresses` of the admitting node works. `why`: why an expected circuit may be missing."""
    if all(address.startswith(("/ip4/127.", "/ip6/::1/")) for address in addresses):
        return ("this ticket works only on this machine: its address is a loopback address",)
    if not why or any("/p2p-circuit" in address for address in addresses):
        return ()
    return (f"{why}: the device must be on a network from which it can reach this machine",)


def some_address(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """The addresses. Raises `ResourceError` if there is none to put into a ticket."""
    if addresses:
        return addresses
    raise ResourceError(
        "a ticket needs an address of this home, and this machine has none",
        hint=f"connect this machine to a network\nor name a gate that both machines use: sark-node invite --gate ADDRESS\n{NOBODY}",
    )


async def _admit(
    home: Home,
    own: OwnPool,
    gates: tuple[str, ...],
    listen: tuple[str, ...],
    issue: Callable[..., tuple[Ticket, TicketRecord]],
    as_json: bool,
) -> int:
    """Admit newcomers until the ticket is used up or has ended, or a signal arrives. Returns the exit code.

    Raises `ResourceError` if this machine has no address to put into the ticket.
    """
    import trio

    from swarm.join.admission import open_admission
    from swarm.join.node import watch_stop_requests

    async with open_admission(home, gates, listen) as node, trio.open_nursery() as nursery:
        addresses = some_address(node.addresses)
        code = 130

        async def watch() -> None:
            nonlocal code
            code = await _watch(own, record)
            nursery.cancel_scope.cancel()

        await nursery.start(watch_stop_requests, lambda name: nursery.cancel_scope.cancel())
        ticket, record = issue(admits=addresses)
        devices = "device" if record.uses == 1 else f"{record.uses} devices"
        waits = f"waiting for the {devices}; Ctrl-C withdraws the ticket"
        note = _reach_note(addresses, "no gate answers" if gates else "no gate is known")
        show(ticket, record, as_json, (*note, *_terms(record), waits))
        nursery.start_soon(watch)
    if code == 130:
        closed = own.close_ticket(record.id, time.time())
        joined = len(closed.used) if closed is not None else 0
        own.revoke_tickets(frozenset({record.id}) if not joined else frozenset(), time.time())
        print(f"The ticket is withdrawn; {joined} of {record.uses} joined.", file=sys.stderr)
    return code


async def _watch(own: OwnPool, record: TicketRecord) -> int:
    """Report each device that joins. Returns 0 once the ticket is used up. Raises `NotPermitted` (5) if it has expired or was revoked."""
    import trio

    seen: set[str] = set()
    while True:
        now = time.time()
        current = next((each for each in own.tickets() if each.id == record.id), None)
        for peer in current.used if current is not None else ():
            line = next((m for m in own.manifest().members if m.peer == peer and m.role is Role.WORKER), None)
            if peer in seen or line is None:
                continue
            seen.add(peer)
            print(f"{line.name} joined: {peer}", file=sys.stderr, flush=True)
            print("  it serves this home, and this home trusts it; to revoke that:", file=sys.stderr)
            print(f"  sark-node pool revoke home {peer}", file=sys.stderr, flush=True)
        if len(seen) >= record.uses:
            await trio.sleep(LINGER_S)
            return 0
        if current is None or not current.is_open(now):
            what = "was revoked" if now <= record.until else "has expired"
            raise NotPermitted(
                f"the ticket {what}; {len(seen)} of {record.uses} joined",
                hint="make a new one: sark-node invite",
            )
        await trio.sleep(LOOK_S)

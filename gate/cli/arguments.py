"""Arguments shared by the commands for pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import typer

from gate.settings import GateSettings
from protocol.errors import SettingsError
from swarm.base.units import DAY_S, DurationError, parse_duration
from swarm.join.known_gates import any_gate_answers, recent_gates, worker_addresses

MAX_VALIDITY_S: Final = 3_650 * DAY_S


def duration(flag: str, text: str) -> float:
    """Seconds in `90s`, `24h`, `30d`. Raises `SettingsError`."""
    try:
        return parse_duration(text, max_s=MAX_VALIDITY_S)
    except DurationError as exc:
        raise SettingsError(f"{flag}: {exc.what}", hint=exc.hint) from None


def given_gates(ctx: typer.Context, gates: Sequence[str] | None) -> tuple[str, ...]:
    """The gates of the command line, validated."""
    from swarm.pools.tickets import MAX_GATES

    if gates and len(gates) > MAX_GATES:
        raise SettingsError(f"{len(gates)} gates", hint=f"name at most {MAX_GATES}")
    if not gates:
        return ()
    return GateSettings.load(ctx.obj.config_file, ctx.meta["environment"], {"gates": tuple(gates)}).gates


def contacts_for_calls(ctx: typer.Context, gates: Sequence[str]) -> tuple[str, ...]:
    """Contacts through which to call other nodes: these gates, else those used last, and this home's worker. If none of them answers, also
    nodes on the LAN.
    """
    known = (*(gates or recent_gates(ctx.obj)), *worker_addresses(ctx.obj))
    if any_gate_answers(known) or not GateSettings.load(ctx.obj.config_file, ctx.meta["environment"], {}).lan:
        return known
    from swarm.reach.mdns import find_lan_contacts

    return (*known, *find_lan_contacts())


def listed_gates(gates: Sequence[str]) -> tuple[str, ...]:
    """The gates that a ticket names: loopback addresses only if there are no others."""
    from swarm.pools.tickets import MAX_GATES

    public = [gate for gate in gates if not gate.startswith(("/ip4/127.", "/ip6/::1/"))]
    return tuple(public or gates)[:MAX_GATES]

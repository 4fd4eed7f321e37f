"""The names of a home's peers: from its pools' manifests, and `you` for the home itself. Other peers are shown by the end of their id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from protocol.messages.pool import PoolMember, read_manifest
from protocol.words import Role
from swarm.base.home import Home
from swarm.base.names import disambiguate_names
from swarm.pools.home_pool import OWNER
from swarm.pools.membership import signed_manifests
from swarm.pools.owner import HOME_POOL
from swarm.pools.trusted import peer_of

YOU: Final = "you"


def names_of(pools: Iterable[tuple[str, Iterable[PoolMember]]], you: Iterable[str]) -> dict[str, str]:
    """Peer id → name, for the members of each pool (given with its name) and for `you`. Members choose their names, so names that look
    alike, or like `you`, get the end of the id. Pure."""
    names: dict[str, str] = {}
    for pool, members in pools:
        for member in members:
            of_pool = "owner" if pool == HOME_POOL else f"owner of {pool}"
            names.setdefault(member.peer, of_pool if member.name == OWNER else member.name)
    mine = dict.fromkeys(you, YOU)
    others = {peer: name for peer, name in names.items() if peer not in mine}
    labels = disambiguate_names({**others, "": YOU})
    return {**{peer: labels[peer] for peer in others}, **mine}


def known_names(home: Home) -> dict[str, str]:
    """The names of peers in this home's pools, joined or made here; the home's scheduler is `you`."""
    manifests = {
        (name, signed.body)
        for role in (Role.WORKER, Role.SUBMIT)
        for name, signed in signed_manifests(home, role)
        if signed is not None
    }
    me = peer_of(home, "scheduler")
    return names_of(
        ((name, read_manifest(body).members) for name, body in sorted(manifests)), () if me is None else (me,)
    )


def shown(peer: str, names: Mapping[str, str]) -> str:
    """A peer's name, else the end of its id."""
    return names.get(peer) or f"…{peer[-8:]}"

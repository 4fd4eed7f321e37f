"""The home pool: its devices serve this home's scheduler, and this home trusts them.

It is created when first needed, under the reserved name `home`. Its memberships do not end by themselves, so no gate has to run to renew
them.
"""

from __future__ import annotations

from typing import Final

from protocol.messages.pool import PoolMember
from protocol.words import Role
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.net.identity import load_or_create
from swarm.pools.manifests import find_member, with_member
from swarm.pools.owner import HOME_POOL, LOCK_WAIT_S, OwnPool, own_pool, pools_folder, write_pool

OWNER: Final = "owner"
"""The name of the home's scheduler in pools made here."""


def home_pool(home: Home, now: float) -> OwnPool:
    """The home pool, in which the home's scheduler is a submitter; made if there is none. `now`: wall seconds. Raises `ResourceError`."""
    owner = owner_line(home)
    folder = pools_folder(home) / HOME_POOL
    if not (folder / "manifest").is_file():
        with lock_folder(folder, wait_s=LOCK_WAIT_S):
            if not (folder / "manifest").is_file():
                write_pool(folder, HOME_POOL, members=(owner,))
    pool = OwnPool(folder)
    if find_member(pool.manifest(), owner.peer, Role.SUBMIT, now) is None:  # the scheduler has a new key
        pool.change(lambda manifest: with_member(manifest, owner, now, pardon=True))
    return pool


def owner_line(home: Home) -> PoolMember:
    """The home's scheduler, as pools made here list it."""
    return PoolMember(peer=load_or_create(home.key("scheduler")).peer_id, role=Role.SUBMIT, name=OWNER)


def named_pool(home: Home, name: str, now: float) -> OwnPool:
    """The pool of that name made here; the home pool always exists. Raises `SettingsError` if this home has none of that name."""
    return home_pool(home, now) if name == HOME_POOL else own_pool(home, name)

"""Opening a home's store, in its file or where its settings say, and deleting old campaigns from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio

from protocol.errors import ResourceError
from scheduler.store.backend import Location, ServerLocation, server_url
from scheduler.store.settings import SchedulerSettings, StoreSettings
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.base.settings import load_settings
from swarm.base.units import parse_age
from swarm.net.identity import load_or_create

DAY_S: Final = 86_400.0

log = structlog.get_logger("sark.scheduler")


def store_settings(home: Home, environment: Mapping[str, str] = os.environ) -> StoreSettings:
    """The store's settings alone, for commands that need no network. Raises `SettingsError`, `ResourceError`."""
    section, others = SchedulerSettings.section, SchedulerSettings.model_fields
    return load_settings(StoreSettings, home.config_file, environment, {}, section=section, known=others)


def store_location(home: Home, environment: Mapping[str, str] = os.environ) -> Location:
    """Where this home's store is: a file, or a server's schema named after its scheduler. Raises as `store_settings`."""
    url = store_settings(home, environment).store
    if url is None:
        return home.store
    return ServerLocation(server_url(url), f"sark_{load_or_create(home.key('scheduler')).peer_id}")


def open_store(home: Home) -> Store:
    """This home's store, created if it does not exist. Raises `ResourceError`, `SettingsError`."""
    return Store(store_location(home))


def has_store(home: Home) -> bool:
    """Whether the store may exist; a server is not asked."""
    location = store_location(home)
    return isinstance(location, ServerLocation) or location.exists()


def delete_old(store: Store, older_s: float, *, keep: int = 0) -> tuple[str, ...]:
    """Delete campaigns that ended more than `older_s` ago, but not the `keep` that ended last; gives their ids. Blocking."""
    old = store.campaigns.old(older_s, keep=keep)
    return tuple(campaign.id for campaign in old if store.campaigns.delete(campaign.id))


async def delete_old_daily(open_store: Callable[[], Store], keep: str) -> None:
    """Delete campaigns older than `keep`, now and once a day, in a thread, for ever."""

    def work() -> int:
        with open_store() as store:
            return len(delete_old(store, parse_age(keep)))

    while True:
        try:
            if deleted := await trio.to_thread.run_sync(work):
                log.info("campaigns.deleted", campaigns=deleted, older_than=keep)
        except ResourceError as exc:
            log.warning("campaigns.not-deleted", why=exc.what)
        await trio.sleep(DAY_S)

"""Opening a home's store: in a file, or where its settings say."""

from __future__ import annotations

import os
from collections.abc import Mapping

from scheduler.store.backend import Place, ServerPlace, server_url
from scheduler.store.settings import SchedulerSettings, StoreSettings
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.base.settings import load_settings
from swarm.net.identity import load_or_create


def store_settings(home: Home, environment: Mapping[str, str] = os.environ) -> StoreSettings:
    """Those alone: for commands that need no network. Raises `SettingsError`, `ResourceError`."""
    section, others = SchedulerSettings.section, SchedulerSettings.model_fields
    return load_settings(StoreSettings, home.config_file, environment, {}, section=section, known=others)


def store_place(home: Home, environment: Mapping[str, str] = os.environ) -> Place:
    """Where this home's store is: a file, or on a server in a schema named for this home's scheduler. Raises as `store_settings`."""
    url = store_settings(home, environment).store
    if url is None:
        return home.store
    return ServerPlace(server_url(url), f"sark_{load_or_create(home.key('scheduler')).peer_id}")


def open_store(home: Home) -> Store:
    """This home's store, made if it is not there yet. Raises `ResourceError`, `SettingsError`."""
    return Store(store_place(home))


def has_store(home: Home) -> bool:
    """Whether there may be something in it: a file that is not there holds nothing."""
    place = store_place(home)
    return isinstance(place, ServerPlace) or place.exists()

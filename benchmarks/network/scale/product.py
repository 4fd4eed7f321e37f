"""The product's index, imported a second time with `heap` in place of trio, without signatures and with caches for a million peers.

All its decisions, messages and answers come from the product's code, unchanged. Only pure computations that would take nearly all the time
are replaced: every signature verifies, an advert's bytes are parsed once in the whole run, and the parsed forms of ids and addresses are
cached for all peers.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from benchmarks.network.scale import heap


@contextmanager
def _in_place_of_trio() -> Iterator[None]:
    """Within the block, modules of `swarm` are imported anew, with `heap` as their trio."""
    own = {name: module for name, module in sys.modules.items() if _private(name)}
    for name in own:
        del sys.modules[name]
    sys.modules["trio"] = heap
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _private(name)]:
            del sys.modules[name]
        sys.modules.update(own)


def _private(name: str) -> bool:
    return name == "trio" or name == "swarm" or name.startswith(("swarm.", "trio."))


def _cached(module: ModuleType, name: str) -> None:
    """Give one of the module's functions an unlimited cache."""
    before: Any = getattr(module, name)
    setattr(module, name, functools.cache(getattr(before, "__wrapped__", before)))


def _load() -> SimpleNamespace:
    with _in_place_of_trio():
        identity = importlib.import_module("swarm.net.identity")
        _cached(identity, "routing_key")
        position = functools.cache(lambda peer: int.from_bytes(identity.routing_key(peer), "big"))
        identity.distance = lambda peer, key: position(peer) ^ int.from_bytes(key, "big")
        addresses = importlib.import_module("swarm.net.addresses")
        _cached(addresses, "parse_tcp")
        _cached(addresses, "network_of")
        table = importlib.import_module("swarm.net.routing_table")
        table._position = position
        store = importlib.import_module("swarm.index.shard_store")
        store.verify = lambda peer, body, signature: True
        _cached(store, "_read")
        index = importlib.import_module("swarm.index.index")
        return SimpleNamespace(index=index, identity=identity, addresses=addresses, table=table, store=store)


product = _load()

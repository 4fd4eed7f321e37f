"""Imports libp2p and structlog without the parts that a node never uses, which take most of its start and half of its memory.

Any import from libp2p imports everything that it offers: QUIC, WebSocket, RSA, certificates by ACME, DNS over HTTPS, Prometheus, three more
ways of discovery. A Sark node uses TCP, Noise with Ed25519, yamux and circuits, so

* a package in `BARE` does not run its `__init__`, which imports the rest of the package, until a name from there is used;
* a module in `EXCLUDED_MODULES`, with everything below it, is not imported at all. Its importers get a stand-in for each name in it: a
  class whose objects do nothing and whose own functions raise `BaseLibp2pError`.

structlog imports rich wherever rich is installed, to draw tracebacks: a tenth of the computing time of a worker's start. Here structlog
does not see it (`WITHOUT`); code that draws with rich imports it.

Modules imported before `install` stay as they are.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

BARE: Final = frozenset(
    {
        "libp2p",
        "libp2p.discovery",
        "libp2p.host",
        "libp2p.identity.identify",
        "libp2p.identity.identify_push",
        "libp2p.peer",
        "libp2p.pubsub",
        "libp2p.relay",
        "libp2p.relay.circuit_v2",
        "libp2p.security.tls",
        "libp2p.tools",
        "libp2p.transport",
    }
)
EXCLUDED_MODULES: Final = (
    "libp2p.crypto.rsa",  # `hardening.KnownKeys` only accepts Ed25519
    "libp2p.crypto.secp256k1",
    "libp2p.discovery.bootstrap",  # `swarm.join.bootstrap`
    "libp2p.discovery.mdns",  # `swarm.reach.mdns`
    "libp2p.discovery.upnp",  # `swarm.reach.upnp`
    "libp2p.metrics",
    "libp2p.rcmgr.prometheus_exporter",
    "libp2p.security.pnet",
    "libp2p.security.tls.autotls",
    "libp2p.transport.quic",
    "multiaddr.resolvers",  # `swarm.p2p.dialler` looks names up
)


WITHOUT: Final = {"structlog": "rich"}
"""Package → an optional package that is hidden from it."""


def install() -> None:
    """Import both packages this way from now on. Safe to call again."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(("libp2p", "multiaddr.", "structlog")):
            return None
        if any(name == one or name.startswith(f"{one}.") for one in EXCLUDED_MODULES):
            return ModuleSpec(name, cast("Loader", _StandIns()), is_package=True)
        if name not in BARE and name not in WITHOUT:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            lean = _BareLoader(spec.loader) if name in BARE else _BlindLoader(spec.loader, WITHOUT[name])
            spec.loader = cast("Loader", lean)
        return spec


class _BareLoader:
    """Leaves a package in its state before `__init__`."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._real

        def wanted(attribute: str) -> Any:
            """Called for a missing attribute: a submodule is imported by its importer; any other name makes `__init__` run."""
            if attribute.startswith("__") or importlib.util.find_spec(f"{module.__name__}.{attribute}"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}")
            del module.__getattr__
            self._real.exec_module(module)
            return getattr(module, attribute)

        module.__getattr__ = wanted  # type: ignore[method-assign]


class _BlindLoader:
    """Imports a package while another package cannot be imported, by any thread. If that other one is loaded already, it stays visible."""

    def __init__(self, real: Loader, unseen: str) -> None:
        self._real, self._unseen = real, unseen

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._real
        if self._unseen in sys.modules:
            self._real.exec_module(module)
            return
        sys.modules[self._unseen] = None  # type: ignore[assignment]
        try:
            self._real.exec_module(module)
        finally:
            del sys.modules[self._unseen]


class _StandIns:
    """A module that has every name requested of it."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create the module."""

    def exec_module(self, module: ModuleType) -> None:
        def stand_in(attribute: str) -> _StandIn:
            if attribute.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}")
            return _StandIn(attribute, (Exception,), {"__module__": module.__name__})

        module.__getattr__ = stand_in  # type: ignore[method-assign]


class _StandIn(type):
    """A class that can be named, instantiated, and used in an `except`; its functions raise an error that says it is left out."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> NoReturn:
            from libp2p.exceptions import BaseLibp2pError

            raise BaseLibp2pError(f"{cls.__module__}.{cls.__name__} is left out of this node")

        return refuse

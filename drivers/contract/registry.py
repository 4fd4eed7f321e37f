"""The installed drivers: entry points of the group `sark.drivers`, including our own.

The node reads only their names. A driver's code is loaded in child processes (`drivers.launch.launch`), so that a broken driver costs only
a line in the log.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from drivers.contract.base import Driver, Unfit

GROUP: Final = "sark.drivers"
SIMULATED: Final = frozenset({"fake"})
"""Drivers that invent their figures: offered only if simulation is on."""
SANDBOX_PROBE: Final = "sandbox-probe"
"""Never installed: see `drivers.launch.probe_tier`."""
NO_DRIVER: Final = ""
"""Driver name of a process that forks children for several drivers."""
OWNED: Final = frozenset({"api"})
"""Drivers that need a setting by the device's owner, such as a server's URL."""

BROKEN_DRIVER_ERRORS: Final = (
    *(ImportError, AttributeError, NameError, SyntaxError),
    *(TypeError, ValueError, LookupError, OSError, RuntimeError),
)
"""Errors that a broken driver, or its runtime, may raise."""


def installed() -> tuple[EntryPoint, ...]:
    """Entry points of all installed drivers, sorted by name; if two have the same name, the first."""
    by_name: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        by_name.setdefault(point.name, point)
    return tuple(by_name[name] for name in sorted(by_name))


def names(simulate: bool = False) -> tuple[str, ...]:
    """Names of the installed drivers; includes those that invent figures only if `simulate`."""
    return tuple(point.name for point in installed() if simulate or point.name not in SIMULATED)


def all_ours() -> bool:
    """Whether all installed drivers are part of this program; drivers of other packages may read any file format."""
    return all(point.value.startswith("drivers.") for point in installed())


def load(name: str, simulate: bool = False) -> Driver:
    """Import and instantiate one driver. Raises `Unfit` if it is missing, broken, or hidden."""
    if name in SIMULATED and not simulate:
        raise Unfit(f"driver {name!r} invents its figures: it runs only where simulation is enabled")
    point = next((point for point in installed() if point.name == name), None)
    if point is None:
        raise Unfit(f"no driver {name!r} is installed (there are: {', '.join(names(simulate)) or 'none'})")
    return make(point)


def make(point: EntryPoint) -> Driver:
    """Import and instantiate the driver of an entry point. Raises `Unfit` if it is broken."""
    try:
        driver = point.load()()
    except BROKEN_DRIVER_ERRORS as why:
        raise Unfit(
            f"driver {point.name!r} ({point.value}) does not load: {type(why).__name__}: {why}"
        ) from why
    if not isinstance(driver, Driver):
        raise Unfit(
            f"driver {point.name!r} ({point.value}) is not a driver: it lacks a name or one of the four methods"
        )
    return driver

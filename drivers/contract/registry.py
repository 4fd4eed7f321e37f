"""Which drivers are installed. Ours come through the same door as anybody's: the entry point group `sark.drivers`.

The node asks only for names; a driver's code is loaded in child processes (`drivers.launch.launch`), so that a broken one costs a
line in the log and nothing else.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from drivers.contract.base import Driver, Unfit

GROUP: Final = "sark.drivers"
SIMULATED: Final = frozenset({"fake"})
"""Drivers that invent their figures: never offered unless simulation was asked for in so many words."""
SANDBOX_PROBE: Final = "sandbox-probe"
"""Never installed: see `drivers.launch.tier`."""
OWNED: Final = frozenset({"api"})
"""Drivers that need something of the device's owner, such as a server's URL."""

BREAKAGE: Final = (
    ImportError,
    AttributeError,
    NameError,
    SyntaxError,
    TypeError,
    ValueError,
    LookupError,
    OSError,
    RuntimeError,
)
"""What importing or making a driver that does not fit this installation fails with."""


def installed() -> tuple[EntryPoint, ...]:
    """Every driver that some installed distribution offers, by name; the first of two with one name."""
    by_name: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        by_name.setdefault(point.name, point)
    return tuple(by_name[name] for name in sorted(by_name))


def names(simulate: bool = False) -> tuple[str, ...]:
    """Names of the installed drivers, those that invent figures only when `simulate`."""
    return tuple(point.name for point in installed() if simulate or point.name not in SIMULATED)


def all_ours() -> bool:
    """Whether every driver here came with this program: of others nobody knows which files they read."""
    return all(point.value.startswith("drivers.") for point in installed())


def load(name: str, simulate: bool = False) -> Driver:
    """Import and make one driver. Raises `Unfit` with one line when it is not here, broken, or hidden."""
    if name in SIMULATED and not simulate:
        raise Unfit(f"driver {name!r} invents its figures: it runs only where simulation is switched on")
    point = next((point for point in installed() if point.name == name), None)
    if point is None:
        raise Unfit(
            f"no driver {name!r} is installed here (there are: {', '.join(names(simulate)) or 'none'})"
        )
    return make(point)


def make(point: EntryPoint) -> Driver:
    """Import and make the driver behind an entry point. Raises `Unfit` with one line when it is broken."""
    try:
        driver = point.load()()
    except BREAKAGE as why:
        raise Unfit(
            f"driver {point.name!r} ({point.value}) does not load: {type(why).__name__}: {why}"
        ) from why
    if not isinstance(driver, Driver):
        raise Unfit(
            f"driver {point.name!r} ({point.value}) is not a driver: it lacks a name or one of the four methods"
        )
    return driver

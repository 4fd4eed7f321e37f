"""Sites for the tests here, where this machine can have some; where it cannot, they say what is missing and do not run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nat.topology import Sites, missing, sites


@pytest.fixture(scope="session")
def world() -> Iterator[Sites]:
    """Two gates in the open that hear nothing of each other; homes, one with a router that keeps no ports; a LAN."""
    if lacks := missing():
        pytest.skip(f"no sites behind NATs: {lacks}")
    behind = {"a": ("anna",), "b": ("ben",), "r": ("rita",), "lan": ("lena", "leo")}
    with sites(("gate-1", "gate-2"), behind, restless=("r",)) as made:
        yield made

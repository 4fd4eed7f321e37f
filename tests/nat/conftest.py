"""Sites for the tests here. Where this machine cannot have them, the tests say what is missing and are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nat.topology import Sites, missing, sites


@pytest.fixture(scope="session")
def world() -> Iterator[Sites]:
    """Two gates in the open that hear nothing of each other; homes, one of them behind a router that keeps no ports; a LAN."""
    if lacks := missing():
        pytest.skip(f"no sites behind NATs: {lacks}")
    behind = {"a": ("anna",), "b": ("ben",), "r": ("rita",), "lan": ("lena", "leo")}
    with sites(("gate-1", "gate-2"), behind, restless=("r",)) as made:
        yield made

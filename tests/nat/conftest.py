"""Sites for the tests here, where this machine can have some; where it cannot, they say what is missing and do not run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nat.topology import Sites, missing, sites


@pytest.fixture(scope="session")
def world() -> Iterator[Sites]:
    """Two gates in the open, two sites with a host each, one with two."""
    if lacks := missing():
        pytest.skip(f"no sites behind NATs: {lacks}")
    with sites(("gate-1", "gate-2"), {"a": ("anna",), "b": ("ben",), "c": ("one", "two")}) as made:
        yield made

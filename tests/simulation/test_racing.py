"""Many schedulers compete for few slots."""

from __future__ import annotations

import pytest

from benchmarks.scheduling.racing import race


@pytest.mark.parametrize("seed", [1, 2])
def test_no_place_is_given_twice_however_many_race_for_it(seed: int) -> None:
    counts = race(10_000, seed)
    assert counts["conflicts"] > 1_000
    assert counts["granted"] + counts["queued"] > 1_000
    assert counts["runs"] > 500

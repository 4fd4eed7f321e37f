"""The real services over the in-memory network, while workers and the scheduler are killed, links are cut and tasks are cancelled."""

from __future__ import annotations

import pytest

from tests.simulation.swarm_run import run_swarm


@pytest.mark.parametrize("seed", [1, 2])
def test_the_real_services_keep_every_invariant(seed: int) -> None:
    outcome = run_swarm(seed)
    assert not outcome.breaches, [str(breach) for breach in outcome.breaches]
    assert outcome.began
    assert outcome.faults

"""The model at work: runs with faults keep every invariant, a seed determines its run, and known mistakes are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import some
from tests.simulation.model import Mutant, run
from tests.simulation.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
SEEDS = 120
SEARCH = 200
"""Number of runs within which a mistake has to show."""


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_whatever_goes_wrong_every_invariant_holds(first: int) -> None:
    figures = some(first, 40)
    assert not figures.failed, "\n".join(
        f"python -m tests.simulation --seed {seed} --trace    # {what}" for seed, what in figures.failed
    )
    assert figures.faults.total() > 100, "the runs are not fair weather"


def test_a_sitting_that_was_found_under_way_is_not_hedged_before_its_time() -> None:
    """Its campaign was adopted, and the result of the previous sitting arrived after that."""
    assert not run(26910).breaches


def test_the_store_and_its_double_answer_and_hold_the_same() -> None:
    figures = some(200, 4, "real-store")
    assert not figures.failed, figures.failed


def test_the_same_seed_is_the_same_history_in_every_process() -> None:
    code = "from tests.simulation.model import run; print(*(run(seed).history.digest() for seed in (1, 2, 227, 317)))"
    values = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": salt},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert values == {" ".join(run(seed).history.digest() for seed in (1, 2, 227, 317)) + "\n"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_known_mistake_is_found(mutant: Mutant) -> None:
    assert any(run(seed, mutant).breaches for seed in (mutant.shows, *range(SEARCH))), (
        f"nobody noticed: {mutant.name}"
    )

"""Each bug of `make mutants` still fits the source: whoever changes what it replaces writes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS, SourceMutant, changed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_fits_the_source(mutant: SourceMutant) -> None:
    compile(changed((ROOT / mutant.path).read_text("utf-8"), mutant), mutant.path, "exec")
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)


def test_there_are_enough_of_them_and_no_two_alike() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 40

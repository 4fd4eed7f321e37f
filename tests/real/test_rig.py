"""The short form of the attack rig: see `tests/rig`. `make rig` runs all of it, and also checks time limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig.attack import Attack
from tests.rig.catalogue import ATTACKS
from tests.rig.rig import Rig

SHORT = [attack for attack in ATTACKS.values() if attack.short]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig(brief=True, tries=1) as one:
        yield one


@pytest.mark.smoke
@pytest.mark.parametrize("attack", SHORT, ids=[attack.name for attack in SHORT])
def test_an_attack_changes_nothing_for_an_honest_campaign_beside_it(rig: Rig, attack: Attack) -> None:
    result = rig.run(attack)
    assert [failure for failure in result.failures if failure not in result.slow] == []

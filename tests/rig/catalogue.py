"""All attacks, in the order in which they run."""

from __future__ import annotations

from typing import Final

from tests.rig.attack import Attack, nothing
from tests.rig.attacks import connections, frames, hosts, index, sandbox, workers

QUIET: Final = Attack("quiet", "–", "no attack: what the rig says of a swarm that is left alone", nothing)
ATTACKS: Final[dict[str, Attack]] = {
    attack.name: attack
    for attack in (
        QUIET,
        *workers.ATTACKS,
        *index.ATTACKS,
        *frames.ATTACKS,
        *connections.ATTACKS,
        *sandbox.ATTACKS,
        *hosts.ATTACKS,
    )
}

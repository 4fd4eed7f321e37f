"""Runs attacks, one after the other."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.rig.attack import OWN_DEVICE, Attack
from tests.rig.swarm import Swarm, a_swarm
from tests.rig.verdict import MIB, Result, Window, honest_rows

TRIES: Final = 3
"""A limit of time that was passed may be a busy machine's fault: the attack is tried again, and fails if none of its tries holds."""
LITTLE: Final = 16 * MIB
"""Memory that an attack may leave behind for the next one to run on the same swarm."""


class Rig:
    """Keeps a swarm for the next attack as long as nothing of the last one is left in it."""

    def __init__(self, say: Callable[[str], object] = lambda line: None, tries: int = TRIES) -> None:
        self._say = say
        self._tries = tries
        self._stack = ExitStack()
        self._swarm: Swarm | None = None
        self._of: tuple[str, ...] = ()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *exc: object) -> None:
        self._renew()

    def run(self, attack: Attack) -> Result:
        """Its verdict; tried again, on another swarm, while only limits of time were passed."""
        for number in range(1, self._tries + 1):
            try:
                result = replace(attempt(attack, self._swarm_for(attack)), tries=number)
            except (AssertionError, OSError, subprocess.SubprocessError) as exc:  # the other attacks go on
                self._renew()
                nothing = Window((0.0,), campaign_s=0.0)
                return Result(attack.name, attack.shows, nothing, nothing, {}, (f"the rig: {exc}",))
            if attack.leaves or not result.held or max(result.growth.values(), default=0) > LITTLE:
                self._renew()
            if result.held or result.failures != result.slow or number == self._tries:
                return result
            self._say(f"{attack.name}: {'; '.join(result.failures)}; once more")
        raise AssertionError(self._tries)

    def _swarm_for(self, attack: Attack) -> Swarm:
        if self._swarm is None or self._of != attack.schedulers:
            self._renew()
            folder = Path(tempfile.mkdtemp(prefix="sark-rig-"))
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
            self._swarm, self._of = (
                self._stack.enter_context(a_swarm(folder, attack.schedulers)),
                attack.schedulers,
            )
        return self._swarm

    def _renew(self) -> None:
        """The next attack gets another swarm."""
        self._swarm = None
        self._stack.close()


def attempt(attack: Attack, swarm: Swarm) -> Result:
    """Once: the campaign without the attack, then the same with it, on one swarm."""
    without, rows = swarm.window({}, attack.during_s)
    devices = {str(row["WorkerId"]): str(row["DeviceId"]) for row in rows}
    workers = {peer: devices.get(peer, "") for peer in swarm.worker_ids}
    wrong = [f"without the attack: {each}" for each in honest_rows(rows, swarm.models, workers)]
    before = {name: size for name, size in swarm.memory.now().items() if name != "scheduler"}
    with swarm.attacked(attack) as facts:
        own = next(iter(devices.values()), "")
        beside, rows = swarm.window(for_device(attack.campaign, own), attack.during_s)
    wrong += honest_rows(rows, swarm.models, workers, strangers=attack.strangers)
    wrong += attack.check(rows, facts)
    return Result(attack.name, attack.shows, without, beside, before, tuple(wrong), facts)


def for_device(campaign: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The options with `OWN_DEVICE` replaced by the id of the submitter's own device."""
    return dict(json.loads(json.dumps(dict(campaign)).replace(OWN_DEVICE, device)))

"""Runs attacks, one after the other, each against a fresh swarm."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.rig.attack import OWN_DEVICE, Attack
from tests.rig.swarm import a_swarm
from tests.rig.verdict import Result, Window, honest_rows

TRIES: Final = 3
"""A limit of time that was passed may be a busy machine's fault: the attack is tried again, and fails if none of its tries holds."""


def attempt(attack: Attack, folder: Path) -> Result:
    """Once: the campaign without the attack, then the same with it, on one swarm."""
    with a_swarm(folder, attack) as swarm:
        without, rows = swarm.window({}, attack.during_s)
        devices = {str(row["WorkerId"]): str(row["DeviceId"]) for row in rows}
        workers = {peer: devices.get(peer, "") for peer in swarm.worker_ids}
        wrong = [f"without the attack: {each}" for each in honest_rows(rows, swarm.models, workers)]
        before = {name: size for name, size in swarm.memory.now().items() if name != "scheduler"}
        with swarm.attacked(attack) as facts:
            own = next(iter(devices.values()), "")
            beside, rows = swarm.window(for_device(attack.campaign, own), attack.during_s)
        observed = honest_rows(rows, swarm.models, workers, strangers=attack.strangers)
        wrong += [*observed, *attack.check(rows, facts)]
    return Result(attack.name, attack.shows, without, beside, before, tuple(wrong), facts)


def for_device(campaign: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The options with `OWN_DEVICE` replaced by the id of the submitter's own device."""
    return dict(json.loads(json.dumps(dict(campaign)).replace(OWN_DEVICE, device)))


def run(attack: Attack, say: Callable[[str], object] = lambda line: None, tries: int = TRIES) -> Result:
    """Again while only limits of time were passed, `tries` times at most."""
    for number in range(1, tries + 1):
        folder = Path(tempfile.mkdtemp(prefix="sark-rig-"))
        try:
            result = replace(attempt(attack, folder), tries=number)
        except (AssertionError, OSError, subprocess.SubprocessError) as exc:  # the other attacks go on
            nothing = Window((0.0,), campaign_s=0.0)
            return Result(attack.name, attack.shows, nothing, nothing, {}, (f"the rig: {exc}",))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if result.held or result.failures != result.slow or number == tries:
            return result
        say(f"{attack.name}: {'; '.join(result.failures)}; once more")
    raise AssertionError(tries)

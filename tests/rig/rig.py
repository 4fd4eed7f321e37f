"""Runs attacks, one after the other."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.rig.attack import OWN_DEVICE, Attack, Facts
from tests.rig.swarm import MODELS, Swarm, a_swarm
from tests.rig.verdict import MIB, RIG, STEADY_MS, Result, Window, honest_rows

TRIES: Final = 3
"""Windows beside an attack, as long as time limits are exceeded: a busy machine may be the cause. Between two of them comes one without the
attack."""
BRIEF_S: Final = 3.0
BRIEF_MODELS: Final = 4
LITTLE: Final = 16 * MIB
"""Memory that an attack may leave in use before the next one on the same swarm."""


class Rig:
    """Keeps a swarm, and the campaigns without an attack that it ran, for the next attack. If an attack left something in the swarm, the
    next attack gets another swarm when its campaign admits strangers. Otherwise it gets another campaign without an attack to compare with.

    `brief`: one swarm for all attacks that were held off, and one campaign without an attack: half the time, rougher figures.
    """

    def __init__(
        self, say: Callable[[str], object] = lambda line: None, tries: int = TRIES, *, brief: bool = False
    ) -> None:
        self._say = say
        self._tries = tries
        self._brief = brief
        self._quiet: Quiet | None = None
        self._windows: deque[Window] = deque(maxlen=TRIES)
        """The latest windows without an attack, on this swarm or another one."""
        self._stack = ExitStack()
        self._swarm: Swarm | None = None
        self._of: tuple[str, ...] = ()
        self._left = False

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *exc: object) -> None:
        self._renew()

    def run(self, attack: Attack) -> Result:
        """Run one attack and return its verdict."""
        attacked: list[Window] = []
        while True:
            try:
                window, wrong, facts = self._attempt(attack)
            except (AssertionError, OSError, subprocess.SubprocessError) as exc:  # the other attacks go on
                self._renew()
                window, wrong, facts = Window((0.0,), campaign_s=0.0), [f"{RIG}{exc}"], {}
            attacked.append(window)
            quiet = tuple(self._windows) or (Window((0.0,), campaign_s=0.0),)
            result = Result(attack.name, attack.shows, quiet, tuple(attacked), wrong, facts)
            much = max(result.growth.values(), default=0) > LITTLE and not self._brief
            if much or not (result.held or result.slow == result.failures):
                self._renew()
            elif attack.leaves and not self._brief:
                self._left, self._quiet = True, None
            if not result.may_be_the_machine or len(attacked) >= self._tries:
                return result
            self._quiet = None
            if attack.leaves:
                self._renew()
            self._say(f"{attack.name}: {'; '.join(result.failures)}; once more")

    def _swarm_for(self, attack: Attack) -> Swarm:
        if self._swarm is None or self._of != attack.schedulers or (self._left and attack.strangers):
            self._renew()
            folder = Path(tempfile.mkdtemp(prefix="sark-rig-"))
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
            self._swarm, self._of = (
                self._stack.enter_context(
                    a_swarm(folder, attack.schedulers, BRIEF_MODELS if self._brief else MODELS)
                ),
                attack.schedulers,
            )
        return self._swarm

    def _renew(self) -> None:
        """Give the next attack another swarm."""
        self._swarm = self._quiet = None
        self._left = False
        self._stack.close()

    def _attempt(self, attack: Attack) -> tuple[Window, list[str], Facts]:
        swarm = self._swarm_for(attack)
        least_s = BRIEF_S if self._brief else attack.during_s
        if self._quiet is None:
            self._quiet = without_attack(swarm, least_s)
            self._windows.append(self._quiet.window)
            while self._tries > 1 and self._quiet.window.p99 > STEADY_MS and len(self._windows) < TRIES:
                self._windows.append(without_attack(swarm, least_s).window)
        options = {**attack.options, **(attack.brief if self._brief else {})}
        return attempt(replace(attack, options=options, during_s=least_s), swarm, self._quiet)


@dataclass(frozen=True)
class Quiet:
    """The campaign without an attack."""

    window: Window
    devices: Mapping[str, str]
    """Worker id → device id."""
    wrong: Sequence[str]


def without_attack(swarm: Swarm, least_s: float) -> Quiet:
    window, rows = swarm.window({}, least_s)
    observed = {str(row["WorkerId"]): str(row["DeviceId"]) for row in rows}
    devices = {peer: observed.get(peer, "") for peer in swarm.worker_ids}
    wrong = [f"without the attack: {each}" for each in honest_rows(rows, swarm.models, devices)]
    return Quiet(window, devices, wrong)


def attempt(attack: Attack, swarm: Swarm, quiet: Quiet) -> tuple[Window, list[str], Facts]:
    """Run the same campaign once with the attack, on the same swarm. Returns the window, what is wrong, and the attackers' facts."""
    before = {name: size for name, size in swarm.memory.now().items() if name != "scheduler"}
    with swarm.attacked(attack) as facts:
        own = next(filter(None, quiet.devices.values()), "")
        if OWN_DEVICE in json.dumps(dict(attack.campaign)):
            swarm.bind_device(own)
        window, rows = swarm.window(
            for_device(attack.campaign, own), attack.during_s, quiet.window.campaign_s
        )
    names: Sequence[str] = attack.campaign.get("models", ())
    expected = dict.fromkeys(names) if names else swarm.models
    wrong = [*quiet.wrong, *honest_rows(rows, expected, quiet.devices, strangers=attack.strangers)]
    wrong += [*attack.check(rows, facts), *missing_evidence(attack, facts)]
    return replace(window, before=before), wrong, facts


def missing_evidence(attack: Attack, facts: Facts) -> list[str]:
    """Facts that are too low for the rest to mean anything."""
    return [
        f"{RIG}{facts.get(name, 0)} {name}, at least {least}"
        for name, least in attack.evidence.items()
        if facts.get(name, 0) < least
    ]


def for_device(campaign: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The options, with `OWN_DEVICE` replaced by the id of the submitter's own device."""
    return dict(json.loads(json.dumps(dict(campaign)).replace(OWN_DEVICE, device)))

"""The owner's control of a worker: pause, resume, drain and reset, and the owner's rules, which have the same effect.

    Control ─▶ OwnerControl ─▶ the worker's condition (held back, leaving, faulty) ─▶ the ledger takes no new work
    quiet hours, battery ─┘ checked every few seconds

A pause survives a restart, because it is a file in the worker's folder. Queued leases end when the worker takes no new work, so that their
tasks can go elsewhere. Runs continue, unless the owner stops them now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import psutil
import structlog
import trio

from node.capacity.ledger import Ledger
from node.settings.rules import Rules, why_not_serving
from protocol.errors import ResourceError
from protocol.messages.work import Action, Control, Denied
from protocol.values.lease import LeaseState
from protocol.words import Reason, WorkerState
from swarm.base.durable import remove_durably, write_durably
from swarm.base.threads import DISK

CHECK_S: Final = 15.0
"""Seconds between two checks of the rules."""
HAND_OVER_S: Final = 10.0
"""Seconds that a drained worker waits for schedulers to take its last results, which are also on disk."""
UNFINISHED: Final = frozenset(LeaseState) - {LeaseState.REPORTING, LeaseState.CLOSED}
"""States of runs and queued leases for which a drain waits."""
HINTS: Final = {
    "paused by its owner": " (sark-node resume ends it)",
    "on battery": " (join --on-battery takes work anyway)",
}
"""Reason for taking no work → what the owner can do about it."""

log = structlog.get_logger("sark.control")


class Pause:
    """Whether the owner paused this worker; survives restarts."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: the file that exists while the worker is paused (checked now); None: the pause is not stored."""
        self._path = path
        self.on = path is not None and path.exists()

    def set(self, on: bool) -> None:
        """Pause or resume. Blocking. Raises `ResourceError` if the file cannot be written; the change still holds for this process."""
        self.on = on
        if self._path is None:
            return
        if on:
            write_durably(self._path, b"paused by its owner; sark-node resume ends it\n")
            return
        try:
            remove_durably(self._path)
        except OSError as exc:
            raise ResourceError(
                f"cannot remove {self._path}: {exc.strerror}",
                hint="remove it, or this worker is paused again when it starts",
            ) from None


def runs_on_battery() -> bool:
    read = getattr(psutil, "sensors_battery", None)  # missing in psutil on some systems
    try:
        battery = read() if read is not None else None
    except OSError:
        return False
    return battery is not None and battery.power_plugged is False


@dataclass(frozen=True)
class OwnerSenses:
    """The inputs of the rules."""

    local: Callable[[], datetime] = lambda: datetime.now().astimezone()
    """Wall clock, local time."""
    on_battery: Callable[[], bool] = runs_on_battery


@dataclass
class OwnerControl:
    """Carries out the owner's commands, and holds the worker back when the rules say so."""

    ledger: Ledger
    rules: Rules
    pause: Pause
    senses: OwnerSenses
    leave: trio.Event
    """Set once the worker is drained."""
    carry_out: Callable[[], None]
    """Called after each change."""
    stop_runs: Callable[[Reason], None]
    examine: Callable[[], Awaitable[None]]
    """Runs a model that is known to work. The condition has the outcome afterwards."""
    unsettled: Callable[[], int]
    """Number of results that no scheduler has yet."""
    tell: Callable[[str], object]
    """Called with a line for the device's owner."""
    _drains: bool = False
    _reported: tuple[bool, str] = (False, "")
    """Whether the worker drains and why, as last reported to the owner."""
    _changed: trio.Event = field(default_factory=trio.Event)

    async def do(self, message: Control) -> Denied | None:
        """Carry out a command. None: it is done. A repeated command changes nothing."""
        condition = self.ledger.condition
        log.info("owner.command", action=message.action, now=message.now, finish=message.finish)
        try:
            match message.action:
                case Action.PAUSE:
                    await DISK.run(self.pause.set, True)
                    if message.now:
                        self.stop_runs(Reason.NOT_SERVING)
                case Action.RESUME:
                    self._drains = False
                    condition.cancel_drain()
                    await DISK.run(self.pause.set, False)
                case Action.DRAIN:
                    self._drains = True
                    condition.drain("drained by its owner", finish=message.finish and not message.now)
                    if message.now:
                        self.leave.set()
                case Action.RESET:
                    if condition.state is WorkerState.FAULTY:
                        await self.examine()
        except ResourceError as exc:
            return Denied(reason=Reason.DISK_FULL, detail=f"{exc.what}; it holds until this worker restarts")
        finally:
            self.apply_rules()
        return None

    def apply_rules(self) -> None:
        """Hold the worker back, or let it serve, according to the rules now."""
        condition = self.ledger.condition
        now, on_battery = self.senses.local(), self.senses.on_battery()
        condition.hold(why_not_serving(self.rules, now, on_battery=on_battery, paused=self.pause.on))
        draining = condition.state is WorkerState.DRAINING
        if (draining, condition.why) != self._reported:
            self._reported = (draining, condition.why)
            hint = HINTS.get(condition.why, "")
            why = f": {condition.why}{hint}" if condition.why else ""
            self.tell(f"takes no new work{why}" if draining else f"now {condition.state}{why}")
            log.info("worker.held" if draining else "worker.serves", why=condition.why, state=condition.state)
        self.carry_out()

    async def keep(self) -> None:
        """Check the rules repeatedly, until cancelled."""
        while True:
            self.apply_rules()
            await trio.sleep(CHECK_S)

    def changed(self) -> None:
        """Call this after each change of the ledger, and when a scheduler has taken a result."""
        self._changed.set()
        self._changed = trio.Event()

    async def keep_draining(self) -> None:
        """Make a draining worker leave once no run or queued lease is left, and its results are delivered or HAND_OVER_S is over."""
        while True:
            if self._leaving() and not self._busy():
                with trio.move_on_after(HAND_OVER_S):
                    while self._leaving() and self.unsettled():
                        await self._changed.wait()
                if self._leaving():
                    self.tell("drained: nothing runs here any more, the advert is withdrawn")
                    self.leave.set()
                    return
            await self._changed.wait()

    def _leaving(self) -> bool:
        return self._drains

    def _busy(self) -> bool:
        return self.ledger.condition.at_work or any(
            place.state in UNFINISHED for place in self.ledger.allocations()
        )

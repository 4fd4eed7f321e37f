"""The rounds of a device's calibration: the first, requested ones, and those on a quiet host, joined in one file under the device lock.

calibrator = Calibrator(calibration_file(profile.fingerprint), profile, tools, DeviceLock(lock_name()))
await calibrator.ensure(print)      the stored calibration, or a first round, whatever the host does
await calibrator.at_quiet()         one more round if the host is quiet now
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import trio

from drivers.contract.base import Cancelled
from drivers.measure.stopping import CHECKED_AFTER
from node.device.calibrate import CalibrationTools, RoundStop, make_round, wait_until_quiet
from node.device.calibration import FLOOR_UNKNOWN, Calibration, headline, joined
from node.device.calibration_file import read_calibration, write_calibration
from node.device.lock import DeviceLock
from node.device.probe import Profile
from protocol.errors import ResourceError
from swarm.base.threads import DISK, WAITING

MAX_WAIT_S: Final = 3.0
"""Longest wait of a first round for a quiet host, in seconds; a full round waits ten times as long."""
QUIET_S: Final = 1.0
"""Longest wait of a later round for a quiet host, in seconds."""
LEGACY_FILE_NAME: Final = "calibration.json"
"""An earlier version's file, in the worker's folder of a home. A device now has one file for all homes."""


T = TypeVar("T")


class RoundEnd(StrEnum):
    """The outcome of a round that needs a quiet host."""

    JOINED = "joined"
    DISTURBED = "disturbed"
    """The host did not stay quiet, so the round does not count beside quiet ones."""
    BUSY = "busy"
    """The host is not quiet: nothing was measured."""


@dataclass
class Calibrator:
    """This device's calibration, and the means to improve it."""

    path: Path
    profile: Profile
    tools: CalibrationTools
    lock: DeviceLock
    current: Calibration | None = None

    def floor(self, unit: str) -> int:
        """Fewest warm-up inferences of a unit."""
        return self.current.floor(unit) if self.current is not None else FLOOR_UNKNOWN

    def first_look(self, unit: str, precision: float) -> int:
        """Launches after which a unit's times may reach `precision` for the first time."""
        return self.current.first_look(unit, precision) if self.current is not None else CHECKED_AFTER[0]

    async def ensure(
        self,
        report: Callable[[str], object],
        *,
        full: bool = False,
        force: bool = False,
        wait_s: float | None = None,
        old: Path | None = None,
    ) -> Calibration:
        """The stored calibration if it is valid and not `force`, else the result of another round, made under the device lock and stored.

        `wait_s`: the longest wait for a quiet host; `old`: a worker's folder, from which an earlier version's file is removed. `report`
        gets a line for each step.
        """
        if old is not None and await DISK.run(_remove, old / LEGACY_FILE_NAME):
            report(
                f"removed {old / LEGACY_FILE_NAME} of an earlier version: calibrations are now stored in {self.path.parent}"
            )
        stored = await DISK.run(read_calibration, self.path, self.profile.fingerprint)
        self.current = stored.calibration
        if self.current is not None and not force and (self.current.full or not full):
            return self.current
        full = full or (self.current is not None and self.current.full)
        why = stored.missing or ("another round" if force else "in full")
        report(f"calibrating this device, {'up to half a minute' if full else 'a few seconds'}: {why}")

        def waiting() -> None:
            report("waiting: another measurement is running on this device")

        async with self.lock.hold(waiting):
            most_s = MAX_WAIT_S * (10 if full else 1) if wait_s is None else wait_s
            busy = await _in_thread(lambda stop: wait_until_quiet(self.tools, most_s, stop))
            made = await _in_thread(lambda stop: make_round(self.profile, self.tools, busy, stop, full=full))
            self.current, trouble = await self._keep(made)
        if trouble:
            report(f"cannot save the calibration: {trouble}")
        report(f"calibrated: {headline(self.current)}")
        return self.current

    async def at_quiet(self) -> RoundEnd:
        """One more round, if the host is quiet now. Cancelling kills its processes, and returns once they are dead.

        Raises `ResourceError` if the calibration cannot be stored.
        """
        async with self.lock.hold():
            if await _in_thread(lambda stop: wait_until_quiet(self.tools, QUIET_S, stop)) is not None:
                return RoundEnd.BUSY
            full = self.current is not None and self.current.full
            made = await _in_thread(lambda stop: make_round(self.profile, self.tools, None, stop, full=full))
            self.current, trouble = await self._keep(made)
        if trouble:
            raise ResourceError(trouble)
        return RoundEnd.DISTURBED if made.quiet is False else RoundEnd.JOINED

    async def _keep(self, made: Calibration) -> tuple[Calibration, str]:
        """Join a round to the file's current calibration. Returns the result, and why it is not stored; empty: it is."""

        def keep() -> tuple[Calibration, str]:
            stored = read_calibration(self.path, made.fingerprint).calibration
            calibration = joined(stored or self.current, made)
            try:
                write_calibration(self.path, calibration)
            except ResourceError as exc:
                return calibration, exc.what
            return calibration, ""

        return await DISK.run(keep)


async def _in_thread(work: Callable[[RoundStop], T]) -> T:
    """Run `work` in a thread. Cancelling ends it early, and returns once its processes are dead."""
    stop, results, ended = RoundStop(), list[T](), False

    def go() -> None:
        try:
            results.append(work(stop))
        except Cancelled:
            return

    async def stop_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not ended:
                with trio.CancelScope(shield=True):
                    await WAITING.run(stop.now)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_when_cancelled)
        await WAITING.run(go)
        ended = True
        nursery.cancel_scope.cancel()
    await trio.lowlevel.checkpoint_if_cancelled()
    return results[0]


def _remove(path: Path) -> bool:
    """Remove the file. Returns whether it existed and could be removed."""
    try:
        path.unlink()
    except OSError:
        return False
    return True

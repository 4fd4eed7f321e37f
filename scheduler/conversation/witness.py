"""What this scheduler reveals to strangers' runs and witnesses of them. Pure; nothing of this is stored.

A reveal is the hash of a signature over the attempt: nobody else can know it before it is sent, and after a restart it is the same. Only
this process knows when it sent a reveal, so the times of an attempt that an earlier process or another scheduler committed are not
witnessed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocol.messages.work import LaunchEnded, Reveal
from results.row.witness import LaunchNote, WitnessAccount
from scheduler.conversation.claims import ADOPTION_EPOCH_STEP
from scheduler.core.entries import TaskEntry

MAX_NOTES: Final = 256
"""Most launches noted of one run: as many as a record can hold."""
SERVED: Final = "API "
"""Prefix of units where a server has loaded the model: its answers are arbitrary, and nothing about it can be witnessed."""
NO_SERVERS: Final = "a server's answers cannot be witnessed"
BEFORE: Final = "an earlier process or a copy of this scheduler, or another scheduler, may have started it"
STILL_S: Final = 3.0
"""After a standstill of this many seconds a request for inputs may be old. The value is less than the time after which a worker repeats the
request.
"""


@dataclass(slots=True)
class _Run:
    """One attempt. Instants are monotonic seconds."""

    begun_here: bool
    """Whether this process committed the attempt as one to be witnessed."""
    since: float | None = None
    """When the inputs were first revealed; None: this process did not reveal them."""
    notes: dict[int, tuple[str, float]] = field(default_factory=dict)
    """By launch: digest and arrival instant of the note about its end; the first note counts."""
    result_at: float | None = None
    """Instant at which the attempt's result first arrived."""


class WitnessBook:
    """Strangers' attempts, by task and number."""

    def __init__(self, sign: Callable[[bytes], bytes]) -> None:
        self._sign = sign
        self._runs: dict[str, dict[int, _Run]] = {}
        self._beat_at: float | None = None

    def beat(self, now: float) -> None:
        """Time passed. Call it a few times each second. After a standstill of `STILL_S` a worker may have requested inputs long ago, and a
        copy of this scheduler, with the same secrets, may have answered. So runs that have had no inputs from here are no longer
        witnessed.
        """
        if self._beat_at is not None and now - self._beat_at > STILL_S:
            for attempts in self._runs.values():
                for run in attempts.values():
                    run.begun_here &= run.since is not None
        self._beat_at = now

    def commit(self, task: str, attempt: int) -> None:
        """A stranger is asked to take this attempt, whose inputs were not revealed before."""
        self._runs.setdefault(task, {}).setdefault(attempt, _Run(True))

    def begun(self, task: str, attempt: int) -> bool:
        """Whether this process committed the attempt as one to be witnessed."""
        return attempt in self._runs.get(task, {}) and self._runs[task][attempt].begun_here

    def may_belong_to_former_scheduler(self, entry: TaskEntry, worker: str) -> bool:
        """Whether the run may have begun under the scheduler from which this one adopted the campaign. Either it was found at its worker,
        or this process never revealed its inputs: a worker answers a commit with a result that it already has.
        """
        attempt = entry.at(worker)
        adopted = entry.epoch is not None and entry.epoch >= ADOPTION_EPOCH_STEP
        if not adopted or attempt is None:
            return False
        run = self._runs.get(entry.id, {}).get(attempt.number)
        return attempt.found or run is None or run.since is None

    def reveal(self, task: str, attempt: int, replica_set: str, now: float, *, again: bool = False) -> Reveal:
        """The secrets behind an attempt's inputs, the same on each request. `again`: the worker says that it has had them before."""
        self.beat(now)
        run = self._run(task, attempt)
        run.begun_here &= run.since is not None or not again
        if run.begun_here and run.since is None:
            run.since = now
        return self._reveal(task, attempt, replica_set)

    def _run(self, task: str, attempt: int) -> _Run:
        return self._runs.setdefault(task, {}).setdefault(attempt, _Run(False))

    def _reveal(self, task: str, attempt: int, replica_set: str) -> Reveal:
        return Reveal(
            opening=self._secret("opening", replica_set or f"{task}\n{attempt}"),
            reveal=self._secret("reveal", f"{task}\n{attempt}"),
        )

    def _secret(self, what: str, about: str) -> bytes:
        return hashlib.sha256(self._sign(f"sark {what} 1\n{about}".encode())).digest()

    def note(self, task: str, attempt: int, note: LaunchEnded, now: float) -> None:
        """A launch ended. A note before the reveal, or a repeated one, says nothing."""
        run = self._run(task, attempt)
        if run.since is not None and len(run.notes) < MAX_NOTES:
            run.notes.setdefault(note.launch, (note.digest, now))

    def result_arrived(self, task: str, attempt: int, now: float) -> None:
        """Record when the attempt's result arrived, before the scheduler spends time on fetching and reading it."""
        run = self._run(task, attempt)
        run.result_at = now if run.result_at is None else run.result_at

    def account(
        self, task: str, attempt: int, replica_set: str, unit: str, *, anothers: bool = False
    ) -> WitnessAccount:
        """What was witnessed of an attempt whose result has arrived. `anothers`: another key may have begun and revealed the attempt."""
        if unit.startswith(SERVED):
            return WitnessAccount(unwitnessed=NO_SERVERS)
        run = self._run(task, attempt)
        if anothers or not run.begun_here:
            return WitnessAccount(unwitnessed=BEFORE)
        secrets = self._reveal(task, attempt, replica_set)
        chain = WitnessAccount(opening=secrets.opening.hex(), reveal=secrets.reveal.hex())
        if run.since is None or run.result_at is None:
            return chain
        notes = tuple(
            LaunchNote(launch=launch, digest=digest, at_s=at - run.since)
            for launch, (digest, at) in sorted(run.notes.items())
        )
        return chain.model_copy(update={"notes": notes, "result_s": run.result_at - run.since})

    def forget(self, task: str) -> None:
        """The task ended a while ago: drop what is known of its runs."""
        self._runs.pop(task, None)

"""What a home has learned of strangers, by key: results that it confirmed by repeating an inference, and results that were lies.

A refuted key gets no task of this home until it is forgiven. Since new keys cost nothing, a reputation says whom to prefer, never whom to
trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import ResourceError
from protocol.wire.base import PeerName
from swarm.base.durable import unusable, write_durably
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.base.text import count, safe_text

MAX_KEYS: Final = 10_000
"""Most keys kept. Those without news for longest are dropped first; refuted keys are dropped last."""
MAX_FILE: Final = 8 * 1024 * 1024
LOCK_WAIT_S: Final = 2.0


class Reputation(BaseModel):
    """The reputation of one stranger's key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    peer: PeerName
    confirmed: Annotated[int, Field(ge=0)] = 0
    """Number of results of which a repeated inference was right."""
    refuted: Annotated[int, Field(ge=0)] = 0
    """Number of results that cannot be true."""
    why: Annotated[str, Field(max_length=500)] = ""
    """Why the last one cannot be true."""
    at: Annotated[float, Field(ge=0)] = 0.0
    """When it last changed, in wall seconds."""


class ReputationBook(BaseModel):
    """Everything that a home has learned."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    keys: Annotated[tuple[Reputation, ...], Field(max_length=MAX_KEYS, strict=False)] = ()

    @property
    def refuted(self) -> frozenset[str]:
        """Keys that get no task."""
        return frozenset(each.peer for each in self.keys if each.refuted)

    @property
    def confirmed(self) -> dict[str, int]:
        """Number of confirmed results by key, without refuted keys."""
        return {each.peer: each.confirmed for each in self.keys if each.confirmed and not each.refuted}

    def of(self, peer: str) -> Reputation:
        return next((each for each in self.keys if each.peer == peer), Reputation(peer=peer))

    def confirm(self, peer: str, now: float) -> ReputationBook:
        """The reputations with one more confirmed result."""
        known = self.of(peer)
        return self._with(known.model_copy(update={"confirmed": known.confirmed + 1, "at": now}))

    def refute(self, peer: str, why: str, now: float) -> ReputationBook:
        """The reputations with one more lie."""
        known = self.of(peer)
        return self._with(
            known.model_copy(update={"refuted": known.refuted + 1, "why": why[:500], "at": now})
        )

    def forgive(self, peer: str) -> ReputationBook:
        """The reputations without this key."""
        return self.model_copy(update={"keys": tuple(each for each in self.keys if each.peer != peer)})

    def _with(self, changed: Reputation) -> ReputationBook:
        others = [each for each in self.keys if each.peer != changed.peer]
        kept = sorted(others, key=lambda each: (each.refuted > 0, each.at))[-(MAX_KEYS - 1) :]
        return self.model_copy(update={"keys": _in_order((*kept, changed))})


def _in_order(keys: Iterable[Reputation]) -> tuple[Reputation, ...]:
    return tuple(sorted(keys, key=lambda each: each.peer))


def reputation_words(known: Reputation) -> str:
    """`refuted 1 time: why`, or `3 results confirmed`."""
    if known.refuted:
        return f"refuted {count(known.refuted, 'time')}, gets no tasks: {safe_text(known.why, 200)}"
    return f"{count(known.confirmed, 'result')} confirmed"


# -- in the home -------------------------------------------------------------------------------------------------------------


def reputation_file(home: Home) -> Path:
    """The file with the reputations."""
    return home.folder("scheduler") / "trust" / "reputation.json"


def read_reputation(home: Home) -> ReputationBook:
    """The stored reputations; none where there is no file. Raises `ResourceError` for a damaged file."""
    path = reputation_file(home)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ReputationBook()
    except OSError as exc:
        raise unusable(path, exc) from exc
    try:
        if len(data) > MAX_FILE:
            raise ValueError("it is too large")
        return ReputationBook.model_validate_json(data)
    except (ValidationError, ValueError) as exc:
        raise ResourceError(
            f"{path} is damaged: {str(exc).splitlines()[0][:200]}",
            hint="move the file away: everything learned about strangers is then forgotten, including which were refuted",
        ) from None


def change_reputation(home: Home, how: Callable[[ReputationBook], ReputationBook]) -> ReputationBook:
    """Change the reputations durably. Raises `ResourceError`."""
    with lock_folder(reputation_file(home).parent, wait_s=LOCK_WAIT_S):
        before = read_reputation(home)
        after = how(before)
        if after != before:
            write_durably(reputation_file(home), after.model_dump_json(indent=1).encode() + b"\n")
    return after

"""Doing a thing once though it is asked for twice: what was answered to an `Idempotency-Key` is kept on disk for a day.

    claim: key, body, the id that the new campaign will have ──▶ on disk ──▶ the campaign is stored ──▶ its answer is kept beside the claim

A server that is killed in between finds the claim, and by the id in it whether the campaign was stored. So does one whose store was gone
for a moment. Several servers of one home share the keys: one of them answers to a key at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final

import trio
from fastapi import Header
from pydantic import ValidationError

from protocol.errors import ResourceError, SarkError
from results.row.form import JsonModel
from scheduler.submit.submit import new_campaign_id
from swarm.base.durable import unusable, write_durably
from swarm.base.locks import try_lock
from web.http.problems import InvalidField

KEEP_S: Final = 86_400.0
TIDY_S: Final = 600.0

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{1,200}$",
        description="Of your making, such as a UUID: the same request with the same key is carried out once. Kept for a day.",
    ),
]


class _Claim(JsonModel):
    body: str
    """What the request was, hashed."""
    campaign: str
    at: float
    answer: dict[str, Any] | None = None


@dataclass(slots=True)
class IdempotencyStore:
    """The keys of one home: one object for each server."""

    folder: Path
    wall: Callable[[], float] = time.time
    _tidied: float = 0.0

    async def do(
        self, key: str | None, request: bytes, make: Callable[[str], Awaitable[dict[str, Any]]]
    ) -> tuple[dict[str, Any], bool]:
        """What `make` answers, given the id for a new campaign; and whether it was answered before. `request`: all that makes it another
        one. Raises `InvalidField` where the key was used for something else or is in use, `ResourceError`, and what `make` raises.
        """
        if key is None:
            return await make(new_campaign_id()), False
        path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        with self._alone(path) as mine:
            if not mine:
                raise InvalidField(
                    HTTPStatus.CONFLICT,
                    "a request with this Idempotency-Key is being answered",
                    hint="ask again",
                )
            claim = await trio.to_thread.run_sync(self._claim, path, hashlib.sha256(request).hexdigest())
            if claim.answer is not None:
                return claim.answer, True
            try:
                answer = await make(claim.campaign)
            except ResourceError:  # it may be stored though the answer did not come: the claim's id will tell
                raise
            except (SarkError, InvalidField):  # nothing was stored: the key is free for a better request
                await trio.to_thread.run_sync(lambda: path.unlink(missing_ok=True))
                raise
            await trio.to_thread.run_sync(_write, path, claim.model_copy(update={"answer": answer}))
            return answer, False

    @contextlib.contextmanager
    def _alone(self, path: Path) -> Iterator[bool]:
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = path.with_suffix(".lock")
                lock.touch(0o600)  # young: `_tidy` leaves it
                alone = stack.enter_context(try_lock(lock))
            except OSError as exc:
                raise unusable(self.folder, exc) from None
            yield alone

    def _claim(self, path: Path, body: str) -> _Claim:
        self._tidy()
        known = self._known(path)
        if known is None:
            known = _Claim(body=body, campaign=new_campaign_id(), at=self.wall())
            _write(path, known)
        if known.body != body:
            raise InvalidField(
                HTTPStatus.CONFLICT,
                "this Idempotency-Key was used for another request",
                hint="take a new key for each request",
            )
        return known

    def _known(self, path: Path) -> _Claim | None:
        try:
            claim = _Claim.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        return claim if self.wall() - claim.at < KEEP_S else None

    def _tidy(self) -> None:
        if self.wall() - self._tidied < TIDY_S:
            return
        self._tidied = self.wall()
        for path in self.folder.glob("*"):
            with contextlib.suppress(OSError):
                if self.wall() - path.stat().st_mtime > KEEP_S:
                    path.unlink()


def _write(path: Path, claim: _Claim) -> None:
    write_durably(path, claim.model_dump_json().encode())

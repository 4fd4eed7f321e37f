"""Idempotent POST requests: the answer to a request with an `Idempotency-Key` is stored on disk for a day.

    claim (key, request hash, id of the new campaign) ──▶ on disk ──▶ store the campaign ──▶ store the answer with the claim

A server that was killed in between finds the claim, whose campaign id tells whether the campaign was stored. Servers of one home share the
keys, and a lock file for each key lets one server answer at a time. Servers on several machines share only their store: they derive the
campaign's id from the key and the request, so that any server finds the campaign when a request is repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import Header
from pydantic import ValidationError

from protocol.errors import ResourceError, SarkError
from results.row.form import JsonModel
from scheduler.submit.submit import new_campaign_id
from swarm.base.durable import make_folder, remove_durably, unusable, write_durably
from swarm.base.locks import try_lock
from swarm.base.threads import DISK
from web.http.problems import HttpProblem

KEEP_S: Final = 86_400.0
CLEAN_UP_S: Final = 600.0

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{1,200}$",
        description="Unique string, such as a UUID. Repeated requests with the same key are carried out once. The key is stored for a day.",
    ),
]


class _Claim(JsonModel):
    request_hash: str
    campaign: str
    at: float
    answer: dict[str, Any] | None = None


@dataclass(slots=True)
class IdempotencyStore:
    folder: Path
    secret: bytes | None = None
    """The secret of servers on several machines that share a store; None: the store is this machine's."""
    wall: Callable[[], float] = time.time
    _cleaned_up: float = 0.0

    async def run(
        self, key: str | None, request: bytes, make: Callable[[str], Awaitable[dict[str, Any]]]
    ) -> tuple[dict[str, Any], str, bool]:
        """(the answer of `make(campaign id)`, that id, whether it is a replay). `request`: everything that identifies the request.

        Raises `HttpProblem` 409 if the key is in use or belongs to another request, `ResourceError`, and what `make` raises.
        """
        if key is None:
            campaign = new_campaign_id()
            return await make(campaign), campaign, False
        path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        with self._lock(path):
            claim = await DISK.run(self._claim, path, hashlib.sha256(request).hexdigest())
            if claim.answer is not None:
                return claim.answer, claim.campaign, True
            try:
                answer = await make(claim.campaign)
            except ResourceError:  # the campaign may still be stored, and the claim has its id
                raise
            except (SarkError, HttpProblem):  # nothing was stored, so release the key for a corrected request
                await DISK.run(remove_durably, path)
                raise
            await DISK.run(_write, path, claim.model_copy(update={"answer": answer}))
            return answer, claim.campaign, False

    @contextlib.contextmanager
    def _lock(self, path: Path) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                make_folder(self.folder)
                locked = stack.enter_context(try_lock(path.with_suffix(".lock")))
            except OSError as exc:
                raise unusable(self.folder, exc) from None
            if not locked:
                raise HttpProblem(
                    409, "another request with this Idempotency-Key is in progress", hint="retry later"
                )
            yield

    def _claim(self, path: Path, request_hash: str) -> _Claim:
        self._clean_up()
        claim = self._read(path)
        if claim is None:
            campaign = self._campaign_id(f"{path.stem} {request_hash}".encode())
            claim = _Claim(request_hash=request_hash, campaign=campaign, at=self.wall())
            _write(path, claim)
        if claim.request_hash != request_hash:
            raise HttpProblem(
                409,
                "this Idempotency-Key was used for another request",
                hint="use a new key for each request",
            )
        return claim

    def _campaign_id(self, request: bytes) -> str:
        if self.secret is None:
            return new_campaign_id()
        draws = iter(hmac.digest(self.secret, request, hashlib.sha512))
        return new_campaign_id(lambda letters: letters[next(draws) % len(letters)])

    def _read(self, path: Path) -> _Claim | None:
        try:
            claim = _Claim.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        return claim if self.wall() - claim.at < KEEP_S else None

    def _clean_up(self) -> None:
        """Remove expired claims with their lock files."""
        if self.wall() - self._cleaned_up < CLEAN_UP_S:
            return
        self._cleaned_up = self.wall()
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(OSError):
                if self.wall() - path.stat().st_mtime > KEEP_S:
                    with try_lock(path.with_suffix(".lock")) as locked:
                        if locked:
                            path.unlink()
                            path.with_suffix(".lock").unlink()


def _write(path: Path, claim: _Claim) -> None:
    write_durably(path, claim.model_dump_json().encode())

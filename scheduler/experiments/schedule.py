"""Runs experiments on schedule while a process runs: starts what is due, judges what has ended, sends webhooks for regressions.

Any number of processes may do this on one home: each step is claimed in the store.

A webhook is one POST of JSON to the URL that the experiment's owner gave, with up to three tries. It follows no redirects, and only the
status of the response is read. With a secret, the body is signed:

    X-Sark-Timestamp: 1790000000
    X-Sark-Signature: sha256=<HMAC-SHA256 of "1790000000." and the body, in hexadecimal>
"""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import httpx
import structlog
import trio

from protocol.errors import ResourceError, SarkError
from results.analysis.regression import WORSE_FINDINGS, RegressionFinding
from results.row.form import utc
from scheduler.experiments.confirm import begin_confirmations, settle_confirmations
from scheduler.experiments.judge import alarm_lines, judge_ended, read_cells, why_not_started
from scheduler.experiments.service import CheckDevices, begin_due
from scheduler.models.describe import Fetch
from scheduler.store.experiments import SENT
from scheduler.store.rows import RunRow
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.base.text import safe_text
from swarm.base.threads import COMPUTING, DISK
from swarm.download.urls import without_secrets

POLL_S: Final = 5.0
"""Seconds between steps: how late a machine that slept may notice that something was due."""
TRIES: Final = 3
TRY_TIMEOUT_S: Final = 10.0
RETRY_DELAY_S: Final = 2.0
"""Seconds before the second try, and twice that before the third."""
MAX_SECRET: Final = 4096

log = structlog.get_logger("sark.experiments")

T = TypeVar("T")


@dataclass(slots=True)
class Schedules:
    """Owns its store, for one task at a time. `fetch` downloads models by URL; like `check` and all work on the store, it blocks."""

    home: Home
    open_store: Callable[[], Store]
    fetch: Fetch
    check: CheckDevices
    _store: Store | None = None

    async def run(self, wake: Callable[[], Awaitable[None]], *, begin: bool = True) -> None:
        """Step forever. `begin`: start what is due, and call `wake` so that a scheduler process runs."""
        try:
            while True:
                try:
                    if await self.step(begin=begin):
                        await wake()
                except SarkError as exc:  # such as a full disk or a locked store: the next step may succeed
                    log.warning("experiments.waiting", why=exc.what)
                await trio.sleep(POLL_S)
        finally:
            self.close()

    async def step(self, *, begin: bool) -> list[str]:
        """Do once everything that is due; returns the campaigns that were started. Raises `ResourceError`."""
        judged = await self._with(judge_ended)
        again = await self._with(lambda store: begin_confirmations(self.home, store))
        judged += again.settled + await self._with(settle_confirmations)
        for run in judged:
            log.info(
                "experiment.judged", experiment=run.experiment, campaign=run.campaign, finding=run.finding
            )
            for line in alarm_lines(run) if run.finding == RegressionFinding.REGRESSION else ():
                log.warning("experiment.regression", experiment=run.experiment, what=line)
        now, started = time.time(), again.started
        if begin:
            started += await self._with(
                lambda store: begin_due(self.home, store, now=now, check=self.check, fetch=self.fetch)
            )
        for campaign in started:
            log.info("experiment.started", campaign=campaign)
        for run in await self._with(lambda store: store.experiments.take_hooks()):
            await self._notify(run)
        return started

    async def _notify(self, run: RunRow) -> None:
        experiment = await self._with(lambda store: store.experiments.get(run.experiment))
        status = ""
        if experiment is not None and experiment.webhook:
            body = await self._with(lambda store: hook_body(run, store))
            try:
                secret = await DISK.run(read_secret, experiment.secret_file)
                status = await post(experiment.webhook, body, secret) or SENT
            except SarkError as exc:
                status = exc.what
            if status != SENT:
                log.warning("webhook.failed", experiment=run.experiment, why=status)
        await self._with(lambda store: store.experiments.set_hook(run.campaign, status))

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
            self._store = None

    async def _with(self, work: Callable[[Store], T]) -> T:
        def in_thread() -> T:
            if self._store is None:
                self._store = self.open_store()
            return work(self._store)

        return await COMPUTING.run(in_thread)


def hook_body(run: RunRow, store: Store) -> bytes:
    """The body of a run's webhook."""
    campaign = store.campaigns.get(run.campaign)
    value = {
        "event": "experiment." + run.finding,
        "experiment": run.experiment,
        "version": run.version,
        "campaign": run.campaign,
        "finding": run.finding,
        "begun": utc(run.begun),
        "ended": utc(campaign.ended if campaign else None),
        "worse": [cell.model_dump(mode="json") for cell in read_cells(run) if cell.finding in WORSE_FINDINGS],
        "detail": why_not_started(run),
    }
    return json.dumps(value, ensure_ascii=False).encode()


def read_secret(path: str) -> bytes:
    """The secret in the file, without surrounding white space; empty for no file. Raises `ResourceError`. Blocking."""
    if not path:
        return b""
    try:
        with Path(path).open("rb") as reader:
            secret = reader.read(MAX_SECRET).strip()
    except OSError as exc:
        raise ResourceError(f"cannot read the webhook's secret in {path}: {exc.strerror}") from None
    if len(secret) < 16:
        raise ResourceError(
            f"the webhook's secret in {path} is shorter than 16 characters",
            hint="create one: openssl rand -hex 32",
        )
    return secret


async def post(url: str, body: bytes, secret: bytes) -> str:
    """Send a webhook; returns '' or why it failed. Retries after timeouts, network errors and the statuses 429 and 5xx."""
    why = ""
    for attempt in range(TRIES):
        await trio.sleep(RETRY_DELAY_S * attempt)
        headers = {"Content-Type": "application/json", "User-Agent": "sark-node"}
        why, retry = await _post_once(url, body, headers | _signature(body, secret, int(time.time())))
        if not retry:
            break
    return why


def _signature(body: bytes, secret: bytes, timestamp: int) -> dict[str, str]:
    if not secret:
        return {}
    digest = hmac.new(secret, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Sark-Timestamp": str(timestamp), "X-Sark-Signature": f"sha256={digest}"}


async def _post_once(url: str, body: bytes, headers: dict[str, str]) -> tuple[str, bool]:
    """Why it failed, and whether to retry."""
    shown = safe_text(without_secrets(url), 200)
    try:
        with trio.fail_after(TRY_TIMEOUT_S):
            async with (
                httpx.AsyncClient(trust_env=False, timeout=TRY_TIMEOUT_S) as client,
                client.stream("POST", url, content=body, headers=headers) as response,
            ):
                status = response.status_code
    except trio.TooSlowError:
        return f"{shown} did not answer within {TRY_TIMEOUT_S:g} s", True
    except (httpx.HTTPError, ssl.SSLError, OSError) as exc:
        return f"{shown}: {safe_text(str(exc) or type(exc).__name__, 200)}", True
    if 200 <= status < 300:
        return "", False
    return f"{shown} answered {status}", status >= 500 or status == 429

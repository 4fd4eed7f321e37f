"""Telling a regression to whoever wants to know: one POST of JSON, to the URL that the experiment's owner gave.

No redirects, nothing of the answer read but its status, a cap on the whole of it, three tries. With a secret the body is signed:

    X-Sark-Timestamp: 1790000000
    X-Sark-Signature: sha256=<HMAC-SHA256 of "1790000000." and the body, in hexadecimal>
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import trio

from protocol.errors import ResourceError
from swarm.base.text import safe_text
from swarm.download.urls import without_secrets

TRIES: Final = 3
TRY_S: Final = 10.0
"""One try, however slowly the other side answers."""
AGAIN_S: Final = 2.0
"""Before the second try, and twice that before the third."""
MAX_SECRET: Final = 4096


def signed(body: bytes, secret: bytes, instant: int) -> dict[str, str]:
    """The headers by which a receiver knows that it is from us, and when it was sent."""
    digest = hmac.new(secret, f"{instant}.".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Sark-Timestamp": str(instant), "X-Sark-Signature": f"sha256={digest}"}


def read_secret(path: str) -> bytes:
    """What is in the file, without white space around it; nothing for no file. Raises `ResourceError`. Blocking."""
    if not path:
        return b""
    try:
        with Path(path).open("rb") as reader:
            secret = reader.read(MAX_SECRET).strip()
    except OSError as exc:
        raise ResourceError(f"cannot read the webhook's secret in {path}: {exc.strerror}") from None
    if len(secret) < 16:
        raise ResourceError(
            f"the webhook's secret in {path} has fewer than 16 letters", hint="make one: openssl rand -hex 32"
        )
    return secret


async def post(
    url: str,
    body: bytes,
    secret: bytes,
    *,
    wall: Callable[[], float],
    transport: httpx.AsyncBaseTransport | None = None,
) -> str:
    """Send it; empty when it was taken, else why it was not. Tried again where that may help."""
    why = ""
    for number in range(TRIES):
        if number:
            await trio.sleep(AGAIN_S * number)
        why, again = await _once(url, body, signed(body, secret, int(wall())) if secret else {}, transport)
        if not why or not again:
            break
    return why


async def _once(
    url: str, body: bytes, headers: dict[str, str], transport: httpx.AsyncBaseTransport | None
) -> tuple[str, bool]:
    told = {"Content-Type": "application/json", "User-Agent": "sark-node", **headers}
    shown = safe_text(without_secrets(url), 200)
    try:
        with trio.fail_after(TRY_S):
            async with (
                httpx.AsyncClient(
                    transport=transport, trust_env=False, follow_redirects=False, timeout=TRY_S
                ) as asking,
                asking.stream("POST", url, content=body, headers=told) as answer,
            ):
                status = answer.status_code
    except trio.TooSlowError:
        return f"{shown} did not answer within {TRY_S:g} s", True
    except (httpx.HTTPError, ssl.SSLError, OSError) as exc:
        return f"{shown}: {safe_text(str(exc) or type(exc).__name__, 200)}", True
    if 200 <= status < 300:
        return "", False
    return f"{shown} answered {status}", status >= 500 or status == 429

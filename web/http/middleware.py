"""Access rules, which are checked before any endpoint runs, this home's API token, and the security headers of every response.

Host     must name this server: DNS rebinding is refused. (Starlette's TrustedHostMiddleware reads no IPv6 address.)
Origin   must be this server's own, so that pages of other sites cannot submit
token    required, except for the static pages, and over loopback for this user's own processes
body     limited in size, even if chunked, and in time
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

import trio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import CampaignError, ResourceError
from swarm.base.durable import sync_folder, write_durably
from web.http.peer_user import Address
from web.http.problems import problem

MIN_TOKEN: Final = 16
MAX_TOKEN: Final = 1000

MAX_BODY: Final = 4 * 1024 * 1024
BODY_S: Final = 60.0
"""Time limit of a request's whole body."""
STALL_S: Final = 30.0
"""Longest pause within a large body."""

SECURITY: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers added to every response that does not set them itself."""

OWN_SITE: Final = frozenset({"none", "same-origin"})
"""`Sec-Fetch-Site` of requests from our own pages and the address bar. Another port of this machine is another site."""

_AUTHORITY: Final = re.compile(r"(?:\[([0-9a-fA-F:.]{2,45})\]|([a-zA-Z0-9._-]{1,253}))(?::[0-9]{1,5})?")
"""host[:port], without user info."""

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

Refusal = tuple[HTTPStatus, str, str]
"""Status, detail, hint."""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Who may send which requests. `names`: this server's host names and addresses. `token`: the required token; None: none is required."""

    names: Collection[str] = LOOPBACK_NAMES
    token: str | None = None
    is_own: Callable[[Address, Address], bool] | None = None
    """Whether a connection (client, server) comes from this user's own process, which needs no token. None: every process needs one."""
    open_paths: Collection[str] = ("/", "/docs")
    """Pages that need no token, because they ask for it."""
    open_folders: Collection[str] = ("/static/",)
    large: Collection[str] = ("/api/v1/models",)
    """Paths of endpoints that limit the body's size themselves."""
    max_body: int = MAX_BODY
    body_s: float = BODY_S
    stall_s: float = STALL_S


def refusal(
    rules: AccessRules, path: str, headers: Headers, query: bytes = b"", *, is_own: Callable[[], bool] = bool
) -> Refusal | None:
    """Why a request with these headers is refused; None: it is not. `path` is decoded, `query` is raw. `is_own`: whether the request comes
    from this user's own process.
    """
    if _host(headers.get("host", "")) not in rules.names:
        return (
            HTTPStatus.MISDIRECTED_REQUEST,
            "this server does not have that host name",
            "use the address that `sark-node serve` prints, or add the name: sark-node serve --name HOST",
        )
    origin = headers.get("origin")
    own = headers.get("host", "").lower()
    if origin is not None and origin.lower() not in (f"http://{own}", f"https://{own}"):
        return HTTPStatus.FORBIDDEN, "requests from pages of other sites are refused", ""
    if headers.get("sec-fetch-site", "none") not in OWN_SITE and path not in rules.open_paths:
        return HTTPStatus.FORBIDDEN, "requests from pages of other sites are refused", ""
    if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may use the other length
        return (
            HTTPStatus.BAD_REQUEST,
            "the body has two lengths",
            "send Content-Length or Transfer-Encoding, not both",
        )
    if "\x00" in path or b"%00" in query:  # PostgreSQL refuses zero bytes in text
        return HTTPStatus.BAD_REQUEST, "the address contains a zero byte", ""
    is_open = path in rules.open_paths or path.startswith(tuple(rules.open_folders))
    if rules.token is not None and not is_open:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        valid = hmac.compare_digest(token.strip().encode(), rules.token.encode())
        if (scheme.lower() != "bearer" or not valid) and (scheme or not is_own()):
            return (
                HTTPStatus.UNAUTHORIZED,
                "this server requires its token",
                "send the header Authorization: Bearer TOKEN; `sark-node serve` prints where the token is",
            )
    return None


def _host(header: str) -> str:
    """The host of a Host header in lower case, without port and brackets; '': the header is malformed."""
    match = _AUTHORITY.fullmatch(header)
    if match is None:
        return ""
    try:
        return str(IPv6Address(match[1])) if match[1] else match[2].lower()
    except ValueError:
        return ""


class AccessMiddleware:
    """ASGI middleware that applies `AccessRules` to every request."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no endpoint speaks websocket
            await send({"type": "websocket.close", "code": 1000})
            return
        headers, path = Headers(scope=scope), scope["path"]
        refused = refusal(
            self._rules, path, headers, scope.get("query_string", b""), is_own=lambda: self._is_own(scope)
        )
        large = path in self._rules.large
        length = headers.get("content-length", "0")
        if refused is None and not large and (not length.isdecimal() or int(length) > self._rules.max_body):
            refused = (
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body is larger than {self._rules.max_body} bytes",
                "",
            )

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    response_headers.setdefault(name, value)
            await send(message)

        if refused is not None:
            extra = {"WWW-Authenticate": "Bearer"} if refused[0] is HTTPStatus.UNAUTHORIZED else None
            await problem(*refused, headers=extra)(scope, receive, send_hardened)
            return
        await self._app(scope, self._limited(receive, large=large), send_hardened)

    def _is_own(self, scope: Scope) -> bool:
        client, server = scope.get("client"), scope.get("server")
        if self._rules.is_own is None or client is None or server is None:
            return False
        return self._rules.is_own(tuple(client), tuple(server))

    def _limited(self, receive: Receive, *, large: bool) -> Receive:
        """`receive` with limits on size and time."""
        rules, received, complete = self._rules, 0, False
        body_deadline = trio.current_time() + rules.body_s

        async def limited() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()  # waits for the client's disconnect
            with trio.move_on_at(trio.current_time() + rules.stall_s if large else body_deadline):
                message = await receive()
                received += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if received > rules.max_body and not large:
                    raise HTTPException(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {rules.max_body} bytes"
                    )
                return message
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "the request's body did not arrive in time")

        return limited


# -- the token -----------------------------------------------------------------------------------------------------------------


def own_token(path: Path) -> str:
    """This home's token, generated if missing. Servers that start at the same time agree on one token. Raises like `read_token`, and
    `ResourceError` if other users can read the file."""
    if not path.exists():
        _generate(path)
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise _unreadable(path, exc) from None
    if sys.platform != "win32" and stat.S_IMODE(mode) & 0o077:
        raise ResourceError(
            f"{path} is readable by other users",
            hint=f"remove the file to generate a new token, or run: chmod 600 {path}",
        )
    return read_token(path)


def read_token(path: Path) -> str:
    """The token in a file. Raises `ResourceError` if it cannot be read, `CampaignError` if it is not a token."""
    try:
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN + 1).decode("ascii", "replace").strip()
    except OSError as exc:
        raise _unreadable(path, exc) from None
    valid = token.isascii() and token.isprintable() and " " not in token
    if not valid or not MIN_TOKEN <= len(token) <= MAX_TOKEN:
        raise CampaignError(
            f"{path}: a token has at least {MIN_TOKEN} characters and no spaces",
            hint="generate one: openssl rand -hex 32",
        )
    return token


def _generate(path: Path) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    write_durably(fresh, f"{secrets.token_urlsafe(32)}\n".encode())
    try:
        with contextlib.suppress(FileExistsError):  # another server was faster: use its token
            os.link(fresh, path)
    except OSError:  # a file system without links
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
        sync_folder(path.parent)


def _unreadable(path: Path, error: OSError) -> ResourceError:
    return ResourceError(f"cannot read {path}: {error.strerror}", hint="name a file that contains the token")

"""At the door, before any endpoint: who may ask, from where, and how much they may send. And what every answer carries.

Host     names this server: what a page of another site reaches by a name of its own (DNS rebinding) is refused
Origin   is this server's own, where a browser tells one: a page of another site cannot submit
token    beyond loopback every request but for the pages' own files bears it
size     a body longer than allowed is refused, also when its length was not told, and one that does not come on
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv6Address
from typing import Final

import trio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from web.http.problems import problem

MAX_BODY: Final = 4 * 1024 * 1024
"""Bytes of a request, but for those whose path says otherwise."""

BODY_S: Final = 60.0
"""Until an ordinary request's body is here."""
STALL_S: Final = 30.0
"""Without a byte of a large one."""

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
"""With every answer. An endpoint may say another `Cache-Control`, and a report a policy of its own."""

OWN_SITE: Final = frozenset({"none", "same-origin"})
"""What browsers say of a request from a page of ours, or of what somebody typed. Another port of this machine is another site."""

_AUTHORITY: Final = re.compile(r"(?:\[([0-9a-fA-F:.]{2,45})\]|([a-zA-Z0-9._-]{1,253}))(?::[0-9]{1,5})?")
"""A host, and a port if it is not the usual one: nothing before it, such as `name@`, and nothing behind."""

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Who may ask. `names`: host names and addresses by which this server may be called; `token` None: none is needed."""

    names: Collection[str] = LOOPBACK_NAMES
    token: str | None = None
    open_paths: Collection[str] = ("/", "/docs")
    """Paths that need no token: the pages themselves, which ask for it."""
    open_folders: Collection[str] = ("/static/",)
    large: Collection[str] = ("/api/v1/models",)
    """Paths whose bodies have their own limit, which the endpoint keeps."""
    max_body: int = MAX_BODY
    body_s: float = BODY_S
    stall_s: float = STALL_S


def refusal(
    rules: AccessRules, path: str, headers: Headers, query: bytes = b""
) -> tuple[HTTPStatus, str, str] | None:
    """Why a request with these headers is refused: status, what, what to do. None: it is not. `path`: decoded; `query`: as it came."""
    host = _host(headers.get("host", ""))
    if host not in rules.names:
        return (
            HTTPStatus.MISDIRECTED_REQUEST,
            "this server is not called by that name",
            "use the address that `sark-node serve` prints, or tell it the name: --name HOST",
        )
    origin = headers.get("origin")
    own = headers.get("host", "").lower()
    if origin is not None and origin.lower() not in (f"http://{own}", f"https://{own}"):
        return HTTPStatus.FORBIDDEN, "a page of another site may not ask here", ""
    if headers.get("sec-fetch-site", "none") not in OWN_SITE and path not in rules.open_paths:
        return HTTPStatus.FORBIDDEN, "a page of another site may not ask here", ""
    if (
        "transfer-encoding" in headers and "content-length" in headers
    ):  # whoever stands between reads one of them
        return (
            HTTPStatus.BAD_REQUEST,
            "a body of two lengths",
            "send Content-Length or Transfer-Encoding, not both",
        )
    if "\x00" in path or b"%00" in query:  # no name holds it, and PostgreSQL takes none
        return HTTPStatus.BAD_REQUEST, "a zero byte in the address", ""
    if (
        rules.token is not None
        and path not in rules.open_paths
        and not path.startswith(tuple(rules.open_folders))
    ):
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        good = hmac.compare_digest(shown.strip().encode(), rules.token.encode())
        if scheme.lower() != "bearer" or not good:
            return (
                HTTPStatus.UNAUTHORIZED,
                "this server wants its token",
                "send it as: Authorization: Bearer TOKEN; `sark-node serve` says where it is",
            )
    return None


def _host(header: str) -> str:
    """The name in a Host header, in lower case, without port and brackets; nothing when it cannot be read."""
    found = _AUTHORITY.fullmatch(header)
    if found is None:
        return ""
    try:
        return str(IPv6Address(found[1])) if found[1] else found[2].lower()
    except ValueError:
        return ""


class AccessMiddleware:
    """ASGI middleware that applies `AccessRules` to every request."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here speaks websocket
            await send({"type": "websocket.close", "code": 1000})
            return
        headers, path = Headers(scope=scope), scope["path"]
        why = refusal(self._rules, path, headers, scope.get("query_string", b""))
        large = path in self._rules.large
        length = headers.get("content-length", "0")
        if why is None and not large and (not length.isdecimal() or int(length) > self._rules.max_body):
            why = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {self._rules.max_body} bytes", "")

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    told.setdefault(name, value)
            await send(message)

        if why is not None:
            extra = {"WWW-Authenticate": "Bearer"} if why[0] is HTTPStatus.UNAUTHORIZED else None
            await problem(*why, headers=extra)(scope, receive, hardened)
            return
        await self._app(scope, self._counted(receive, large=large), hardened)

    def _counted(self, receive: Receive, *, large: bool) -> Receive:
        """What the endpoint hears: no more than it should, and not for longer."""
        rules, came, over = self._rules, 0, False
        until = trio.current_time() + rules.body_s

        async def counted() -> Message:
            nonlocal came, over
            if over:
                return await receive()  # what comes now is that the client has gone
            deadline = trio.current_time() + rules.stall_s if large else until
            with trio.move_on_at(deadline):
                message = await receive()
                came += len(message.get("body", b""))
                over = not message.get("more_body", False)
                if came > rules.max_body and not large:
                    raise HTTPException(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {rules.max_body} bytes"
                    )
                return message
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "the request's body did not come in time")

        return counted

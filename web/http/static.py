"""The dashboard's own files: read from the package, named one by one when the server starts, so that no path leads elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from fastapi import APIRouter, Request, Response

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}

PATHS: Final = {"index.html": "/", "docs.html": "/docs"}
"""Pages by their own names; all else is below /static."""


def router() -> APIRouter:
    """`/` and `/static/…`. A browser keeps a file for as long as its content is the same."""
    pages = APIRouter(include_in_schema=False)
    for name, content in _found(files("web") / "dashboard"):
        path = PATHS.get(name, f"/static/{name}")
        pages.add_api_route(path, _answer(name, content), methods=["GET", "HEAD"])
    return pages


def _found(folder: Traversable, above: str = "") -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _found(item, f"{above}{item.name}/")
        elif item.name.rpartition(".")[2] in _TYPES:
            found.append((above + item.name, item.read_bytes()))
    return found


def _answer(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)

    return answer

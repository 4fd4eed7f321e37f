"""The dashboard's files, read once from the package, so that a path can only name one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator
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
PAGES: Final = ("/", "/docs")
"""Paths of index.html; all other files are below /static."""


def router() -> APIRouter:
    """`/`, `/docs` and `/static/…`, with ETags."""
    api = APIRouter(include_in_schema=False)
    for name, content in _read_files(files("web") / "dashboard"):
        for path in PAGES if name == "index.html" else [f"/static/{name}"]:
            api.add_api_route(path, _endpoint(name, content), methods=["GET", "HEAD"])
    return api


def _read_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _read_files(item, f"{prefix}{item.name}/")
        elif item.name.rpartition(".")[2] in _TYPES:
            yield prefix + item.name, item.read_bytes()


def _endpoint(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)

    return endpoint

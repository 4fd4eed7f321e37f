"""Errors over HTTP: one JSON object as in RFC 9457, with a hint.

    {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "no campaign 'c-x' on this home",
     "hint": "list campaigns: /api/v1/campaigns", "error": "no campaign 'c-x' on this home"}

Clients of the predecessor's API read `error`.
"""

from __future__ import annotations

import traceback
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from protocol.errors import CampaignError, SarkError, StoreUnreachable
from swarm.base.text import safe_text

MEDIA_TYPE: Final = "application/problem+json"
MAX_TEXT: Final = 2000
"""Most characters of `detail` and `hint`, which may quote the client."""
LOGGED_FRAMES: Final = 6

log = structlog.get_logger("sark.api")

_STATUS: Final = {2: 422, 3: 409, 4: 424, 5: 403, 6: 507}
"""The command line's exit code → HTTP status. 424: a peer that this server needs is unreachable."""


_RENAMED: Final = {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}
"""Names from RFC 9110 and Python 3.13, so that the API uses the same names on older versions of Python."""


def phrase(status: int) -> str:
    """The name of the status."""
    return _RENAMED.get(status) or HTTPStatus(status).phrase


class Problem(BaseModel):
    """An error."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    hint: str = ""
    error: str
    line: int | None = None
    """Line of the error in the campaign's text."""


class HttpProblem(Exception):
    """Ends the request with a `Problem`. May be raised anywhere below an endpoint."""

    def __init__(self, status: int, detail: str, *, hint: str = "") -> None:
        super().__init__(detail)
        self.status, self.detail, self.hint = status, detail, hint


def problem(
    status: int,
    detail: str,
    hint: str = "",
    headers: dict[str, str] | None = None,
    *,
    line: int | None = None,
) -> JSONResponse:
    """The response of an error, with control characters escaped and long texts truncated."""
    detail, hint = safe_text(detail, MAX_TEXT), safe_text(hint, MAX_TEXT)
    body = Problem(title=phrase(status), status=status, detail=detail, hint=hint, error=detail, line=line)
    return JSONResponse(
        body.model_dump(exclude_none=True), status_code=status, media_type=MEDIA_TYPE, headers=headers
    )


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of an endpoint: the error statuses that are specific to it."""
    return {
        status: {
            "model": Problem,
            "description": _RENAMED.get(status) or HTTPStatus(status).description or phrase(status),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def file_of(*types: str, description: str = "The file.") -> dict[int | str, dict[str, Any]]:
    """`responses` of an endpoint that returns a file of these media types."""
    schema = {"application/json": {"schema": {"type": "object"}}}
    content = {media_type: schema.get(media_type, {}) for media_type in types}
    return {200: {"description": description, "content": content}}


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error with a `Problem`; log bugs."""

    @app.exception_handler(HttpProblem)
    async def http_problem(request: Request, exc: HttpProblem) -> JSONResponse:
        return problem(exc.status, exc.detail, exc.hint)

    @app.exception_handler(SarkError)
    async def sark_error(request: Request, exc: SarkError) -> JSONResponse:
        line = exc.line if isinstance(exc, CampaignError) else None
        status = 503 if isinstance(exc, StoreUnreachable) else _STATUS.get(exc.exit_code, 400)
        return problem(status, exc.what, exc.hint, line=line)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, exc: RequestValidationError) -> JSONResponse:
        error = exc.errors()[0]
        where = ".".join(str(part) for part in error["loc"])
        return problem(422, f"{where}: {error['msg']}", "see /docs")

    @app.exception_handler(HTTPException)
    async def http_exception(request: Request, exc: HTTPException) -> JSONResponse:
        hint = "see /docs for all endpoints" if exc.status_code == 404 else ""
        return problem(exc.status_code, str(exc.detail), hint, dict(exc.headers or {}))

    @app.exception_handler(Exception)
    async def bug(request: Request, exc: Exception) -> JSONResponse:
        route = getattr(request.scope.get("route"), "path", "")
        frames = traceback.extract_tb(exc.__traceback__)[-LOGGED_FRAMES:]  # no values: they may be tokens
        at = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
        log.error("api.bug", method=request.method, route=route, error=type(exc).__name__, at=at)
        return problem(500, "internal error", "see the server's log, and please report it")

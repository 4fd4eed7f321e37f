"""Errors over HTTP: one JSON object after RFC 9457, with a hint.

    {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "no campaign 'c-x' on this home",
     "hint": "list campaigns: /api/v1/campaigns", "error": "no campaign 'c-x' on this home"}

Clients of the predecessor's API read `error`.
"""

from __future__ import annotations

import traceback
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from protocol.errors import CampaignError, SarkError
from swarm.base.text import safe_text

MEDIA_TYPE: Final = "application/problem+json"
MAX_TEXT: Final = 2000
"""Characters of `detail` and `hint`, which may quote the client."""
LOGGED_FRAMES: Final = 6

log = structlog.get_logger("sark.api")

_STATUS: Final[dict[int, HTTPStatus]] = {
    2: HTTPStatus.UNPROCESSABLE_ENTITY,
    3: HTTPStatus.CONFLICT,
    4: HTTPStatus.FAILED_DEPENDENCY,  # this server is well; a peer that it needs is unreachable
    5: HTTPStatus.FORBIDDEN,
    6: HTTPStatus.INSUFFICIENT_STORAGE,
}
"""By the exit code that the command line would end with."""


class Problem(BaseModel):
    """What went wrong."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    hint: str = ""
    error: str
    line: int | None = None
    """Line of the campaign's text that is wrong."""


class HttpProblem(Exception):
    """Ends the request with a `Problem`. Raised anywhere below an endpoint."""

    def __init__(self, status: HTTPStatus, detail: str, *, hint: str = "") -> None:
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
    """The response, with control characters escaped and long texts cut."""
    detail, hint = safe_text(detail, MAX_TEXT), safe_text(hint, MAX_TEXT)
    body = Problem(
        title=HTTPStatus(status).phrase, status=status, detail=detail, hint=hint, error=detail, line=line
    )
    return JSONResponse(
        body.model_dump(exclude_none=True), status_code=status, media_type=MEDIA_TYPE, headers=headers
    )


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error with a `Problem`; log bugs."""

    @app.exception_handler(HttpProblem)
    async def http_problem(request: Request, exc: HttpProblem) -> JSONResponse:
        return problem(exc.status, exc.detail, exc.hint)

    @app.exception_handler(SarkError)
    async def sark_error(request: Request, exc: SarkError) -> JSONResponse:
        line = exc.line if isinstance(exc, CampaignError) else None
        return problem(_STATUS.get(exc.exit_code, HTTPStatus.BAD_REQUEST), exc.what, exc.hint, line=line)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, exc: RequestValidationError) -> JSONResponse:
        error = exc.errors()[0]
        where = ".".join(str(part) for part in error["loc"])
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {error['msg']}", "see /docs")

    @app.exception_handler(HTTPException)
    async def http_exception(request: Request, exc: HTTPException) -> JSONResponse:
        hint = "see /docs for all endpoints" if exc.status_code == HTTPStatus.NOT_FOUND else ""
        return problem(exc.status_code, str(exc.detail), hint, dict(exc.headers or {}))

    @app.exception_handler(Exception)
    async def bug(request: Request, exc: Exception) -> JSONResponse:
        route = getattr(request.scope.get("route"), "path", "")
        frames = traceback.extract_tb(exc.__traceback__)[
            -LOGGED_FRAMES:
        ]  # without values: one may be a token
        at = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
        log.error("api.bug", method=request.method, route=route, error=type(exc).__name__, at=at)
        return problem(
            HTTPStatus.INTERNAL_SERVER_ERROR, "internal error", "see the server's log, and please report it"
        )

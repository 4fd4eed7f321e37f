"""What is answered when something is wrong: one JSON object, as RFC 9457 names its members, with our line for what to do.

    {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "no campaign 'c-x' on this home",
     "hint": "list them: sark-node campaigns", "error": "no campaign 'c-x' on this home"}

`error` is where the first system's clients look.
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
"""Letters of what is wrong, which may hold words of the client's."""
FRAMES: Final = 6
"""Places of a mistake of ours that the log tells."""

log = structlog.get_logger("sark.api")

_STATUS: Final[dict[int, HTTPStatus]] = {
    2: HTTPStatus.UNPROCESSABLE_ENTITY,
    3: HTTPStatus.CONFLICT,
    4: HTTPStatus.FAILED_DEPENDENCY,  # this server is well; who was to be asked for the client is not there
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
    """Of a campaign's text, where it is that which is wrong."""


class InvalidField(Exception):
    """An answer that is not 2xx, raised anywhere below an endpoint."""

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
    """The answer: on one line, without what cannot be seen or written."""
    detail, hint = safe_text(detail, MAX_TEXT), safe_text(hint, MAX_TEXT)
    told = Problem(
        title=HTTPStatus(status).phrase, status=status, detail=detail, hint=hint, error=detail, line=line
    ).model_dump(exclude_none=True)
    return JSONResponse(told, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def tell_problems(app: FastAPI) -> None:
    """Answer every error that is not a bug with a `Problem`."""

    @app.exception_handler(InvalidField)
    async def wrong(request: Request, exc: InvalidField) -> JSONResponse:
        return problem(exc.status, exc.detail, exc.hint)

    @app.exception_handler(SarkError)
    async def ours(request: Request, exc: SarkError) -> JSONResponse:
        line = exc.line if isinstance(exc, CampaignError) else None
        return problem(_STATUS.get(exc.exit_code, HTTPStatus.BAD_REQUEST), exc.what, exc.hint, line=line)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, exc: RequestValidationError) -> JSONResponse:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {first['msg']}", "see /docs")

    @app.exception_handler(HTTPException)
    async def http(request: Request, exc: HTTPException) -> JSONResponse:
        hint = "see /docs for what there is" if exc.status_code == HTTPStatus.NOT_FOUND else ""
        return problem(exc.status_code, str(exc.detail), hint, dict(exc.headers or {}))

    @app.exception_handler(Exception)
    async def bug(request: Request, exc: Exception) -> JSONResponse:
        route = getattr(request.scope.get("route"), "path", "")
        frames = traceback.extract_tb(exc.__traceback__)[-FRAMES:]  # and no values: a token may be among them
        at = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
        log.error("api.bug", method=request.method, route=route, error=type(exc).__name__, at=at)
        return problem(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "a mistake of ours",
            "the server's log says more: please report it",
        )

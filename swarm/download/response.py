"""Checks the head of an HTTP response against the request. Pure; `download.py` sends the request and reads the body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.errors import Refused, Unreachable
from protocol.words import Reason
from swarm.download.urls import FileUrl

_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_TAG: Final = re.compile(r'"[!#-~]{1,200}"')
"""Only strong tags: a weak one may stand for other bytes."""


class FileChanged(Refused):
    """The URL now serves a different file than the part already here, or a file of a different size."""

    def __init__(self, what: str) -> None:
        super().__init__(what, reason=Reason.WRONG_HASH)


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The bytes to request, and of which version of a file."""

    offset: int
    """The first byte."""
    tag: str
    """The version of the bytes before `offset`; empty if unknown."""
    size: int | None
    """Size of the whole file; None if unknown."""
    limit: int
    """Largest allowed size of the whole file."""
    end: int | None = None
    """The byte after the last; None: the end of the file."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What the server says about the file before the first byte."""

    url: FileUrl
    """Where the redirects ended."""
    total: int | None
    """Bytes of the whole file; None if the server does not say."""
    tag: str
    """Strong ETag of this version, used to resume; empty if there is none."""
    begins: int
    """The body's offset in the file: the one requested, or 0."""
    counted: bool
    """The framing of the body shows whether it was cut short."""


def check_response(
    url: FileUrl, status: int, headers: Mapping[str, str], request: RangeRequest
) -> ResponseHead:
    """The head of the response, if it is for the requested file or its rest. `headers`: names in lower case.

    Raises `Refused`, `FileChanged`, and `Unreachable` if a retry may help.
    """
    _check_status(url, status)
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise Refused(
            f"{url.shown} sends the file compressed ({coding[:20]}), which was not requested",
            reason=Reason.BAD_REQUEST,
        )
    begins, total = _extent(url, status, headers, request)
    etag = headers.get("etag", "")
    tag = etag if _TAG.fullmatch(etag) else ""
    if request.tag and tag != request.tag:
        raise FileChanged(f"{url.shown} has changed since its first part was fetched")
    if total is not None and request.size is not None and total != request.size:
        raise FileChanged(f"{url.shown} holds {total:,} bytes now, not the {request.size:,} of the model")
    if total is not None and total > request.limit:
        raise Refused(
            f"{url.shown} holds {total:,} bytes; at most {request.limit:,} are fetched",
            reason=Reason.DISK_FULL,
        )
    if total is not None and request.offset > total:
        raise FileChanged(f"{url.shown} holds {total:,} bytes now, fewer than were fetched already")
    counted = total is not None or headers.get("transfer-encoding", "").strip().lower() == "chunked"
    if not counted and request.size is None:
        raise Refused(f"{url.shown}: the server does not say how long the file is", reason=Reason.BAD_REQUEST)
    return ResponseHead(url, total, tag, begins, counted)


def _check_status(url: FileUrl, status: int) -> None:
    if status in (200, 206):
        return
    if status in (408, 425, 429) or status >= 500:
        raise Unreachable(f"{url.host} answers {status} for {url.shown}")
    what = {
        401: "requires a login (401): the file is not public",
        403: "denies access to the file (403)",
        404: "has no such file (404)",
        410: "no longer has the file (410)",
        416: "does not have that part of the file (416)",
    }
    raise Refused(
        f"{url.shown}: the server {what.get(status, f'answers {status}')}",
        reason=Reason.NOT_ALLOWED if status in (401, 403) else Reason.UNKNOWN,
    )


def _extent(
    url: FileUrl, status: int, headers: Mapping[str, str], request: RangeRequest
) -> tuple[int, int | None]:
    """The body's offset in the file, and the size of the file. Raises `Refused` if the response contradicts itself."""
    length = headers.get("content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        raise Refused(
            f"{url.shown}: the server states a length that is not a number", reason=Reason.BAD_REQUEST
        )
    if status == 200 and request.end is None:
        return 0, None if length is None else int(length)
    if status == 200:
        raise Refused(
            f"{url.shown}: the server does not support partial downloads", reason=Reason.BAD_REQUEST
        )
    match = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    part = request.offset > 0 or request.end is not None
    if not part or match is None or int(match[1]) != request.offset:
        raise Refused(
            f"{url.shown}: the server sent another part of the file than requested", reason=Reason.BAD_REQUEST
        )
    total = None if match[3] == "*" else int(match[3])
    end = request.end if request.end is not None else total
    if (length is not None and int(length) != int(match[2]) - int(match[1]) + 1) or (
        end is not None and int(match[2]) + 1 != end
    ):
        raise Refused(
            f"{url.shown}: the server sent a part whose length differs from the stated length",
            reason=Reason.BAD_REQUEST,
        )
    return request.offset, total

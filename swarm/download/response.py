"""The head of a web server's answer, held against what was asked for. Pure; `downloading.py` asks and takes the body."""

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
"""Only strong ones: a weak one may stand for other bytes."""


class FileChanged(Refused):
    """The URL gives another file than the one whose first part is here, or whose size is known."""

    def __init__(self, what: str) -> None:
        super().__init__(what, reason=Reason.WRONG_HASH)


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """What was asked for."""

    offset: int
    """The file from this byte on."""
    tag: str
    """The version that the bytes before it are of; empty: not known."""
    size: int | None
    """What the whole must have; None: not known."""
    limit: int
    """What the whole may have at most."""
    end: int | None = None
    """Only up to this byte of it, not included; None: all that follows."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What the server says before the first byte."""

    place: FileUrl
    """Where the redirects ended."""
    total: int | None
    """Bytes of the whole file; None: it does not say."""
    tag: str
    """Strong name of this version of the file, for going on later; empty: it has none."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer whose body may be taken."""

    head: ResponseHead
    begins: int
    """Where its body begins in the file: at the byte asked for, or at 0."""
    counted: bool
    """Its end shows: a body that is cut short is seen to be."""


def read_answer(place: FileUrl, status: int, headers: Mapping[str, str], asked: RangeRequest) -> Response:
    """The answer, if it is the file that was asked for, or its rest. `headers`: by name in small letters.

    Raises `Refused`, `FileChanged`, and `Unreachable` where the server may do better another time.
    """
    _check_status(place, status)
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise Refused(
            f"{place.shown} sends it compressed ({coding[:20]}), unasked", reason=Reason.BAD_REQUEST
        )
    begins, total = _extent(place, status, headers, asked)
    found = headers.get("etag", "")
    tag = found if _TAG.fullmatch(found) else ""
    if asked.tag and tag != asked.tag:
        raise FileChanged(f"{place.shown} has changed since its first part was fetched")
    if total is not None and asked.size is not None and total != asked.size:
        raise FileChanged(f"{place.shown} holds {total:,} bytes now, not the {asked.size:,} of the model")
    if total is not None and total > asked.limit:
        raise Refused(
            f"{place.shown} holds {total:,} bytes; at most {asked.limit:,} are fetched",
            reason=Reason.DISK_FULL,
        )
    if total is not None and asked.offset > total:
        raise FileChanged(f"{place.shown} holds {total:,} bytes now, less than are here already")
    counted = total is not None or headers.get("transfer-encoding", "").strip().lower() == "chunked"
    if not counted and asked.size is None:
        raise Refused(f"{place.shown}: the server does not say how long it is", reason=Reason.BAD_REQUEST)
    return Response(ResponseHead(place, total, tag), begins, counted)


def _check_status(place: FileUrl, status: int) -> None:
    if status in (200, 206):
        return
    if status in (408, 425, 429) or status >= 500:
        raise Unreachable(f"{place.host} answers {status} for {place.shown}")
    what = {
        401: "asks who we are (401): it is not public",
        403: "does not give it to us (403)",
        404: "has no such file (404)",
        410: "has it no more (410)",
        416: "has no such part of it (416)",
    }
    raise Refused(
        f"{place.shown}: the server {what.get(status, f'answers {status}')}",
        reason=Reason.NOT_ALLOWED if status in (401, 403) else Reason.UNKNOWN,
    )


def _extent(
    place: FileUrl, status: int, headers: Mapping[str, str], asked: RangeRequest
) -> tuple[int, int | None]:
    """Where the body begins in the file, and the file's size. Raises `Refused` for an answer that contradicts itself."""
    length = headers.get("content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        raise Refused(f"{place.shown}: a length that is no number", reason=Reason.BAD_REQUEST)
    if status == 200 and asked.end is None:
        return 0, None if length is None else int(length)
    if status == 200:
        raise Refused(f"{place.shown}: the server sends no parts of files", reason=Reason.BAD_REQUEST)
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    part = asked.offset > 0 or asked.end is not None
    if not part or found is None or int(found[1]) != asked.offset:
        raise Refused(
            f"{place.shown}: another part of the file than was asked for", reason=Reason.BAD_REQUEST
        )
    total = None if found[3] == "*" else int(found[3])
    end = asked.end if asked.end is not None else total
    if (length is not None and int(length) != int(found[2]) - int(found[1]) + 1) or (
        end is not None and int(found[2]) + 1 != end
    ):
        raise Refused(f"{place.shown}: a part of another length than it says", reason=Reason.BAD_REQUEST)
    return asked.offset, total

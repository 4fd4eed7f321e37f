"""HTTP/1.1 as far as the client of `drivers.openai.client` needs it: one response after another, from raw bytes. Pure.

The standard library's readers block and httpx stamps a piece of text after it has been through four layers; here the bytes are
stamped first and read later. A body is in chunks, of a known length, or all that comes until the connection ends.
"""

from __future__ import annotations

import re
from typing import Final

MAX_HEAD: Final = 32 * 1024
_DIGITS: Final = re.compile(rb"[0-9]{1,12}")
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,8}")


class BrokenResponse(Exception):
    """The server sent what is no answer; one sentence."""


class Http:
    """Reads one HTTP/1.1 response: bytes in, bytes of its body out. `done` once it is whole; `keep` if the connection may go on."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.done = False
        self.keep = True
        self._buffer = bytearray()
        self._left: int | None = None
        """Bytes of the body, or of its chunk, still to come; None: until the connection ends."""
        self._chunked = False
        self._state = "head"

    @property
    def begun(self) -> bool:
        """Something has come."""
        return self.status != 0 or bool(self._buffer)

    def feed(self, data: bytes) -> bytes:
        """What of the body has come. Raises `BrokenResponse`."""
        self._buffer += data
        body = bytearray()
        while self._step(body):
            pass
        return bytes(body)

    def end(self) -> None:
        """The connection has ended. Raises `BrokenResponse` when more was due."""
        if self._state == "body" and self._left is None and not self._chunked:
            self.done = True
        if not self.done:
            raise BrokenResponse("the connection ended before the answer did")

    def _step(self, body: bytearray) -> bool:
        if self.done:
            if self._buffer:
                self.keep = False  # more than was announced: not to be mixed into the next answer
            return False
        if self._state == "head":
            return self._read_head()
        if self._state == "body":
            return self._read_body(body)
        line = self._line()
        if line is None:
            return False
        if self._state == "size":
            size = line.partition(b";")[0].strip()
            if not _HEX.fullmatch(size):
                raise BrokenResponse("the answer is not in chunks as it says")
            self._left = int(size, 16)
            self._state = "body" if self._left else "trailers"
        elif self._state == "gap":
            if line:
                raise BrokenResponse("the answer is not in chunks as it says")
            self._state = "size"
        elif not line:  # the end of the trailers
            self.done = True
        return True

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise BrokenResponse("the answer is not in chunks as it says")
            return None
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        return line

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise BrokenResponse(
                    f"the head of the answer is longer than {MAX_HEAD // 1024} KiB, or is none"
                )
            if not b"HTTP/".startswith(self._buffer[:5]):
                raise BrokenResponse("this is no HTTP")
            return False
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        words = first.split(b" ", 2)
        if (
            not first.startswith(b"HTTP/1.")
            or len(words) < 2
            or not re.fullmatch(rb"[1-5][0-9][0-9]", words[1])
        ):
            raise BrokenResponse("this is no HTTP/1.1")
        self.status = int(words[1])
        self.headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
        }
        if self.status < 200:  # such as 100 Continue: the answer itself comes after it
            return True
        connection = self.headers.get(b"connection", b"").lower()
        self.keep = connection != b"close" and (first.startswith(b"HTTP/1.1") or connection == b"keep-alive")
        self._chunked = b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
        length = self.headers.get(b"content-length")
        self._state = "size" if self._chunked else "body"
        if self._chunked:
            return True
        if length is not None:
            if not _DIGITS.fullmatch(length):
                raise BrokenResponse("the answer's length is no number")
            self._left = int(length)
            self.done = self._left == 0
        elif self.status in (204, 304):
            self.done = True
        else:
            self.keep = False
        return True

    def _read_body(self, body: bytearray) -> bool:
        taken = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        body += self._buffer[:taken]
        del self._buffer[:taken]
        if self._left is None:
            return False
        self._left -= taken
        if self._left:
            return False
        if self._chunked:
            self._state = "gap"
        else:
            self.done = True
        return True

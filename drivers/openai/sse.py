"""One response of an OpenAI-compatible server, read from its raw bytes and the times at which they arrived. Pure.

    bytes + nanoseconds ──▶ HTTP/1.1 (h11) ──▶ lines `data: {…}` ──▶ when text arrived, how much, and what `usage` says

Nothing is trusted: heads, lines and whole responses are bounded, and any violation of the protocol ends the response with a sentence.
Redirects are not followed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import h11

MAX_HEAD: Final = 32 * 1024
MAX_LINE: Final = 256 * 1024
MAX_BODY: Final = 4 * 1024 * 1024
"""Most bytes of a response that is not a stream."""
BYTES_PER_TOKEN: Final = 2048
"""Most bytes of a stream per token, on top of `MAX_LINE`: servers wrap each token in 200 to 400 bytes."""
TEXT_PER_TOKEN: Final = 64
ANSWER, REASONING = ("content", "text"), ("reasoning_content", "reasoning")
"""Keys under which servers put text."""
MAX_ERROR: Final = 200
MAX_TOKENS: Final = 2**31


class BrokenResponse(Exception):
    """The server sent something other than a valid response; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One request, as its client observed it. Times in nanoseconds since it was sent; None: not observed."""

    error: str = ""
    """Why the request is not complete, in one sentence: it failed, or broke off after some text (`pieces`)."""
    ttft_ns: int | None = None
    """Time to the first piece with text; None if not streamed."""
    e2e_ns: int | None = None
    """Time to the last piece with text; if not streamed, to the end of the response."""
    itl_ns: tuple[int, ...] = ()
    """Times between pieces with text."""
    pieces: int = 0
    """Pieces with text; a server may put several tokens into one piece."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    sha256: str = ""
    text: str = ""
    """The answer without the server's reasoning; also empty if it was not kept."""
    status: int = 0
    sent_ns: int = 0
    """When the request was sent, by the client's clock."""
    lag_ns: int = 0
    """How long after its planned time the request was sent."""

    @property
    def tpot_ns(self) -> int | None:
        """Time per output token after the first."""
        if self.ttft_ns is None or self.e2e_ns is None or not self.output_tokens or self.output_tokens < 2:
            return None
        return round((self.e2e_ns - self.ttft_ns) / (self.output_tokens - 1))


class ResponseParser:
    """Builds a `RequestResult` from bytes. Times are of one monotonic clock.

    `generates`: False for any document, kept as `body`.
    """

    def __init__(self, *, max_tokens: int = 1, stream: bool = True, generates: bool = True) -> None:
        self.sent_ns = 0
        self.error = ""
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        """The body of a response that is not a stream, or of an error."""
        self.begun = False
        """Whether the server has sent anything."""
        self._max_tokens, self._stream, self._generates = max_tokens, stream, generates
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._streams = False
        self._whole = False
        self._finished = False
        self._line = bytearray()
        self._bytes = 0
        self._stamps: list[int] = []
        self._text: list[str] = []
        self._answer: list[str] = []
        self._length = 0
        self._usage: tuple[int | None, int | None] = (None, None)
        self._now = 0

    def request(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes = b"") -> bytes:
        """The bytes of the request that this response answers."""
        head = self._http.send(h11.Request(method=method, target=target, headers=headers))
        content = self._http.send(h11.Data(body)) if body else b""
        return (head or b"") + (content or b"") + (self._http.send(h11.EndOfMessage()) or b"")

    @property
    def done(self) -> bool:
        """Whether no more bytes are expected."""
        return bool(self.error) or self._whole

    @property
    def keeps_connection(self) -> bool:
        """Whether the connection may serve another request."""
        states = self._http.our_state, self._http.their_state
        return not self.error and states == (h11.DONE, h11.DONE) and not self._http.trailing_data[0]

    def feed(self, now_ns: int, data: bytes) -> None:
        """Take bytes that arrived at `now_ns`; empty: the connection has ended. Any error in them ends the response."""
        if self.error:
            return
        if not self.begun and not b"HTTP/".startswith(data[:5]):
            self.fail("this is not HTTP")
            return
        self.begun = self.begun or bool(data)
        self._now = now_ns if data else self._now
        try:
            self._http.receive_data(data)
            while not self.done:
                match self._http.next_event():
                    case h11.Response(status_code=status, headers=headers):
                        self._head(status, dict(headers))
                    case h11.Data(data=body):
                        self._take(bytes(body))
                    case h11.EndOfMessage():
                        self._end()
                    case h11.InformationalResponse():
                        pass
                    case _:  # NEED_DATA
                        break
        except BrokenResponse as why:
            self.fail(str(why))
        except h11.RemoteProtocolError as why:
            broken = str(why).partition(":")[0]  # the rest quotes the server
            self.fail(
                f"this is not HTTP/1.1: {broken}" if data else "the connection ended before the response did"
            )

    def fail(self, error: str) -> None:
        """End the response with an error; only the first error counts."""
        self.error = self.error or error

    def retry(self) -> None:
        """Forget that the connection was lost before anything arrived."""
        self.error = ""
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)

    def _head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.status, self.headers = status, headers
        if 300 <= status < 400:
            raise BrokenResponse(f"HTTP {status}: it redirects, which is not followed: give the final URL")
        self._streams = (
            self._generates
            and self._stream
            and status == 200
            and headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        )

    def _take(self, data: bytes) -> None:
        self._bytes += len(data)
        if not self._streams:
            if self._bytes > MAX_BODY:
                raise BrokenResponse(f"the response is longer than {MAX_BODY // 1024**2} MiB")
            self.body += data
            return
        if self._bytes > MAX_LINE + self._max_tokens * BYTES_PER_TOKEN:
            raise BrokenResponse(f"the response is longer than {self._max_tokens} tokens can be")
        self._line += data
        if b"\n" in data:
            *lines, self._line = self._line.split(b"\n")
            for line in lines:
                self._event(bytes(line))
        if len(self._line) > MAX_LINE:
            raise BrokenResponse(f"a line of the response is longer than {MAX_LINE // 1024} KiB")

    def _event(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return  # a comment, a blank line or the name of an event
        payload = line[5:].strip()
        if payload == b"[DONE]":
            self._finished = True
            return
        chunk = _object(payload, "a line of the stream")
        self._read_usage(chunk)
        if "error" in chunk:
            raise BrokenResponse(f"the server reports an error: {error_text(payload)}")
        for choice in _choices(chunk)[:1]:
            if text := text_of(choice):
                self._add(text, text_of(choice, ANSWER))
            if choice.get("finish_reason"):
                self._finished = True

    def _add(self, text: str, answer: str) -> None:
        self._stamps.append(self._now)
        self._text.append(text)
        self._answer.append(answer)
        self._length += len(text)
        longest = MAX_LINE + self._max_tokens * TEXT_PER_TOKEN
        if self._length > longest or len(self._stamps) > 16 + 2 * self._max_tokens:
            raise BrokenResponse(f"the server sent more text than {self._max_tokens} tokens can hold")

    def _end(self) -> None:
        """The response is complete: check whether it has what was asked for."""
        self._whole = True
        if not self._generates:
            return
        if self.status != 200:
            raise BrokenResponse(f"HTTP {self.status}: {error_text(bytes(self.body))}")
        if self._streams:
            if not self._stamps:
                raise BrokenResponse("the server sent no text")
            if not self._finished:
                raise BrokenResponse("the stream broke off without a finish_reason or [DONE]")
            return
        kind = self.headers.get(b"content-type", b"").decode("ascii", "replace")
        if self._stream and "json" not in kind.lower():
            raise BrokenResponse(f"the response is {kind[:60] or 'of no type'}, not text/event-stream")
        document = _object(bytes(self.body), "the response")
        self.body.clear()
        if self._stream:
            raise BrokenResponse("the response came in one piece although a stream was requested")
        self._read_usage(document)
        choices = _choices(document)[:1]
        text = "".join(map(text_of, choices))
        if not text:
            raise BrokenResponse("the server sent no text")
        self._add(text, "".join(text_of(choice, ANSWER) for choice in choices))

    def _read_usage(self, chunk: dict[str, Any]) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = (_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))

    def result(self, *, keep: bool, keep_text: bool = False) -> RequestResult:
        """The result so far. `keep`: include the times between pieces and the text's hash; otherwise only what a level's figures need."""
        stamps, text = self._stamps, "".join(self._text)
        prompt_tokens, output_tokens = self._usage
        return RequestResult(
            error=self.error,
            ttft_ns=stamps[0] - self.sent_ns if stamps and self._stream else None,
            e2e_ns=stamps[-1] - self.sent_ns if stamps else None,
            itl_ns=tuple(late - early for early, late in pairwise(stamps)) if keep else (),
            pieces=len(stamps),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            sha256=hashlib.sha256(text.encode(errors="replace")).hexdigest() if keep else "",
            text="".join(self._answer) if keep_text else "",
            status=self.status,
            sent_ns=self.sent_ns,
        )


def text_of(choice: dict[str, Any], names: tuple[str, ...] = (*ANSWER, *REASONING)) -> str:
    """The text in one choice: from a piece or whole message of a chat, or from a completion. Reasoning counts as output too."""
    for holder in (choice.get("delta"), choice.get("message"), choice):
        if isinstance(holder, dict):
            for name in names:
                text = holder.get(name)
                if isinstance(text, str) and text:
                    return text
    return ""


def error_text(body: bytes) -> str:
    """An error response in one short line: the message in its JSON, or its first words."""
    text = body[:MAX_BODY].decode(errors="replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        inner = document.get("error", document)
        message = inner.get("message") if isinstance(inner, dict) else inner
        text = message if isinstance(message, str) else text
    elif "<html" in text[:1000].lower() or "<!doctype" in text[:1000].lower():
        text = "an HTML page"
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:2000]).split())
    return line[:MAX_ERROR] or "without an explanation"


def _object(payload: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        raise BrokenResponse(f"{what} is not JSON: {error_text(payload)[:60]}") from None
    if not isinstance(value, dict):
        raise BrokenResponse(f"{what} is not a JSON object")
    return value


def _choices(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None

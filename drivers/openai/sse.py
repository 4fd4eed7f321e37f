"""One answer of an OpenAI-compatible server, read from its raw bytes and the times at which they came. Pure.

    bytes + nanoseconds ──▶ HTTP/1.1 ──▶ lines `data: {…}` ──▶ when text came, how much, and what `usage` says

Nothing is believed: heads, lines and whole answers are bounded, and whatever is not as it should be ends the answer with a
sentence. A redirect is not followed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from drivers.openai.http import BrokenResponse, Http

MAX_LINE: Final = 256 * 1024
MAX_BODY: Final = 4 * 1024 * 1024
"""Of an answer that is no stream."""
BYTES_PER_TOKEN: Final = 2048
"""Of a stream, beside `MAX_LINE`: servers wrap each token in 200 to 400 bytes."""
TEXT_PER_TOKEN: Final = 64
MAX_SAID: Final = 200
MAX_TOKENS: Final = 2**31


class StreamEnd(StrEnum):
    """How a request ended."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    """Text came, and the answer broke off."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One request, as its client saw it. Times in nanoseconds from the moment at which it was sent; None: not seen."""

    ended: StreamEnd
    why: str = ""
    """Of one that is not complete, in one sentence."""
    ttft_ns: int | None = None
    """Until the first piece with text."""
    e2e_ns: int | None = None
    """Until the last piece with text; of one that was not streamed, until all of it was there."""
    itl_ns: tuple[int, ...] = ()
    """Between pieces with text."""
    pieces: int = 0
    """With text; a server may put several tokens into one."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    sha256: str = ""
    text: str = ""
    status: int = 0
    sent_ns: int = 0
    """When it was sent, by the client's clock."""
    lag_ns: int = 0
    """How long after its planned time it was sent."""

    @property
    def tpot_ns(self) -> int | None:
        """Time for each output token after the first."""
        if self.ttft_ns is None or self.e2e_ns is None or not self.output_tokens or self.output_tokens < 2:
            return None
        return round((self.e2e_ns - self.ttft_ns) / (self.output_tokens - 1))


@dataclass(slots=True)
class AnswerParser:
    """An answer in the making. `feed` it, `end` it, then ask for `result`. Times are of one monotonic clock."""

    sent_ns: int = 0
    max_tokens: int = 1
    stream: bool = True
    generates: bool = True
    """False: any document, kept as `body`."""
    http: Http = field(default_factory=Http)
    body: bytearray = field(default_factory=bytearray)
    """Of what is no stream, and of an error."""
    why: str = ""
    finished: bool = False
    _line: bytearray = field(default_factory=bytearray)
    _bytes: int = 0
    _stamps: list[int] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _length: int = 0
    _usage: tuple[int | None, int | None] = (None, None)
    _streams: bool = False
    _now: int = 0

    @property
    def done(self) -> bool:
        """Nothing more is awaited."""
        return bool(self.why) or self.http.done

    @property
    def begun(self) -> bool:
        """The server has said something."""
        return self.http.begun

    def feed(self, now_ns: int, data: bytes) -> None:
        """Bytes that came at `now_ns`. Whatever is wrong with them ends the answer."""
        if self.done:
            self.http.keep = False
            return
        self._now = now_ns
        try:
            self._take(now_ns, self.http.feed(data))
        except BrokenResponse as why:
            self.fail(str(why))

    def end(self) -> None:
        """The connection has ended."""
        if self.done:
            return
        try:
            self.http.end()
            self._take(self._now, b"")
        except BrokenResponse as why:
            self.fail(str(why))

    def fail(self, why: str) -> None:
        """End it with a sentence; the first one counts."""
        self.why = self.why or why
        self.http.keep = False

    def _take(self, now_ns: int, data: bytes) -> None:
        if not self.http.status:
            return
        if 300 <= self.http.status < 400:
            raise BrokenResponse(
                f"HTTP {self.http.status}: it redirects, which is not followed: give the final URL"
            )
        kind = self.http.headers.get(b"content-type", b"").lower()
        self._streams = self.generates and self.stream and kind.startswith(b"text/event-stream")
        self._bytes += len(data)
        if self._streams and self.http.status == 200:
            if self._bytes > MAX_LINE + self.max_tokens * BYTES_PER_TOKEN:
                raise BrokenResponse(f"the answer is longer than {self.max_tokens} tokens can be")
            self._lines(now_ns, data)
        else:
            if self._bytes > MAX_BODY:
                raise BrokenResponse(f"the answer is longer than {MAX_BODY // 1024**2} MiB")
            self.body += data
        if self.http.done:
            self._whole(now_ns)

    def _lines(self, now_ns: int, data: bytes) -> None:
        self._line += data
        start = 0
        while (end := self._line.find(b"\n", start)) >= 0:
            self._event(now_ns, bytes(self._line[start:end]))
            start = end + 1
        del self._line[:start]
        if len(self._line) > MAX_LINE:
            raise BrokenResponse(f"a line of the answer is longer than {MAX_LINE // 1024} KiB")

    def _event(self, now_ns: int, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return  # a comment, a blank line, the name of an event
        payload = line[5:].strip()
        if payload == b"[DONE]":
            self.finished = True
            return
        said = _object(payload, "a line of the stream")
        self._usage_of(said)
        if "error" in said:
            raise BrokenResponse(f"the server gave up: {words_of(payload)}")
        for choice in _choices(said)[:1]:
            text = text_of(choice)
            if text:
                self._stamps.append(now_ns)
                self._add(text)
            if choice.get("finish_reason"):
                self.finished = True

    def _add(self, text: str) -> None:
        self._length += len(text)
        if (
            self._length > MAX_LINE + self.max_tokens * TEXT_PER_TOKEN
            or len(self._stamps) > 16 + 2 * self.max_tokens
        ):
            raise BrokenResponse(f"more text came than {self.max_tokens} tokens can hold")
        self._text.append(text)

    def _whole(self, now_ns: int) -> None:
        """The response is whole: was it an answer?"""
        if not self.generates:
            return
        kind = self.http.headers.get(b"content-type", b"").decode("ascii", "replace")
        if self.http.status != 200:
            raise BrokenResponse(f"HTTP {self.http.status}: {words_of(bytes(self.body))}")
        if self._streams:
            if not self._stamps:
                raise BrokenResponse("no text came")
            if not self.finished:
                raise BrokenResponse("the stream broke off without a finish_reason or [DONE]")
            return
        if self.stream and "json" not in kind:
            raise BrokenResponse(f"the answer is {kind[:60] or 'of no type'}, not text/event-stream")
        said = _object(bytes(self.body), "the answer")
        self.body.clear()
        if self.stream:
            raise BrokenResponse("the answer came in one piece although a stream was asked for")
        self._usage_of(said)
        text = "".join(text_of(choice) for choice in _choices(said)[:1])
        if not text:
            raise BrokenResponse("no text came")
        self._stamps.append(now_ns)
        self._add(text)
        self.finished = True

    def _usage_of(self, said: dict[str, Any]) -> None:
        usage = said.get("usage")
        if isinstance(usage, dict):
            self._usage = (_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))

    def result(self, *, keep: bool, keep_text: bool = False) -> ChatAnswer:
        """What came. `keep`: with the times between pieces and the text's hash; else only what a level's figures need."""
        stamps, text = self._stamps, "".join(self._text)
        ended = StreamEnd.COMPLETE if not self.why else StreamEnd.INCOMPLETE if stamps else StreamEnd.FAILED
        gaps = tuple(late - early for early, late in pairwise(stamps)) if keep else ()
        prompt_tokens, output_tokens = self._usage
        return ChatAnswer(
            ended=ended,
            why=self.why,
            ttft_ns=stamps[0] - self.sent_ns if stamps and self.stream else None,
            e2e_ns=stamps[-1] - self.sent_ns if stamps else None,
            itl_ns=gaps,
            pieces=len(stamps),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            sha256=hashlib.sha256(text.encode(errors="replace")).hexdigest() if keep else "",
            text=text if keep_text else "",
            status=self.http.status,
            sent_ns=self.sent_ns,
        )


def text_of(choice: dict[str, Any]) -> str:
    """The text in one choice: of a chat's piece or whole message, or of a completion. Thinking aloud is output as well."""
    for holder in (choice.get("delta"), choice.get("message"), choice):
        if isinstance(holder, dict):
            for name in ("content", "reasoning_content", "reasoning", "text"):
                text = holder.get(name)
                if isinstance(text, str) and text:
                    return text
    return ""


def words_of(body: bytes) -> str:
    """What an error says, in one short line: the message in its JSON, or its first words."""
    text = body[:MAX_BODY].decode(errors="replace")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        inner = said.get("error", said)
        message = inner.get("message") if isinstance(inner, dict) else inner
        text = message if isinstance(message, str) else text
    elif "<html" in text[:1000].lower() or "<!doctype" in text[:1000].lower():
        text = "a page of HTML"
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:2000]).split())
    return line[:MAX_SAID] or "without a word"


def _object(payload: bytes, what: str) -> dict[str, Any]:
    try:
        said = json.loads(payload)
    except (ValueError, RecursionError):
        raise BrokenResponse(f"{what} is not JSON: {words_of(payload)[:60]}") from None
    if not isinstance(said, dict):
        raise BrokenResponse(f"{what} is not a JSON object")
    return said


def _choices(said: dict[str, Any]) -> list[dict[str, Any]]:
    choices = said.get("choices")
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None

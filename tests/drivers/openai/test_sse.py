"""Reading a server's answers: HTTP that arrives in pieces, what counts as text, and all that is not valid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.openai.sse import MAX_BODY, MAX_HEAD, MAX_LINE, ResponseParser, error_text

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def piece(text: str | None, reason: str | None = None) -> bytes:
    return event({"choices": [{"delta": {} if text is None else {"content": text}, "finish_reason": reason}]})


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def usage(prompt: object, output: object) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}})


END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def read(parts: Sequence[bytes], **changes: Any) -> ResponseParser:
    """An answer whose parts arrive 1, 2, 3 … ms after the request was sent."""
    answer = ResponseParser(max_tokens=10, **changes)
    answer.request("GET", "/", [("Host", "x")])
    for at, part in enumerate(parts, start=1):
        answer.feed(at * 1_000_000, part)
    return answer


def test_the_first_text_counts_and_not_the_role_before_it_nor_the_usage_after_it() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    parts = [
        STREAM + chunk(role),
        chunk(piece("a")),
        chunk(piece("b")),
        chunk(piece("c", "stop")),
        chunk(usage(7, 4)),
        END,
    ]
    result = read(parts).result(keep=True, keep_text=True)
    assert not result.error
    assert (result.ttft_ns, result.e2e_ns) == (2_000_000, 4_000_000)
    assert result.itl_ns == (1_000_000, 1_000_000)
    assert (result.pieces, result.prompt_tokens, result.output_tokens, result.text) == (3, 7, 4, "abc")
    assert result.tpot_ns == round(2_000_000 / 3)


def test_thinking_aloud_is_timed_and_no_part_of_the_answer() -> None:
    thought = event({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    plain = event({"choices": [{"text": "a", "finish_reason": "stop"}]})
    result = read([STREAM + chunk(thought), chunk(plain), END]).result(keep=True, keep_text=True)
    assert (result.ttft_ns, result.pieces, result.text) == (1_000_000, 2, "a")


def test_one_token_has_no_time_between_tokens_and_no_usage_has_no_tokens() -> None:
    assert (
        read([STREAM + chunk(piece("a", "stop")), chunk(usage(3, 1)), END]).result(keep=True).tpot_ns is None
    )
    for outcome in (usage("7", True), usage(-1, 2.5), event({"choices": [], "usage": 3}), b""):
        result = read([STREAM + chunk(piece("a", "stop") + outcome), END]).result(keep=True)
        assert not result.error
        assert (result.prompt_tokens, result.output_tokens) == (None, None)


@given(st.data())
def test_an_answer_is_the_same_however_it_is_cut_into_pieces(data: st.DataObject) -> None:
    whole = (
        STREAM
        + chunk(piece("ä") + b": a comment\r\n\r\n")
        + chunk(piece("b", "stop"))
        + chunk(usage(7, 2))
        + END
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=8)))
    result = read([whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]).result(
        keep=True, keep_text=True
    )
    assert (result.error, result.text, result.output_tokens) == ("", "äb", 2)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_rubbish_ends_an_answer_or_leaves_it_waiting_and_never_raises(parts: list[bytes]) -> None:
    for head in (b"", STREAM):
        answer = read([head, *parts])
        answer.feed(0, b"")
        assert answer.done
        assert answer.result(keep=True).error


def failures() -> Iterator[tuple[list[bytes], str]]:
    json_head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    yield [STREAM + chunk(b"data: {nonsense\n\n")], "not JSON: {nonsense"
    yield [STREAM + chunk(b"data: [1]\n\n")], "not a JSON object"
    yield [STREAM + chunk(event({"error": {"message": "no\x1b[31m memory"}}))], "an error: no [31m memory"
    yield [STREAM + chunk(piece(None, "stop")), END], "the server sent no text"
    yield [STREAM + chunk(piece("a")), b"0\r\n\r\n"], "broke off without a finish_reason"
    yield [STREAM + b"zz\r\n"], "illegal chunk header"
    yield [STREAM, *[chunk(piece("a"))] * 40], "more text than 10 tokens"
    yield [STREAM, *[chunk(b"x" * 60_000)] * 5], "longer than"
    yield [json_head % (b"500 No", 9) + b"{broken<b"], "HTTP 500: {broken<b"
    yield [json_head % (b"429 Slow", 0)], "HTTP 429: without an explanation"
    yield [json_head % (b"200 OK", 2) + b"[]"], "not a JSON object"
    yield [json_head % (b"200 OK", 2) + b"{}"], "in one piece although a stream"
    yield (
        [b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n"],
        "redirects, which is not followed",
    )
    yield (
        [b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1\r\n\r\n<"],
        "text/html, not text/event-stream",
    )
    yield [b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"], "bad Content-Length"
    yield [b"SSH-2.0\r\n"], "not HTTP"
    yield [b"HTTP/1.1 OK\r\n\r\n"], "not HTTP/1.1: illegal status line"
    yield [b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD], "Receive buffer too long"
    yield [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 65536] * (MAX_BODY // 65536 + 1)], "longer than 4 MiB"


@pytest.mark.parametrize(("parts", "why"), list(failures()), ids=[why for _, why in failures()])
def test_what_is_no_answer_fails_with_a_sentence(parts: list[bytes], why: str) -> None:
    answer = read(parts)
    assert answer.done
    assert why in answer.result(keep=True).error
    assert not answer.keeps_connection, "the connection is not used again"


def test_a_stream_that_breaks_off_after_text_is_incomplete() -> None:
    answer = read([STREAM + chunk(piece("a"))])
    answer.feed(0, b"")
    result = answer.result(keep=True)
    assert (result.pieces, result.error) == (1, "the connection ended before the response did")


def test_an_endless_line_is_refused_long_before_it_fills_the_memory() -> None:
    answer = ResponseParser(max_tokens=30_000)
    answer.feed(0, STREAM)
    fed = 0
    while not answer.done:
        answer.feed(0, chunk(b"x" * 65536))
        fed += 65536
    assert "a line of the response is longer" in answer.error
    assert fed <= MAX_LINE + 2 * 65536


def test_an_answer_in_one_piece_has_an_end_and_no_first_text() -> None:
    values = {
        "choices": [{"message": {"content": "a b"}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 2},
    }
    body = json.dumps(values).encode()
    for head in (b"Content-Length: %d\r\n" % len(body), b"Connection: close\r\n"):
        answer = read(
            [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + head + b"\r\n", body], stream=False
        )
        answer.feed(0, b"")
        result = answer.result(keep=True)
        assert (result.error, result.ttft_ns, result.e2e_ns) == ("", None, 2_000_000)
        assert (result.output_tokens, result.tpot_ns) == (2, None)


def test_a_connection_goes_on_only_after_a_whole_response_that_lets_it() -> None:
    body = b"Content-Length: 1\r\n\r\nx"
    stored = read([b"HTTP/1.1 200 OK\r\n" + body], generates=False)
    assert (stored.body, stored.done, stored.keeps_connection) == (b"x", True, True)
    for parts in (
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + body],
        [b"HTTP/1.0 200 OK\r\n" + body],
        [b"HTTP/1.1 200 OK\r\n" + body + b"HTTP/1.1 200 OK"],
        [b"HTTP/1.1 200 OK\r\n" + body, b"HTTP/1.1 200 OK"],
    ):
        response = read(parts, generates=False)
        assert response.done
        assert not response.keeps_connection


def test_what_a_server_says_of_an_error_is_one_short_clean_line() -> None:
    assert error_text(b"<!DOCTYPE html><p>no") == "an HTML page"
    assert error_text(b'{"error": "no\\n room"}') == "no room"
    assert error_text(b"") == "without an explanation"
    assert len(error_text(b"x" * 10_000)) == 200
    assert error_text(b"[" * 100_000)

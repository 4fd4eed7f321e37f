"""At the door: who is let in, from where, with how much."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus

import httpx
import pytest
import trio
from fastapi import APIRouter, Request
from starlette.datastructures import Headers

from scheduler.api.app import make_app
from scheduler.api.desk import Desk
from scheduler.api.guard import SECURITY, Rules, refusal
from scheduler.api.serving import bind, serve

TOKEN = "a-token-of-this-test-0123456789"


def told(rules: Rules, path: str = "/api/v1/campaigns", **headers: str) -> HTTPStatus | None:
    named = {"host": "127.0.0.1:5000", **{name.replace("_", "-"): value for name, value in headers.items()}}
    why = refusal(rules, path, Headers(named))
    return why and why[0]


@pytest.mark.parametrize(
    ("host", "good"),
    [
        ("127.0.0.1:5000", True),
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("[::1]:5000", True),
        ("evil.example", False),
        ("evil.example:5000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_only_names_of_this_server_are_answered(host: str, good: bool) -> None:
    assert told(Rules(), host=host) is (None if good else HTTPStatus.MISDIRECTED_REQUEST)


@pytest.mark.parametrize(
    ("origin", "good"),
    [
        ("http://127.0.0.1:5000", True),
        ("http://127.0.0.1:5001", False),
        ("http://localhost:5000", False),
        ("https://evil.example", False),
        ("null", False),
    ],
)
def test_a_page_of_another_site_is_refused(origin: str, good: bool) -> None:
    assert told(Rules(), origin=origin) is (None if good else HTTPStatus.FORBIDDEN)


def test_a_link_from_another_site_opens_the_page_and_nothing_else() -> None:
    assert told(Rules(), "/", sec_fetch_site="cross-site") is None
    assert told(Rules(), sec_fetch_site="cross-site") is HTTPStatus.FORBIDDEN
    assert told(Rules(), sec_fetch_site="same-origin") is None


@pytest.mark.parametrize(
    ("shown", "good"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer {TOKEN}", True),
        (f"Basic {TOKEN}", False),
        (TOKEN, False),
        ("Bearer ", False),
        (f"Bearer {TOKEN}x", False),
        ("Bearer ä", False),
    ],
)
def test_where_a_token_is_wanted_only_its_bearer_gets_in(shown: str, good: bool) -> None:
    rules = Rules(token=TOKEN)
    assert told(rules, authorization=shown) is (None if good else HTTPStatus.UNAUTHORIZED)
    assert told(rules) is HTTPStatus.UNAUTHORIZED
    assert told(rules, "/") is None
    assert told(rules, "/static/app.js") is None
    assert (
        told(rules, "/static/../api/v1/campaigns") is None
    )  # a path that no endpoint has: nothing is behind it


async def test_every_answer_says_what_a_browser_may_do_with_it(served: httpx.AsyncClient) -> None:
    for path in ("/api/v1/campaigns", "/nothing"):
        answer = await served.get(path)
        assert {name: answer.headers[name] for name in SECURITY} == SECURITY
    refused = await served.get("/api/v1/campaigns", headers={"Host": "evil.example"})
    assert refused.status_code == HTTPStatus.MISDIRECTED_REQUEST
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["hint"]
    assert refused.headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_long_is_refused_whether_its_length_was_told_or_not(
    desk: Desk, chunked: bool
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 1000

    sockets = bind(["127.0.0.1"], 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, make_app(desk, Rules(max_body=2000), [_echo()]), sockets)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as asking:
            body = parts() if chunked else b"x" * 3000
            answer = await asking.post("/echo", content=body)
            assert answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            assert (await asking.post("/echo", content=b"x" * 1500)).json() == 1500
        nursery.cancel_scope.cancel()


def _echo() -> APIRouter:
    router = APIRouter()

    @router.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    return router

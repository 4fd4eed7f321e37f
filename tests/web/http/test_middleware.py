"""Access rules: who is let in, from where, and with how much data."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx
import pytest
import trio
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers

from web.app import make_app
from web.http.context import ApiContext
from web.http.middleware import SECURITY, AccessRules, refusal
from web.http.server import bind, serve

JSON = {"Content-Type": "application/json"}
TOKEN = "a-token-of-this-test-0123456789"


def status_of(rules: AccessRules, path: str = "/api/v1/campaigns", **headers: str) -> HTTPStatus | None:
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
        ("[0:0:0:0:0:0:0:1]:5000", True),
        ("[::1]x", False),
        ("evil.example@localhost", False),
        ("localhost/evil.example", False),
        ("localhost:5000:5000", False),
        ("localhost:", False),
    ],
)
def test_only_names_of_this_server_are_answered(host: str, good: bool) -> None:
    assert status_of(AccessRules(), host=host) is (None if good else HTTPStatus.MISDIRECTED_REQUEST)


@pytest.mark.parametrize(
    ("origin", "good"),
    [
        ("http://127.0.0.1:5000", True),
        ("http://127.0.0.1:5001", False),
        ("http://localhost:5000", False),
        ("https://evil.example", False),
        ("null", False),
        ("http://[", False),
        ("http://127.0.0.1:5000/evil", False),
        ("evil://127.0.0.1:5000", False),
        ("", False),
    ],
)
def test_a_page_of_another_site_is_refused(origin: str, good: bool) -> None:
    assert status_of(AccessRules(), origin=origin) is (None if good else HTTPStatus.FORBIDDEN)


def test_a_link_from_another_site_opens_the_page_and_nothing_else() -> None:
    assert status_of(AccessRules(), "/", sec_fetch_site="cross-site") is None
    assert status_of(AccessRules(), sec_fetch_site="cross-site") is HTTPStatus.FORBIDDEN
    assert status_of(AccessRules(), sec_fetch_site="same-origin") is None


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
    rules = AccessRules(token=TOKEN)
    assert status_of(rules, authorization=shown) is (None if good else HTTPStatus.UNAUTHORIZED)
    assert status_of(rules) is HTTPStatus.UNAUTHORIZED
    assert status_of(rules, "/") is None
    assert status_of(rules, "/static/app.js") is None
    assert (
        status_of(rules, "/static/../api/v1/campaigns") is None
    )  # no endpoint has this path, so nothing is exposed


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
async def test_a_body_that_is_too_long_is_refused_with_or_without_a_content_length(
    context: ApiContext, chunked: bool
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 1000

    async with odd(context, AccessRules(max_body=2000)) as asking:
        body = parts() if chunked else b"x" * 3000
        answer = await asking.post("/echo", content=body)
        assert answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        assert (await asking.post("/echo", content=b"x" * 1500)).json() == 1500


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/api/v1/campaigns/c-%00/report", "", 400),
        ("/api/v1/campaigns", "name=a%00", 400),
        ("/x", "a=0", 404),
    ],
)
async def test_a_zero_byte_in_the_address_is_refused_before_a_store_is_asked(
    served: httpx.AsyncClient, path: str, query: str, status: int
) -> None:
    assert (await served.get(f"{path}?{query}")).status_code == status


async def test_an_error_is_one_line_of_printable_text_whatever_the_client_wrote(
    context: ApiContext,
) -> None:
    async with odd(context) as asking:
        for name in (r"\ud800", r"\u202e", r"\n\u001b[31m", "x" * 100_000):
            answer = await asking.post("/order", content=f'{{"{name}": 1}}', headers=JSON)
            assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
            assert answer.json()["detail"].isprintable()
            assert len(answer.json()["detail"]) < 3000


async def test_nobody_is_led_elsewhere_and_the_pages_have_a_head(served: httpx.AsyncClient) -> None:
    for path in ("/api/v1/campaigns/", "/docs/", "//evil.example/docs/", "/static/", "/%2e%2e/docs/"):
        answer = await served.get(path)
        assert (answer.status_code, answer.headers.get("location")) == (HTTPStatus.NOT_FOUND, None)
    head = await served.head("/docs")
    assert (head.status_code, head.content) == (HTTPStatus.OK, b"")
    assert head.headers["content-security-policy"] == SECURITY["Content-Security-Policy"]


async def test_a_mistake_of_ours_is_a_problem_too_and_does_not_say_what_it_was(context: ApiContext) -> None:
    async with odd(context) as asking:
        answer = await asking.get("/bug")
    assert answer.status_code == HTTPStatus.INTERNAL_SERVER_ERROR
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert "secret" not in answer.text


@asynccontextmanager
async def odd(context: ApiContext, rules: AccessRules | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with some extra endpoints."""
    sockets = bind(["127.0.0.1"], 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, make_app(context, rules or AccessRules(), [_odd()]), sockets)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as asking:
            yield asking
        nursery.cancel_scope.cancel()


class Order(BaseModel):
    """A request body that accepts no keys."""

    model_config = ConfigDict(extra="forbid")


def _odd() -> APIRouter:
    router = APIRouter()

    @router.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @router.post("/order")
    async def order(order: Order) -> int:
        return 1

    @router.get("/bug")
    async def bug() -> int:
        raise RuntimeError("a secret")

    return router

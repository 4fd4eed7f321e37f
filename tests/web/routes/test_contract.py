"""Generated requests for every operation of the document, over a socket: no answer is a 5xx, and each is as the document says."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
import trio
from hypothesis import HealthCheck, Phase, given, settings

import sark
from scheduler.output.fleet import FleetWatcher, ObservedDevice
from swarm.base.home import Home
from web.app import make_app, make_open_app
from web.http.context import ApiContext
from web.http.middleware import AccessRules
from web.http.server import bind, serve

EXAMPLES: Final = 3
TIMEOUT_S: Final = 120.0
ENDLESS: Final = "watchFleet"
"""An operation whose answer lasts as long as somebody listens. Only its beginning is checked."""


class Eyes:
    """An observer that sees an empty swarm."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Eyes]:
        yield self

    async def observe(self) -> tuple[ObservedDevice, ...]:
        await trio.lowlevel.checkpoint()
        return ()


def _document() -> dict[str, Any]:
    home = Home.at(Path("nowhere"))
    context = ApiContext(home, gates=tuple, start_scheduler=lambda: None)
    return make_open_app(context, sark._routers(home, tuple)).openapi()


SCHEMA: Final = schemathesis.openapi.from_dict(_document())
OPERATIONS: Final = {
    f"{one.method.upper()} {one.path}": one for one in (found.ok() for found in SCHEMA.get_all_operations())
}
CHECKS: Final = (
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.CHECKS.get_one("status_code_conformance"),
    schemathesis.checks.CHECKS.get_one("content_type_conformance"),
    schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, filled: Callable[[Home], None]) -> Iterator[str]:
    """A server in a separate thread, for a blocking client. It has one campaign, `c-one`, some of whose tasks have ended."""
    home = Home.at(tmp_path_factory.mktemp("contract"))
    filled(home)
    context = ApiContext(home, gates=tuple, start_scheduler=lambda: None)
    sockets = bind(["127.0.0.1"], 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    app = make_app(context, AccessRules(), sark._routers(home, tuple), watcher=FleetWatcher(Eyes().open))  # type: ignore[arg-type]
    stop, begun = trio.Event(), threading.Event()
    token: list[trio.lowlevel.TrioToken] = []

    async def run() -> None:
        token.append(trio.lowlevel.current_trio_token())
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, app, sockets)
            begun.set()
            await stop.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    assert begun.wait(TIMEOUT_S)
    yield url
    token[0].run_sync_soon(stop.set)
    thread.join(TIMEOUT_S)
    context.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_answers_are_as_the_document_says(address: str, name: str) -> None:
    operation = OPERATIONS[name]

    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        _ask(case, address)
        if "campaign" in case.path_parameters:
            case.path_parameters["campaign"] = "c-one"
            if "n" in case.path_parameters:
                case.path_parameters["n"] = 1 + case.path_parameters["n"] % 3
            _ask(case, address)

    ask()


def _ask(case: Any, address: str) -> None:
    case.headers.pop("accept", None)  # the stream of a running campaign would not end
    if case.operation.definition.raw["operationId"] == ENDLESS:
        _listen(case, address)
        return
    answer = case.call(base_url=address, timeout=TIMEOUT_S)
    case.validate_response(answer, checks=list(CHECKS))


def _listen(case: Any, address: str) -> None:
    """Read until the first event, or the refusal."""
    request = case.as_transport_kwargs(base_url=address)
    with requests.request(**request, stream=True, timeout=TIMEOUT_S) as answer:
        if answer.status_code == HTTPStatus.OK:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert next(answer.iter_lines())
        else:
            assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
            assert answer.headers["Content-Type"] == "application/problem+json"

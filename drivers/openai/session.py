"""One run's dealings with a server: its client in an event loop that is stepped from blocking code, and the look at its processes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Final, Protocol, Self

from drivers.contract.base import Crashed, DriverError
from drivers.openai import server_process
from drivers.openai.client import Client, Server, ServerUnreachable
from drivers.openai.load import Ask
from drivers.openai.sse import AnswerParser, ChatAnswer, words_of
from drivers.openai.workload import MAX_NAME, Endpoint, Workload

MAX_MODELS: Final = 1000
MAX_RUNTIME: Final = 60
PATHS: Final = {Endpoint.CHAT: "/chat/completions", Endpoint.COMPLETIONS: "/completions"}


class Build(Protocol):
    """Makes what sends the requests of one level. Bodies of the numbers from `base` on, `count` of them, are made at once."""

    def __call__(self, base: int, count: int = 0, *, keep: bool = False, texts: int = 0) -> Ask: ...


class ApiSession:
    """Use as a context: its loop and connections end with it."""

    def __init__(
        self, server: Server, name: str = "", clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        """`name`: what the server's owner calls it. Raises nothing: whether it answers shows in `models`."""
        self.server = server
        self.clock = clock
        self._name = name
        self._runner = asyncio.Runner()
        self._client: Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()
        self._runner.close()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The server's."""
        return self._client.addresses if self._client is not None else ()

    def models(self, error: type[DriverError]) -> tuple[tuple[str, ...], str]:
        """Names of the models that are served, and what serves them. Raises `error` with one line when it does not answer as it should."""
        try:
            self._client = self._client or Client(self.server, self.clock)
            answer = self._runner.run(self._client.get(f"{self.server.path}/models"))
        except ServerUnreachable as why:
            raise error(str(why)) from None
        if answer.why:
            raise error(f"the endpoint gives no list of its models: {self.server.clean(answer.why)}")
        status = answer.http.status
        if status in (401, 403):
            raise error(
                f"the endpoint refuses the key (HTTP {status}): set SARK_API_KEY where the worker is started"
            )
        if status != 200:
            said = self.server.clean(words_of(bytes(answer.body)))
            raise error(f"the endpoint gives no list of its models: HTTP {status}: {said}")
        header = answer.http.headers.get(b"server", b"").decode("ascii", "replace")
        runtime = self._name or (f"OpenAI API ({header})" if header else "OpenAI API")
        return self._names(bytes(answer.body), error), self.server.clean(runtime)[:MAX_RUNTIME]

    def _names(self, body: bytes, error: type[DriverError]) -> tuple[str, ...]:
        try:
            listed = json.loads(body)
        except (ValueError, RecursionError):
            listed = None
        data = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(data, list):
            raise error(
                "the endpoint's list of models is not that of an OpenAI API: is the URL right, with /v1?"
            )
        names = [
            one["id"] for one in data[:MAX_MODELS] if isinstance(one, dict) and isinstance(one.get("id"), str)
        ]
        return tuple(dict.fromkeys(self.server.clean(name) for name in names if 0 < len(name) <= MAX_NAME))

    def connect(self, count: int) -> None:
        """Have so many connections before a level begins. Raises `Crashed`."""
        assert self._client is not None
        try:
            self._runner.run(self._client.warm(count))
        except ServerUnreachable as why:
            raise Crashed(str(why)) from None

    def asking(self, workload: Workload, body: Callable[[int], bytes]) -> Build:
        """What sends a workload's requests; `body` makes the one of a number."""
        client = self._client
        assert client is not None
        path = self.server.path + PATHS[workload.endpoint]

        def build(base: int, count: int = 0, *, keep: bool = False, texts: int = 0) -> Ask:
            ready = {number: body(number) for number in range(base, base + count)}

            async def ask(number: int) -> ChatAnswer:
                return await client.ask(
                    path,
                    ready.pop(number) if number in ready else body(number),
                    AnswerParser(max_tokens=workload.max_tokens, stream=workload.stream),
                    workload.timeout_s,
                    keep=keep,
                    keep_text=number - base < texts,
                )

            return ask

        return build

    def page(self, path: str) -> bytes:
        """A document of the server, empty if it has none there; `path` from its root."""
        assert self._client is not None
        try:
            answer = self._runner.run(self._client.get(path))
        except ServerUnreachable:
            return b""
        return bytes(answer.body) if answer.http.status == 200 and not answer.why else b""

    def steps(self, work: Coroutine[object, object, None], step_s: float) -> Iterator[None]:
        """Do the work, coming back every `step_s` until it is done; it ends when the iterator is closed. Raises what it raises."""

        async def begin() -> asyncio.Task[None]:
            return asyncio.ensure_future(work)

        async def step(task: asyncio.Task[None]) -> None:
            await asyncio.wait({task}, timeout=step_s)

        task = self._runner.run(begin())
        while not task.done():
            self._runner.run(step(task))
            yield
        task.result()


class Watch:
    """What is seen of the server beside its answers: nothing, or its processes and counters where these are here and may be looked at."""

    def __init__(self, session: ApiSession, wanted: bool) -> None:
        """The first look, if it is `wanted` by the owner and the server is on this host."""
        self._session = session
        self._processes = (
            server_process.server_processes(session.server.port)
            if wanted and server_process.is_here(session.addresses)
            else ()
        )
        self.access = "gray" if self._processes else "black"
        self.notes: list[str] = []
        if wanted and not self._processes:
            self.notes.append("the server's processes are not to be seen from here")
        elif self._processes:
            names = sorted({server_process.name_of(process) for process in self._processes})
            self.notes.append(f"server: {', '.join(names)[:80]}, {len(self._processes)} processes")
        self._most: int | None = None
        self._began_ns = session.clock()
        self._before = self._read()

    def look(self) -> None:
        """Between two levels."""
        if self._processes:
            rss = server_process.read_processes(self._processes)[0]
            self._most = max(self._most or 0, rss or 0)

    def figures(self) -> dict[str, float]:
        """Of the window from the first look to now; empty for a black box."""
        if not self._processes:
            return {}
        wall_s = (self._session.clock() - self._began_ns) / 1e9
        return server_process.differences(self._before, self._read(), wall_s, self._most)

    def _read(self) -> server_process.ServerReading:
        if not self._processes:
            return server_process.ServerReading()
        rss, highest, cpu_s = server_process.read_processes(self._processes)
        gpu = server_process.gpu_bytes(frozenset(process.pid for process in self._processes))
        page = server_process.read_counters(self._session.page("/metrics"))
        return server_process.ServerReading(rss, highest, cpu_s, gpu, page)

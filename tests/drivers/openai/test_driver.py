"""The API driver against a real HTTP server in a separate process that keeps a known schedule, or breaks rules in a known way."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import (
    AnswersReport,
    CheckReport,
    Crashed,
    DriverError,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    ModelDescription,
    RunFindings,
    Unfit,
    WorkOrder,
    WrongUnit,
)
from drivers.contract.boot import clean_environment
from drivers.launch import launch
from drivers.launch.launch import Zygote, measure, probe_units
from drivers.openai import answers as openai_answers
from drivers.openai.client import Client, ServerUnreachable, read_server
from drivers.openai.driver import KEY, NAME, UNIT, URL, WATCH, ApiDriver
from drivers.testing.conformance import Subject, check_all
from protocol.formats.examples import UNNAMED, Value, Values, pack_examples, text_value, unpack_examples

SECRET = "sk-never-to-be-seen-3141592653"
SERVER = Path(__file__).parents[1] / "openai_server.py"


@dataclass(frozen=True)
class Endpoint:
    """A running server."""

    port: int
    key: str = ""

    @property
    def private(self) -> dict[str, str]:
        """The settings that the server's owner gives the driver."""
        return {URL: f"http://127.0.0.1:{self.port}/v1", NAME: "planned"} | (
            {KEY: self.key} if self.key else {}
        )

    def did(self) -> list[dict[str, Any]]:
        """What the server really sent, and when."""

        async def get() -> Any:
            client = Client(read_server(self.private[URL]))
            answer = await client.get("/did")
            client.close()
            return json.loads(bytes(answer.body))

        result: list[dict[str, Any]] = asyncio.run(get())
        return result


def start(key: str = "") -> Iterator[Endpoint]:
    """Start a server that ends with the test."""
    with subprocess.Popen(
        [sys.executable, str(SERVER), *([key] if key else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Endpoint(int(process.stdout.readline()), key)
        process.stdin.close()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    """A server without a key."""
    yield from start()


@pytest.fixture(scope="module")
def locked() -> Iterator[Endpoint]:
    """A server that requires a key."""
    yield from start(SECRET)


Run = Callable[..., list[Event]]


@pytest.fixture
def run(endpoint: Endpoint, tmp_path: Path) -> Run:
    """A function that runs a workload in this process."""

    def do(
        runs: int = 2, private: dict[str, str] | None = None, examples: str = "", **keys: Any
    ) -> list[Event]:
        path = tmp_path / "w.json"
        path.write_text(json.dumps({"model": "plan-10-1", "max_tokens": 4, **keys}))
        driver = ApiDriver(endpoint.private if private is None else private)
        order = WorkOrder(str(path), UNIT, runs=runs, warmup=1, examples=examples)
        return [*driver.run(order), *(driver.answer(order) if examples else ())]

    return do


def findings(events: list[Event]) -> RunFindings:
    """The findings of a run."""
    return next(event for event in events if isinstance(event, RunFindings))


def measured(events: list[Event]) -> MeasureReport:
    """The timed requests."""
    return next(event for event in events if isinstance(event, MeasureReport))


def notes(events: list[Event]) -> str:
    """All notes, joined."""
    return "; ".join(next(event for event in events if isinstance(event, ModelDescription)).notes)


def test_times_are_those_of_the_schedule_in_its_order(endpoint: Endpoint, run: Run) -> None:
    before = len(endpoint.did())
    events = run(runs=3, model="plan-20-5", max_tokens=6)
    did = endpoint.did()[before:][1:]  # the first request was the warm-up
    series = findings(events).series
    assert [len(series[name]) for name in ("ttft", "itl", "tpot", "e2e")] == [3, 15, 3, 3]
    assert measured(events).samples_ns == series["e2e"]
    assert len(measured(events).warmup_ns) == 1
    for result, ttft, tpot, e2e in zip(did, series["ttft"], series["tpot"], series["e2e"], strict=True):
        assert 20_000_000 <= ttft < e2e, "nothing is seen before it was sent"
        assert e2e >= result["sent"][-1] - result["begun"]
        assert tpot == round((e2e - ttft) / 5)
    assert not any(isinstance(event, LoadReport) for event in events)
    assert findings(events).figures["output_tokens"] == 18
    assert findings(events).figures["prompt_tokens"] == 30


def test_every_level_asks_what_it_should_and_no_made_prompt_comes_twice(endpoint: Endpoint, run: Run) -> None:
    before = len(endpoint.did())
    events = run(
        runs=3, concurrency=[1, 4], rates=[50], requests=8, slo={"ttft_ms": 60_000}, seed=5, temperature=0.5
    )
    requests = [result["request"] for result in endpoint.did()[before:]]
    assert len(requests) == 1 + 3 + 8 + 8
    assert len({one["messages"][0]["content"] for one in requests}) == len(requests)
    assert {(one["seed"], one["temperature"], one["max_tokens"]) for one in requests} == {(5, 0.5, 4)}
    figures = findings(events).figures
    assert (figures["requests"], figures["c4_requests"], figures["r50_requests"]) == (3, 8, 8)
    assert figures["goodput_share"] == figures["c4_goodput_share"] == 1.0
    assert figures["r50_saturated"] == 0.0
    assert figures["c4_output_tokens"] == 32
    assert "r50_lag_ms_max" in figures


def test_completions_and_answers_in_one_piece_are_measured_too(endpoint: Endpoint, run: Run) -> None:
    assert findings(run(endpoint="completions")).figures["output_tokens"] == 8
    assert endpoint.did()[-1]["request"]["chat"] is False
    events = run(stream=False)
    assert set(findings(events).series) == {"e2e"}
    assert "not streamed" in notes(events)


def test_without_usage_no_tokens_are_made_up(run: Run) -> None:
    events = run(model="no-usage")
    assert not {"output_tokens", "output_tokens_per_s"} & findings(events).figures.keys()
    assert "tpot" not in findings(events).series
    assert "reports no usage" in notes(events)


def test_requests_that_fail_are_counted_apart_and_made_up_for(run: Run) -> None:
    events = run(runs=4, model="flaky")
    assert len(measured(events).samples_ns) == 4
    assert findings(events).figures["requests_failed"] >= 1
    assert findings(events).figures["requests"] == 4 + findings(events).figures["requests_failed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "error", "why"),
    [
        ("error-500", Crashed, "HTTP 500: out of luck"),
        ("error-400", Unfit, "refuses this workload: .* HTTP 400: max_tokens is too large"),
        ("html", Crashed, "text/html, not text/event-stream"),
        ("not-json", Crashed, "not JSON"),
        ("cut", Crashed, "the connection ended before the response did"),
        ("redirect", Crashed, "HTTP 307: it redirects, which is not followed"),
        ("long-line", Crashed, "longer than"),
        ("endless", Crashed, "more text than 4 tokens can hold"),
        ("no-text", Crashed, "the server sent no text"),
        ("one-piece", Crashed, "in one piece although a stream was requested"),
        ("no-http", Crashed, "this is not HTTP"),
        ("big-head", Crashed, "not HTTP/1.1: Receive buffer too long"),
        ("silent", Crashed, r"no whole response within 0\.3 s"),
        ("nowhere", WrongUnit, "does not serve 'nowhere'"),
    ],
)
def test_a_server_that_breaks_the_rules_fails_the_run_with_a_line(
    model: str, error: type[DriverError], why: str, run: Run
) -> None:
    with pytest.raises(error, match=why):
        run(model=model, timeout_s=0.3 if model == "silent" else 20)


def test_an_answer_that_ends_with_its_connection_is_whole(run: Run) -> None:
    assert findings(run(runs=3, model="no-length")).figures["output_tokens"] == 12


@pytest.mark.slow
def test_a_server_that_cannot_keep_up_ends_the_open_sweep(run: Run) -> None:
    events = run(model="one-at-a-time", max_tokens=3, rates=[100, 200, 300], requests=60)
    assert findings(events).figures["r100_saturated"] == 1.0
    assert "r200_requests" not in findings(events).figures
    assert "saturated at 100 requests a second: not tried: 200, 300" in notes(events)


ARTICLES = ("One. Two. Three.", "Four. Five.", "Six. Seven. Eight. Nine.", "Ten. Eleven. Twelve.")


def examples_in(folder: Path, *examples: Values) -> str:
    file = folder / "articles.examples"
    file.write_bytes(pack_examples(examples))
    return str(file)


def prompts_in(folder: Path) -> str:
    return examples_in(folder, *({UNNAMED: text_value(f"Summarise.\n\n{text}")} for text in ARTICLES))


def answers(events: list[Event]) -> AnswersReport:
    (report,) = (event for event in events if isinstance(event, AnswersReport))
    return report


def texts(report: AnswersReport) -> list[str | None]:
    assert not report.why
    return [answer[UNNAMED].text for answer in unpack_examples(b64decode(report.answers))]


@pytest.mark.parametrize("stream", [True, False])
def test_examples_are_prompts_that_are_answered_in_order_after_what_is_timed(
    endpoint: Endpoint, run: Run, tmp_path: Path, stream: bool
) -> None:
    before = len(endpoint.did())
    keys: dict[str, Any] = {"stream": stream, "concurrency": [3], "ignore_eos": True, "temperature": 0.5}
    events = run(runs=2, model="summary", max_tokens=9, examples=prompts_in(tmp_path), **keys)
    made = ["One. Two. ", "Four. Five.. ", "Six. Seven. ", "Ten. Eleven. "]
    assert texts(answers(events)) == (made if stream else ["one two"] * 4)
    assert findings(events).figures["requests"] == 2
    if stream:  # the server remembers streamed requests
        timed, asked = (endpoint.did()[before:][part] for part in (slice(0, 3), slice(3, None)))
        assert all(one["request"]["ignore_eos"] for one in timed)
        assert not any("ignore_eos" in one["request"] for one in asked), "an answer ends where it ends"
        assert {(one["request"]["max_tokens"], one["request"]["temperature"]) for one in asked} == {(9, 0.5)}


def test_an_answer_that_fails_leaves_the_measurement_whole(run: Run, tmp_path: Path) -> None:
    events = run(runs=2, model="flaky", examples=prompts_in(tmp_path))
    assert not answers(events).answers
    assert re.fullmatch(r"the answer to example \d of 4: HTTP 500: out of luck", answers(events).why)
    assert len(measured(events).samples_ns) == 2


def test_what_no_server_can_answer_is_not_sent(endpoint: Endpoint, run: Run, tmp_path: Path) -> None:
    before = len(endpoint.did())
    tensors = {"x": Value("float32", (1,), bytes(4))}
    events = run(runs=2, examples=examples_in(tmp_path, {UNNAMED: text_value("a")}, tensors))
    assert answers(events).why == "a server takes texts, but example 2 of 2 consists of tensors"
    (tmp_path / "broken.examples").write_bytes(b"no examples")
    events = run(runs=2, examples=str(tmp_path / "broken.examples"))
    assert answers(events).why.startswith("its examples cannot be read: ")
    assert len(endpoint.did()) == before + 2 * 3


def test_answers_that_no_record_can_hold_are_not_asked_for_to_the_end(
    endpoint: Endpoint, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(endpoint.did())
    monkeypatch.setattr(openai_answers, "MAX_ANSWER_BYTES", 15)
    events = run(runs=2, max_tokens=3, examples=prompts_in(tmp_path))  # each answer is "w0 w1 w2 "
    assert "the answer to example 2 of 4: the answers so far exceed" in answers(events).why
    assert len(endpoint.did()) == before + 3 + 2


@pytest.mark.slow
def test_a_black_box_tells_nothing_of_its_inside_and_a_gray_one_does(endpoint: Endpoint, run: Run) -> None:
    black = run()
    assert not [name for name in findings(black).figures if name.startswith("server_")]
    assert next(event for event in black if isinstance(event, ModelDescription)).providers == (
        "access: black",
    )
    gray = run(runs=3, private={**endpoint.private, WATCH: "1"})
    assert next(event for event in gray if isinstance(event, ModelDescription)).providers == ("access: gray",)
    figures = findings(gray).figures
    assert figures["server_output_tokens"] == 12
    assert figures["server_rss_peak_bytes"] >= figures["server_rss_before_bytes"] > 1_000_000
    assert figures["server_cpu_s"] >= 0
    assert "server_gpu_bytes" not in figures


def test_an_endpoint_that_is_not_there_offers_no_unit(endpoint: Endpoint) -> None:
    assert ApiDriver({}).units() == ()
    assert [info.runtime for info in ApiDriver(endpoint.private).units()] == ["planned"]
    for url, why in (
        (f"http://127.0.0.1:{endpoint.port}", "HTTP 404: no such page"),
        ("http://127.0.0.1:1/v1", "does not answer: Connection refused"),
        ("http://no-such-host.invalid/v1", "its host name cannot be resolved on this device"),
        ("http://u:p@127.0.0.1/v1", "must not contain a key or password"),
        ("file:///etc/passwd", "must look like http"),
        ("http://[::1/v1", "cannot be read"),
    ):
        with pytest.raises(Unfit, match=why) as failure:
            ApiDriver({URL: url}).units()
        assert "127.0.0.1" not in str(failure.value).replace("http://127.0.0.1:8000/v1", ""), (
            "no address of the owner's"
        )
    with pytest.raises(Unfit, match="which no key can contain") as failure:
        ApiDriver({URL: endpoint.private[URL], KEY: SECRET + "\r\nX: y"}).units()
    assert SECRET not in str(failure.value)


async def _idle_then_used(endpoint: Endpoint) -> tuple[int, int]:
    client = Client(read_server(endpoint.private[URL]))
    await client.warm(3)
    first = await client.get("/v1/models")
    for connection in client._idle:  # as a server does with connections that have been idle for long
        connection.transport.close()
    second = await client.get("/v1/models")
    client.close()
    return first.status, second.status


def test_connections_that_were_closed_for_being_idle_are_made_anew(endpoint: Endpoint) -> None:
    assert asyncio.run(_idle_then_used(endpoint)) == (200, 200)
    with pytest.raises(ServerUnreachable, match="Connection refused"):
        asyncio.run(Client(read_server("http://127.0.0.1:1/v1")).get("/"))


# -- in separate processes -----------------------------------------------------------------------------------------------


def workload(folder: Path, **keys: Any) -> str:
    """A workload file."""
    path = folder / "w.json"
    path.write_text(json.dumps({"model": "plan-5-1", "max_tokens": 3, **keys}))
    return str(path)


def test_the_driver_keeps_the_contract(endpoint: Endpoint, tmp_path: Path) -> None:
    check_all(Subject("api", UNIT, workload(tmp_path), private=endpoint.private, loads=False))


def test_one_launch_is_all_however_many_are_asked_for(endpoint: Endpoint, tmp_path: Path) -> None:
    order = WorkOrder(workload(tmp_path), UNIT, runs=30, loads=6, examples=prompts_in(tmp_path))
    with Zygote("api", private={**endpoint.private, WATCH: "1"}) as zygote:
        events = list(measure(order, Limits(load_s=20, run_s=60), zygote))
    assert [len(event.samples_ns) for event in events if isinstance(event, MeasureReport)] == [30]
    assert not any(isinstance(event, LoadReport) for event in events)
    assert findings(events).figures["server_output_tokens"] == 90, (
        "who is watched is seen from the launch too, and what comes after the timed requests is not counted"
    )
    assert texts(answers(events)) == ["w0 w1 w2 "] * 4


@pytest.mark.slow
def test_the_key_opens_the_server_and_is_shown_nowhere(locked: Endpoint, tmp_path: Path) -> None:
    path = workload(tmp_path)
    lines: list[str] = []
    with Zygote("api", private=locked.private) as zygote:
        events = list(measure(WorkOrder(path, UNIT, runs=2), Limits(), zygote))
        assert any(isinstance(event, CheckReport) for event in events)
        lines += map(repr, events)
        for model in ("tells-key", "error-500"):
            with pytest.raises(DriverError) as failure:
                list(measure(WorkOrder(workload(tmp_path, model=model), UNIT, runs=1), Limits(), zygote))
            lines.append(str(failure.value))
        lines += [repr(zygote), repr(read_server(locked.private[URL], SECRET))]
    for key in ("", "sk-wrong"):
        private = {**locked.private, KEY: key}
        offered = probe_units(private={"api": private})
        assert UNIT not in {info.unit for info in offered.units}
        assert any("refuses the key (HTTP 401)" in trouble for trouble in offered.troubles)
        lines += offered.troubles
    assert "Incorrect API key provided: …" in "\n".join(lines)
    assert not [line for line in lines if SECRET in line or "sk-wrong" in line]


def test_no_other_driver_gets_what_the_owner_gave_this_one() -> None:
    environ = {"PATH": os.environ["PATH"], KEY: SECRET, URL: "http://x/v1", WATCH: "1", NAME: "n"}
    assert SECRET not in repr(clean_environment(environ))
    assert not [name for name in clean_environment(environ) if name.startswith("SARK_API")]
    assert "api" not in {info.driver for info in launch.probe_units().units}, (
        "not even tried where nothing is given"
    )

"""Workload files, the figures made from a level, and reading a server's metrics: all pure functions of the API driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.contract.base import Unfit, WorkOrder, WrongUnit
from drivers.openai import figures, prompts, server_process
from drivers.openai.driver import check, choose_model, requests_of
from drivers.openai.load import poisson
from drivers.openai.sse import RequestResult
from drivers.openai.workload import Endpoint, Objectives, Synthetic, Workload, read_workload

MS = 1_000_000


@pytest.fixture
def reading(tmp_path: Path) -> Callable[[str | bytes], Workload]:
    """A function that reads a text as a workload file."""

    def read(content: str | bytes) -> Workload:
        path = tmp_path / "w.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_workload(str(path))

    return read


def test_a_workload_is_the_same_in_yaml_and_in_json(reading: Callable[[str], Workload]) -> None:
    text = "model: m\nendpoint: completions\nprompts: [a, b]\nconcurrency: [1, 16]\nrates: [0.5, 5]\nslo: {ttft_ms: 9}\n"
    result = reading(text)
    assert result == Workload(
        model="m",
        endpoint=Endpoint.COMPLETIONS,
        prompts=("a", "b"),
        concurrency=(1, 16),
        rates=(0.5, 5.0),
        slo=Objectives(ttft_ms=9.0),
    )
    same = {
        "model": "m",
        "endpoint": "completions",
        "prompts": ["a", "b"],
        "concurrency": [1, 16],
        "rates": [0.5, 5],
    }
    assert reading(json.dumps({**same, "slo": {"ttft_ms": 9}})) == result
    assert reading("prompts: {tokens: 7}").prompts == Synthetic(tokens=7)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "write at least `max_tokens: 64`"),
        ("- 1", "must be a table"),
        ("modle: x", r"unknown key 'modle'; known: concurrency"),
        ("url: http://169.254.169.254/", "unknown key 'url'"),
        ("model: x\nmodel: y", "'model' appears twice"),
        ('{"model": "x", "model": "y"}', "'model' appears twice"),
        ("a: &x [1]\nb: *x", "alias"),
        ("model: !!python/object:os.system x", "write the plain value"),
        ("model: 2020-01-01", "model: input should be a valid string"),
        ("model: 7", "model: input should be a valid string, not 7"),
        ("prompts: [[[[[[1]]]]]]", r"prompts\.0: input should be a valid string"),
        ("[" * 100_000, "cannot be read: maximum recursion"),
        ('{"a":' * 40_000, "cannot be read: maximum recursion"),
        ("max_tokens: 0", "max_tokens: input should be greater than or equal to 1, not 0"),
        ("max_tokens: true", "max_tokens: input should be a valid integer, not True"),
        ("temperature: .nan", "temperature: input should be a finite number"),
        ('{"temperature": NaN}', "temperature: input should be a finite number"),
        ("concurrency: [1, 1]", "a level is listed twice"),
        ("concurrency: [129]", r"concurrency\.0: input should be less than or equal to 128, not 129"),
        ("rates: [5, 1]", "rates must rise"),
        ("slo: {}", "slo is empty"),
        ("slo: {p99: 1}", r"unknown key 'slo\.p99'; known: e2e_ms"),
        ("prompts: []", "prompts: tuple should have at least 1 item"),
        ("prompts: ['']", r"prompts\.0: string should have at least 1 character"),
        ('{"prompts": ["\\ud800"]}', r"prompts\.0: input should be a valid string, unable to parse"),
        ("task: summarise", r"no `task`.* write `evaluate: \{task: summarisation\}`"),
        ("stream: 'no'", "stream: input should be a valid boolean"),
        (b"\xff\xfe", "'utf-8' codec can't decode byte"),
        (b"#" * 300_000, "larger than 256 KiB"),
    ],
)
def test_what_is_no_workload_is_refused_with_a_line(
    text: str | bytes, why: str, reading: Callable[[str | bytes], Workload]
) -> None:
    with pytest.raises(Unfit, match=why) as error:
        reading(text)
    assert "\n" not in str(error.value)


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_any_text_is_a_workload_or_unfit(tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(errors="replace"))
    with suppress(Unfit):  # and no other error
        read_workload(str(path))


def test_an_order_that_asks_what_an_api_has_not_is_unfit() -> None:
    for order, why in (
        (WorkOrder("m", "u", precision=0.02), "not with a precision"),
        (WorkOrder("m", "u", dims={"n": 1}), "takes no dims"),
        (WorkOrder("m", "u", pre=({"step": "normalise"},)), "no pre-run"),
        (WorkOrder("m", "u", runs=10_001), "at most 10000"),
        (WorkOrder("m", "u", runs=9_000), "may be at most 1000000"),
    ):
        with pytest.raises(Unfit, match=why):
            check(Workload(), order)
    with pytest.raises(Unfit, match="exceed 64 MiB"):
        check(Workload(prompts=Synthetic(tokens=32_000), max_tokens=1), WorkOrder("m", "u", runs=5000))
    check(Workload(), WorkOrder("m", "u"))
    assert requests_of(Workload(requests=3), 100, 8) == 3
    assert requests_of(Workload(), 2, 8) == 8


def test_a_model_that_is_not_served_here_may_be_elsewhere() -> None:
    assert choose_model("a", ("a", "b")) == "a"
    assert choose_model("", ("a",)) == "a"
    for expected, served in (("c", ("a", "b")), ("", ("a", "b")), ("", ())):
        with pytest.raises(WrongUnit, match="serve"):
            choose_model(expected, served)


def test_made_prompts_differ_from_the_first_word_on_and_come_again_with_the_seed() -> None:
    made = prompts.prompts(Workload(prompts=Synthetic(tokens=20)), 1)
    texts = [made(number) for number in range(50)]
    assert len(set(texts)) == 50
    assert {len(text.split()) for text in texts} == {20}
    assert texts == [
        prompts.prompts(Workload(prompts=Synthetic(tokens=20)), 1)(number) for number in range(50)
    ]
    assert texts[0] != prompts.prompts(Workload(prompts=Synthetic(tokens=20)), 2)(0)
    listed = prompts.prompts(Workload(prompts=("a", "b")), 1)
    assert [listed(number) for number in range(3)] == ["a", "b", "a"]


def test_a_request_says_what_the_workload_does() -> None:
    chat = json.loads(prompts.body(Workload(max_tokens=9, seed=3, ignore_eos=True), "m", "hello"))
    assert chat["messages"] == [{"role": "user", "content": "hello"}]
    assert chat["stream_options"] == {"include_usage": True}
    assert (chat["max_tokens"], chat["seed"], chat["ignore_eos"], chat["stream"]) == (9, 3, True, True)
    plain = json.loads(prompts.body(Workload(endpoint=Endpoint.COMPLETIONS, stream=False), "m", "hello"))
    assert plain["prompt"] == "hello"
    assert "stream_options" not in plain
    assert "seed" not in plain


def test_arrivals_are_seeded_and_come_at_the_rate() -> None:
    due = poisson(10, 2000, 1)
    assert due == poisson(10, 2000, 1)
    assert due != poisson(10, 2000, 2)
    assert list(due) == sorted(due)
    assert due[-1] == pytest.approx(200, rel=0.1)


# -- figures -------------------------------------------------------------------------------------------------------------


def answered(
    ttft_ms: float = 10, e2e_ms: float = 100, tokens: int | None = 10, **changes: Any
) -> RequestResult:
    """A complete answer."""
    values = {
        "ttft_ns": round(ttft_ms * MS),
        "e2e_ns": round(e2e_ms * MS),
        "output_tokens": tokens,
        "pieces": 10,
    }
    return RequestResult(**{"prompt_tokens": 5, **values, **changes})


def test_the_figures_of_a_level_are_those_of_its_complete_requests() -> None:
    answers = [answered(), answered(20, 200), RequestResult("no"), RequestResult("cut", 5, pieces=1)]
    result = figures.of_level("c4_", answers, 2.0, Objectives(ttft_ms=15))
    assert result == {
        "c4_requests": 4,
        "c4_requests_failed": 1,
        "c4_requests_incomplete": 1,
        "c4_requests_per_s": 1.0,
        "c4_output_tokens": 20,
        "c4_output_tokens_per_s": 10.0,
        "c4_tokens_per_piece": 1.0,
        "c4_prompt_tokens": 10,
        "c4_ttft_ms_p50": 15.0,
        "c4_tpot_ms_p50": 15.0,
        "c4_e2e_ms_p50": 150.0,
        "c4_goodput_rps": 0.5,
        "c4_goodput_share": 0.25,
    }


def test_tokens_that_one_answer_does_not_tell_are_not_summed() -> None:
    result = figures.of_level("", [answered(), answered(tokens=None)], 1.0, Objectives(tpot_ms=50))
    assert not {"output_tokens", "output_tokens_per_s", "goodput_rps"} & result.keys()
    assert not [name for name in result if "_p50" in name], (
        "of what travels raw the scheduler makes the statistics"
    )


def test_a_percentile_needs_enough_answers() -> None:
    for n, names in ((1, {"x_p50"}), (44, {"x_p50", "x_p90"}), (459, {"x_p50", "x_p90", "x_p99"})):
        assert figures.percentiles("x", [MS] * n).keys() == names
    assert figures.percentiles("x", [at * MS for at in range(1, 51)]) == {"x_p50": 25.5, "x_p90": 45.0}
    assert figures.percentiles("x", []) == {}


def test_good_is_what_meets_every_objective() -> None:
    slow = answered(10, 1000, 2)
    assert not figures.meets(slow, Objectives(tpot_ms=500))
    assert figures.meets(answered(10, 1000, 1), Objectives(tpot_ms=500)), "one token has no time between"
    assert not figures.meets(slow, Objectives(ttft_ms=50, e2e_ms=999))


def test_a_server_is_full_when_waits_rise_by_much_and_not_by_chance() -> None:
    rising = [10 * MS + at * MS for at in range(40)]
    assert figures.rising(rising)
    assert not figures.rising(rising[:19]), "too few"
    assert not figures.rising([100 * MS + at * MS for at in range(40)]), "by little"
    assert not figures.rising(list(reversed(rising)))
    noisy = [10 * MS + (at * 7919 % 40) * MS for at in range(60)]
    assert not figures.rising(noisy)


def test_names_of_rates_are_names_of_figures() -> None:
    assert [figures.rate_name(rate) for rate in (5, 0.5, 1000, 0.01)] == ["r5", "r0p5", "r1000", "r0p01"]


# -- the gray box --------------------------------------------------------------------------------------------------------


def test_known_counters_are_summed_over_labels_and_rubbish_is_passed_over() -> None:
    page = b"""# HELP vllm:generation_tokens_total x
vllm:generation_tokens_total{engine="0",model_name="a}b"} 10.0
vllm:generation_tokens_total{engine="1"} 5 1700000000
llamacpp:tokens_predicted_total 7
vllm:prompt_tokens_total NaN
unknown_total 3
\xff\xfe
"""
    assert server_process.read_counters(page) == {
        "vllm:generation_tokens_total": 15.0,
        "llamacpp:tokens_predicted_total": 7.0,
    }


def test_what_is_not_seen_is_left_out_of_the_differences() -> None:
    assert server_process.differences({}, {}, 1.0, 0.0) == {}
    counted = {"vllm:prompt_tokens_total": 5.0, "llamacpp:n_decode_total": 1.0}
    later = {"rss": 100, "peak": 300, "cpu_s": 3.0, "gpu": 7}
    later |= {"vllm:prompt_tokens_total": 9.0, "llamacpp:n_decode_total": 0.0}
    assert server_process.differences(counted, later, 1.0, 0.0) == {
        "server_gpu_bytes": 7,
        "server_prompt_tokens": 4.0,
    }, "a counter that fell was started anew"
    risen = server_process.differences({"rss": 90, "peak": 200, "cpu_s": 1.0}, later, 4.0, 150)
    assert risen["server_rss_peak_bytes"] == 300
    assert risen["server_cpu_percent"] == 50.0
    same = {"rss": 90, "peak": 300, "cpu_s": 1.0}
    assert server_process.differences(same, later, 4.0, 150)["server_rss_peak_bytes"] == 150


def test_only_loopback_is_this_host() -> None:
    assert server_process.is_here(("127.0.0.1", "::1"))
    assert not server_process.is_here(("127.0.0.1", "192.0.2.7"))
    assert not server_process.is_here(())
    assert server_process.peak_of("Name:\tx\nVmHWM:\t   12 kB\n") == 12 * 1024
    assert server_process.peak_of("") is None

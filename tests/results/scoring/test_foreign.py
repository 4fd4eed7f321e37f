"""Metrics and tasks of packages run in a separate process: a bad one costs only its own scores, and one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from protocol.formats.examples import MIB, pack_examples, text_value
from protocol.values.answers import answer_set
from results.scoring.foreign import ForeignProcess, ForeignScores
from swarm.base.isolated_process import IsolatedProcessStopped
from tests.plug_ins import install_package

ANSWERS = answer_set(pack_examples({"": text_value(word)} for word in ("a", "b", "c")))
REFERENCES = ("a", "b", "x")
GOOD = """
class Right:
    name = "right"
    def score(self, answers):
        return {"right": sum(answer.outputs == answer.reference for answer in answers) / len(answers)}
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def put(body: str, *, before: str = "", limit_s: str = "60") -> None:
        source = f"import os, random, signal, sys, time\n{before}\nclass Bad:\n name = 'bad'\n limit_s = {limit_s}\n"
        source += f" def score(self, answers):\n  {body}\n"
        install_package(tmp_path, monkeypatch, "bads", "bad = bads_module:Bad", source, version="1.2")
        install_package(tmp_path, monkeypatch, "goods", "right = goods_module:Right", GOOD)

    return put


def scored(*names: str, memory_bytes: int | None = None) -> list[ForeignScores]:
    with ForeignProcess(memory_bytes=memory_bytes) as process:
        return list(process.score(names, ANSWERS, REFERENCES))


@pytest.mark.parametrize(
    ("body", "limit_s", "why"),
    [
        ("time.sleep(1000)", "0.3", "metric 'bad' of bads 1.2 did not answer within 0.3 s"),
        ("while True: pass", "0.3", "did not answer within 0.3 s"),
        ("os._exit(3)", "60", "metric 'bad' of bads 1.2 ended its process with exit code 3"),
        (
            "print('no licence', file=sys.stderr, flush=True); os._exit(3)",
            "60",
            "with exit code 3: no licence",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "60", "metric 'bad' of bads 1.2 crashed (SIGSEGV)"),
        ("raise SystemExit(2)", "60", "metric 'bad' failed: SystemExit: 2"),
        ("return {'bad': float('nan')}", "60", "gives nan for 'bad'"),
        ("return 'much'", "60", "gives str, not names with numbers"),
        ("return {f's{n}': 1.0 for n in range(100_000)}", "60", "gives 100000 scores, but 64 are allowed"),
        (
            "return {'bad': 1.0}",
            "'long'",
            "metric 'bad': limit_s is 'long': it has to be a number of seconds, up to 3600",
        ),
    ],
)
def test_a_bad_metric_costs_its_own_scores_and_the_next_has_its(
    install: Install, body: str, limit_s: str, why: str
) -> None:
    install(body, limit_s=limit_s)
    bad, right = scored("bad", "right")
    assert why in bad.why
    assert bad.scores == {}
    assert right == ForeignScores({"right": pytest.approx(2 / 3)}, "goods 1.0")


def test_what_a_metric_prints_is_no_answer_and_fills_nothing(install: Install) -> None:
    install("[print('x' * 2**20) for _ in range(64)]; sys.stdin.read(); return {'bad': 1.0}")
    assert scored("bad") == [ForeignScores({"bad": 1.0}, "bads 1.2")]


def test_a_metric_that_eats_memory_is_ended(install: Install) -> None:
    install("kept = []\n  while True: kept.append(bytearray(os.urandom(2**24)))")
    (bad,) = scored("bad", memory_bytes=512 * MIB)
    assert bad.why == "metric 'bad' of bads 1.2 took more than 0.5 GiB of memory"
    assert bad.cut_off


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.parametrize("leave", ["", "os.setsid()"])
def test_what_a_metric_starts_ends_with_it(install: Install, tmp_path: Path, leave: str) -> None:
    pids = tmp_path / "pids"
    install(
        f"child = os.fork()\n  if child == 0:\n   {leave or 'pass'}\n   time.sleep(1000)\n"
        f"  open({str(pids)!r}, 'w').write(str(child)); return {{'bad': 1.0}}"
    )
    assert scored("bad") == [ForeignScores({"bad": 1.0}, "bads 1.2")]
    child = int(pids.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_whoever_waits_can_stop_it(install: Install) -> None:
    install("time.sleep(1000)")
    with ForeignProcess(stopped=lambda: True) as process, pytest.raises(IsolatedProcessStopped):
        list(process.score(["bad"], ANSWERS, REFERENCES))


def test_a_metric_that_cannot_be_loaded_is_said_before_anything_is_measured(install: Install) -> None:
    install("return {}", before="raise RuntimeError('no licence')")
    with ForeignProcess() as process:
        process.load(["right"])
        with pytest.raises(
            ValueError, match="'bad' of package 'bads' does not load: RuntimeError: no licence"
        ):
            process.load(["right", "bad"])


def test_a_task_of_a_package_is_read_there_and_its_examples_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
import os, time
from results.scoring.plugins import Example

class Words:
    name = "words"
    metrics = ("wer",)
    limit_s = 20
    def examples(self, data, options):
        match options["mode"]:
            case "hang": time.sleep(1000)
            case "leave": os._exit(0)
            case "refuse": raise ValueError("words needs data")
        yield Example(data.read_text(), list(options["sizes"]))
"""
    install_package(tmp_path, monkeypatch, "words", "words = words_module:Words", source, group="sark.tasks")
    data = tmp_path / "data.txt"
    data.write_text("Say it")
    with ForeignProcess() as process:
        read = process.read("words", data, {"mode": "", "sizes": (1, 2)})
        assert read == (pack_examples([{"": text_value("Say it")}]), ([1, 2],), ("wer",))
        with pytest.raises(ValueError, match="task 'words': words needs data"):
            process.read("words", data, {"mode": "refuse"})
        with pytest.raises(
            ValueError, match=r"task 'words' of words 1\.0 ended its process with exit code 0"
        ):
            process.read("words", data, {"mode": "leave"})

"""Scores of all metrics together, built-in ones and those of packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.formats.examples import pack_examples, text_value
from protocol.values.answers import answer_set
from results.scoring.account import EvaluationAccount
from results.scoring.scorer import Learned, Scorer
from tests.plug_ins import install_package

ACCOUNT = EvaluationAccount(title="t", metrics=("wer", "mine"), references=("a b", "c"))


class Recorded:
    """The parts of a record that a scorer reads."""

    def __init__(self, campaign: str = "c-1") -> None:
        self.campaign = campaign
        self.answers = answer_set(pack_examples({"": text_value(text)} for text in ("a b", "d")))


RECORD: Any = Recorded()

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def put(score: str, version: str = "1.2") -> None:
        source = "import os, random, time\nclass Mine:\n name = 'mine'\n limit_s = 0.5\n"
        source += f" def score(self, answers): {score}\n"
        install_package(tmp_path, monkeypatch, "mines", "mine = mines_module:Mine", source, version=version)

    return put


def test_a_metric_that_fails_leaves_the_others_theirs(install: Install) -> None:
    install("os._exit(1)")
    with Scorer() as scorer:
        scores = scorer.score(RECORD, ACCOUNT)
    assert dict(scores.scores) == {"wer": pytest.approx(1 / 3)}
    assert scores.why == "metric 'mine' of mines 1.2 ended its process with exit code 1"
    assert dict(scores.packages) == {"mine": "mines 1.2"}


def test_a_score_that_another_metric_gives_too_counts_once(install: Install) -> None:
    install("return {'wer': 0.0}")
    with Scorer() as scorer:
        scores = scorer.score(RECORD, ACCOUNT)
    assert dict(scores.scores) == {"wer": pytest.approx(1 / 3)}
    assert scores.why == "metric 'mine' gives 'wer', which another metric gives too"


@pytest.mark.parametrize("chance", ["random.random()", "hash('a')", "time.time() % 1000"])
def test_a_metric_that_is_not_repeatable_is_found_by_scoring_twice(install: Install, chance: str) -> None:
    install(f"return {{'mine': float({chance})}}")
    with Scorer(check_steady=True) as scorer:
        scores = scorer.score(RECORD, ACCOUNT)
    assert "metric 'mine' of mines 1.2 is not repeatable: mine was " in scores.why
    assert "mine" not in scores.scores


def test_a_metric_that_reaches_its_limit_again_and_again_is_not_begun_in_that_campaign(
    install: Install,
) -> None:
    learned, again = Learned(), "metric 'mine' failed in this way before, and was not started again"
    install("time.sleep(1000)")
    whys = []
    for _ in range(3):
        with Scorer(learned=learned) as scorer:
            whys.append(scorer.score(RECORD, ACCOUNT).why)
    assert whys == [*["metric 'mine' of mines 1.2 did not answer within 0.5 s"] * 2, again]
    install("return {'mine': 1.0}", "1.3")  # repaired in the meantime
    other: Any = Recorded("c-2")
    with Scorer(learned=learned) as scorer:
        scores = scorer.score(other, ACCOUNT)
    assert (scores.scores["mine"], scores.why, scores.packages["mine"]) == (1.0, "", "mines 1.3")

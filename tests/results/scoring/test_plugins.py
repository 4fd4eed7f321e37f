"""Where tasks and metrics are found, and what a broken one costs: a line that names its package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from results.scoring.built_in import METRICS, TASKS
from results.scoring.plugins import NAME, find_metric, find_task
from tests.plug_ins import install_package

GOOD = """
class Longest:
    name = "longest"
    def score(self, answers):
        return {"longest": float(max(len(answer.outputs) for answer in answers))}
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that installs a package with one module and one entry point, as pip would."""

    def put(package: str, point: str, source: str, group: str = "sark.metrics") -> None:
        install_package(tmp_path, monkeypatch, package, point, source, group=group)

    return put


def test_what_comes_with_sark_keeps_the_contract() -> None:
    for name, task in TASKS.items():
        assert NAME.fullmatch(name)
        assert find_task(name) is task
        assert set(task.metrics) <= set(METRICS)
    for name, metric in METRICS.items():
        assert NAME.fullmatch(name)
        assert find_metric(name) is metric


def test_a_metric_of_an_installed_package_is_found(install: Install) -> None:
    install("lengths", "longest = lengths_module:Longest", GOOD)
    assert find_metric("longest").name == "longest"


def test_an_unknown_name_is_answered_with_the_nearest_and_all_there_are(install: Install) -> None:
    install("lengths", "longest = lengths_module:Longest", GOOD)
    with pytest.raises(
        ValueError, match=r"no metric 'longst': did you mean 'longest'\? there are: accuracy, .*longest"
    ):
        find_metric("longst")
    with pytest.raises(ValueError, match=r"no task 'clasification': did you mean 'classification'\?"):
        find_task("clasification")


def test_no_package_takes_the_place_of_ours(install: Install) -> None:
    install("rogue", "accuracy = rogue_module:Rogue", "raise SystemExit")
    assert find_metric("accuracy") is METRICS["accuracy"]


def test_two_packages_with_one_name_are_both_named(install: Install) -> None:
    install("lengths", "longest = lengths_module:Longest", GOOD)
    install("others", "longest = others_module:Longest", GOOD)
    with pytest.raises(ValueError, match="comes with package 'lengths' and package 'others': uninstall"):
        find_metric("longest")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_module_at_all", "does not load: ModuleNotFoundError: No module named"),
        ("x = (", "does not load: SyntaxError"),
        ("other = 1", "does not load: AttributeError"),
        ("class Longest:\n    def __init__(self, size): ...", "does not load: TypeError"),
        ("def Longest(): raise RuntimeError('a\\nb')", "does not load: RuntimeError: a b"),
        ("class Odd(Exception): ...\nraise Odd('no licence')", "does not load: Odd: no licence"),
        ("class Longest: name = 'longest'", "is not a metric: it has no score"),
        (GOOD.replace('name = "longest"', 'name = "shortest"'), "calls itself 'shortest'"),
    ],
)
def test_a_broken_plug_in_costs_one_line_with_its_package(install: Install, source: str, why: str) -> None:
    install("broken", "longest = broken_module:Longest", source)
    with pytest.raises(ValueError, match="metric 'longest' of package 'broken' ") as failed:
        find_metric("longest")
    assert why in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_task_says_which_metrics_it_has(install: Install) -> None:
    source = "class Mine:\n name = 'mine'\n metrics = 'accuracy'\n def examples(self, data, options): ..."
    install("lengths", "mine = lengths_module:Mine", source, "sark.tasks")
    with pytest.raises(ValueError, match="has no list of metrics: write metrics = "):
        find_task("mine")


def test_a_name_that_no_campaign_could_write_is_refused(install: Install) -> None:
    install(
        "lengths", "Long-est = lengths_module:Longest", GOOD.replace('name = "longest"', 'name = "Long-est"')
    )
    with pytest.raises(ValueError, match="no name that a campaign can use: small letters"):
        find_metric("Long-est")

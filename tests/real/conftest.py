"""One gate and two workers for all tests here. Whatever a test ends is up again for the next."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.lab import Lab, a_lab, marked, until

SCHEDULERS = ("ada", "bob", "carol")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here: all of them start real processes."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_reaches_children() -> None:
    """Make Ctrl-C reach children: a suite started in the background of a shell ignores it, and so would every process it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def whole_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab that is started once. It ends, with every child, before the session ends."""
    with a_lab(tmp_path_factory.mktemp("lab"), SCHEDULERS) as lab:
        yield lab
    until(lambda: not marked(lab.mark), "nothing of the lab is left")


@pytest.fixture
def lab(whole_lab: Lab) -> Lab:
    """The lab with its gate and both workers up."""
    whole_lab.mend()
    return whole_lab

"""What a parent takes of a child's story, and where it stops listening."""

from __future__ import annotations

import pytest

from drivers.contract.base import ProgressReport, RunFindings
from drivers.contract.frames import Garbled
from drivers.launch.events import MAX_CHANGES, MAX_FINDINGS, LaunchEvents
from drivers.measure.stopping import LaunchSpec, MeasureJob
from protocol.formats.phase import Phase


def test_figures_without_end_are_not_gathered() -> None:
    answers = LaunchEvents(LaunchSpec(MeasureJob.RUN, 1), served=False, cold=False)
    for at in range(MAX_FINDINGS):
        assert answers.take(RunFindings({f"figure_{at}": 1.0}))
    with pytest.raises(Garbled, match="one RunFindings too many"):
        answers.take(RunFindings({"figure": 1.0}))


def test_a_launch_that_only_times_tells_no_figures() -> None:
    with pytest.raises(Garbled, match="one RunFindings too many"):
        LaunchEvents(LaunchSpec(MeasureJob.REPEAT, 1), served=False, cold=False).take(
            RunFindings({"figure": 1.0})
        )


def test_phases_that_change_without_end_are_not_forwarded() -> None:
    answers = LaunchEvents(LaunchSpec(MeasureJob.RUN, 1), served=False, cold=False)
    for at in range(MAX_CHANGES):
        for done in range(3):  # going on within one is no change
            assert answers.take(ProgressReport((Phase.LOAD, Phase.RUN)[at % 2], done))
    with pytest.raises(Garbled, match="changed its phase"):
        answers.take(ProgressReport(Phase.CHECK))

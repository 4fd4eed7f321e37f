"""What a parent accepts from a child's events, and where it stops listening."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pydantic import ValidationError

from drivers.contract.base import Limits, ProgressReport, RunFindings, Unfit
from drivers.contract.frames import HEADER_BYTES, Garbled, pack_failure
from drivers.launch.events import MAX_CHANGES, MAX_FINDINGS, LaunchEvents, replies, unpack
from drivers.measure.stopping import LaunchSpec, MeasureJob
from protocol.formats.phase import Phase


def test_figures_without_end_are_not_gathered() -> None:
    answers = LaunchEvents(LaunchSpec(MeasureJob.RUN, 1), served=False, cold=False)
    for at in range(MAX_FINDINGS):
        assert answers.take(RunFindings({f"figure_{at}": 1.0}))
    with pytest.raises(Garbled, match="an unexpected RunFindings"):
        answers.take(RunFindings({"figure": 1.0}))


def test_a_launch_that_only_times_tells_no_figures() -> None:
    with pytest.raises(Garbled, match="an unexpected RunFindings"):
        LaunchEvents(LaunchSpec(MeasureJob.REPEAT, 1), served=False, cold=False).take(
            RunFindings({"figure": 1.0})
        )


def test_phases_that_change_without_end_are_not_forwarded() -> None:
    answers = LaunchEvents(LaunchSpec(MeasureJob.RUN, 1), served=False, cold=False)
    for at in range(MAX_CHANGES):
        for done in range(3):  # progress within a phase is no change
            assert answers.take(ProgressReport((Phase.LOAD, Phase.RUN)[at % 2], done))
    with pytest.raises(Garbled, match="changed its phase"):
        answers.take(ProgressReport(Phase.CHECK))


def error_of(payload: bytes) -> tuple[int, str]:
    """The number of errors that the check of a frame has gathered, and the message."""
    with pytest.raises(Garbled) as caught:
        unpack(payload)
    why = caught.value.__context__
    assert isinstance(why, ValidationError)
    return why.error_count(), str(caught.value)


def test_a_million_wrong_numbers_are_refused_at_the_first() -> None:
    wrong = b",".join([b"-1"] * 1_000_000)
    rest = b'"cpu_s":1,"wall_s":1,"peak_bytes":1,"timer_overhead_ns":1,"involuntary_switches":1'
    count, text = error_of(b'MeasureReport {"samples_ns":[' + wrong + b'],"warmup_ns":[],' + rest + b"}")
    assert count == 1
    assert text.startswith("MeasureReport: samples_ns.0: ")
    assert len(text) < 300
    assert error_of(b'RunFindings {"series":{"ttft":[' + wrong + b"]}}")[0] == 1


def test_wrong_names_are_refused_at_the_first_and_unknown_fields_are_only_counted() -> None:
    wrong = b",".join(b'"X%d":-1' % at for at in range(20_000))
    assert error_of(b'RunFindings {"figures":{' + wrong + b"}}")[0] == 1
    count, text = error_of(b"RunFindings {" + wrong + b"}")
    assert text == f"RunFindings has {count} errors"


class Hanging:
    """A child that reports an error, then sends nothing until its deadline."""

    code = None
    closed = False

    def frames(self, deadline: Callable[[], float]) -> Iterator[bytes]:
        yield pack_failure(Unfit("a broken model"))[HEADER_BYTES:]
        raise TimeoutError  # as at the deadline

    def kill(self) -> None:
        self.close()

    def close(self) -> str:
        self.closed = True
        return ""


def test_an_error_counts_as_soon_as_it_comes() -> None:
    child = Hanging()
    with pytest.raises(Unfit, match="a broken model"):
        replies(child, Limits(load_s=0.5))
    assert child.closed

"""A stranger's record against what its scheduler witnessed: refused, doubted or believed."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.values.record import LoadSample, Record, pack_samples
from protocol.values.task import Measure
from protocol.words import Reason
from results.row.figures import judge
from results.row.record import RecordView, observe
from results.row.verdict import findings
from results.row.verdicts import RowVerdict
from results.row.witness import NOTE_S, WitnessAccount, doubts, refusal, unexplained_s, witnessed_max_ms
from tests.results.row.witness_parts import (
    EACH_S,
    LAUNCHES,
    OPENING,
    START_S,
    account,
    facts,
    note,
    output,
    record,
    timing,
    view,
)


def why_refused(what: Record, seen: WitnessAccount | None = None) -> str:
    refused = refusal(what, observe(what), seen or account())
    assert refused is None or refused[0] is Reason.NOT_WITNESSED
    return refused[1] if refused else ""


def test_an_honest_run_is_believed() -> None:
    assert why_refused(record()) == ""
    assert doubts(view(), account()) == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reveal": b"x" * 32}, "do not follow from what was revealed"),
        ({"opening": None, "reveal": None}, "do not follow from what was revealed"),
        ({"ran": facts(seed=0)}, "inputs of its first launch"),
        ({"ran": None}, "inputs of its first launch"),
        ({"ran": facts(output_sha256="9" * 64)}, "not those of its first launch"),
        (
            {"timings": (timing(1), timing(2, output=None), timing(3))},
            "does not report the outputs of launch 2",
        ),
        ({"timings": (timing(1), timing(2, output=output(9)), timing(3))}, "launch 2 reported other outputs"),
        ({"timings": (timing(1), timing(2))}, "leaves out launch 3"),
    ],
)
def test_a_broken_chain_is_refused(changes: dict[str, Any], why: str) -> None:
    assert why in why_refused(record(**changes))


def test_a_launch_that_claims_more_time_than_there_was_since_the_reveal_is_refused() -> None:
    seen = account(notes=(note(1, EACH_S - 0.1), note(2), note(3)))
    assert "1 launch with 2 s of loads and inferences ended 1.9 s after the reveal" in why_refused(
        record(), seen
    )


def test_launches_that_fit_one_by_one_and_not_together_are_refused() -> None:
    seen = account(notes=(note(1, EACH_S), note(2, 2 * EACH_S - 0.2), note(3)))
    assert "2 launches with 4 s" in why_refused(record(), seen)


def test_a_result_that_came_too_soon_is_refused() -> None:
    seen = account(notes=(), result_s=LAUNCHES * EACH_S - 0.1)
    assert "it claims 6 s, but arrived 5.9 s after the reveal" in why_refused(record(), seen)


def test_loads_that_no_inferences_follow_need_time_too() -> None:
    more = record(loads=tuple(LoadSample(ns=500_000_000) for _ in range(LAUNCHES + 4)))
    assert "it claims 8 s" in why_refused(more)


def test_clocks_that_differ_a_little_refuse_nobody() -> None:
    seen = account(notes=(), result_s=LAUNCHES * EACH_S * 0.999)
    assert why_refused(record(), seen) == ""


def test_notes_that_came_late_or_out_of_order_refuse_nobody() -> None:
    late = 3 * EACH_S + 3 * START_S
    seen = account(notes=(note(1, late), note(2, late), note(3, late)))
    assert why_refused(record(), seen) == ""
    assert "launch 2 claims 2 s, but ended 0 s after the one before" in "; ".join(doubts(view(), seen))


def test_a_note_may_be_a_little_late() -> None:
    seen = account(notes=(note(1, EACH_S + START_S + NOTE_S), note(2), note(3)))
    assert doubts(view(), seen) == []


def test_notes_that_were_lost_are_a_doubt_and_no_refusal() -> None:
    seen = account(notes=(note(1),))
    assert why_refused(record(), seen) == ""
    assert doubts(view(), seen) == ["the ends of 2 of 3 launches were not reported in time"]


def test_time_that_nothing_explains_is_a_doubt() -> None:
    seen = account(result_s=60.0)
    assert doubts(view(), seen) == ["nothing explains 90% of the 60 s that it took"]
    assert unexplained_s(view(), seen) == pytest.approx(54.0)


def test_a_window_that_is_longer_than_its_samples_explains_no_more_than_they_do() -> None:
    """All the work was done, but the samples claim a tenth of the time. The windows keep their length, and only the samples lie."""
    lie = tuple(timing(number, samples=pack_samples([10**7] * 10), wall_s=10.0) for number in (1, 2, 3))
    seen = account(notes=tuple(note(n, n * 11.1) for n in (1, 2, 3)), result_s=33.4)
    assert why_refused(record(timings=lie), seen) == ""
    assert doubts(view(timings=lie), seen) == ["nothing explains 90% of the 33.4 s that it took"]


def test_outputs_that_were_not_repeated_here_are_unchecked_whatever_their_worker_says_of_them() -> None:
    observed = view()
    sure = account(canary="launch 2 confirmed", confirmed=True)
    unsure = account(canary="unchecked: this home had too many other inferences to repeat")
    verdicts = [
        {verdict for verdict, _ in judge(record(ran=facts(agrees=True)), observed, Measure(), account=seen)}
        for seen in (sure, unsure, None)
    ]
    assert [RowVerdict.UNCHECKED in each for each in verdicts] == [False, True, False]


def test_a_run_that_another_life_began_is_not_witnessed_and_not_refused() -> None:
    seen = WitnessAccount(unwitnessed="another began it")
    assert why_refused(record(reveal=b"x" * 32), seen) == ""
    assert doubts(view(), seen) == ["another began it"]


def test_a_worker_that_was_refuted_later_is_doubted() -> None:
    assert doubts(view(), account(refuted=True)) == ["its worker was refuted by another task of this home"]


def test_a_device_that_is_trusted_needs_no_witness() -> None:
    assert doubts(view(), None) == []


def test_doubts_are_graver_than_all_but_a_simulation() -> None:
    few: RecordView = view()
    verdicts = [verdict for verdict, _ in findings(few, agrees=None, simulated=True, doubts=["why"])]
    assert verdicts[:3] == [RowVerdict.SIMULATED, RowVerdict.UNWITNESSED, RowVerdict.UNCHECKED]


def test_an_account_comes_back_from_its_text() -> None:
    seen = account(canary="launch 2 confirmed")
    assert WitnessAccount.model_validate_json(seen.model_dump_json()) == seen
    assert seen.opening == OPENING.hex()


def test_the_most_that_an_inference_can_have_taken_rests_on_the_schedulers_clock_alone() -> None:
    observed = view()
    assert observed.inferences > 0
    assert witnessed_max_ms(observed, account(result_s=4.0)) == pytest.approx(4000 / observed.inferences)
    assert witnessed_max_ms(observed, account(result_s=None)) is None

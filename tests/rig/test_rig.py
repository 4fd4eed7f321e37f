"""The rig itself: each exceeded limit is a failure, false rows are told from honest ones, and every row of the references is covered."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rig.attack import Attack, Node, Target, nothing
from tests.rig.catalogue import ATTACKS
from tests.rig.covered import COVERED
from tests.rig.rig import missing_evidence
from tests.rig.verdict import MIB, Result, Window, honest_rows, line, table
from tests.rig.weakened import WEAKNESSES, Weakness, weaken

QUIET = Window(
    latencies_ms=tuple(range(1, 101)),
    newcomers=10,
    campaign_s=5.0,
    peak={"gate": 100 * MIB, "scheduler": 90 * MIB},
)
BESIDE = replace(QUIET, before={"gate": 95 * MIB})
HELD = Result("calm", "1", (QUIET,), (BESIDE,))
EXPECTED = {"m0.json": 20.0, "m1.json": 21.0}
WORKERS = {"alice": "d-1", "bob": "d-2"}


def row(model: str, **changes: Any) -> dict[str, Any]:
    plain = {
        "FileName": model, "Status": "Complete", "Reason": "", "WorkerId": "alice", "DeviceId": "d-1",
        "InferenceMsMedian": EXPECTED.get(model, 0.0),
    }  # fmt: skip
    return plain | changes


def wrong(*rows: dict[str, Any], **options: Any) -> list[str]:
    return honest_rows(rows, EXPECTED, WORKERS, **options)


def test_an_attack_that_changes_nothing_has_held() -> None:
    assert HELD.words == "held"
    assert replace(HELD, attacked=(BESIDE, BESIDE)).words == "held (try 2)"
    assert replace(HELD, facts={"adverts refused": 9}).words == "held (9 adverts refused)"
    assert "held" in table([line(HELD)])


@pytest.mark.parametrize(
    ("beside", "word", "says"),
    [
        ({"latencies_ms": (*range(1, 99), 150, 150)}, "slowed", "p99 150 ms, at most 149"),
        ({"latencies_ms": (*range(1, 99), 149, 149)}, "held", ""),
        ({"peak": {"gate": 160 * MIB, "scheduler": 90 * MIB}}, "broken", "gate grew by 65 MiB"),
        ({"peak": {"gate": 159 * MIB, "scheduler": 154 * MIB}}, "held", ""),
        ({"peak": {"scheduler": 155 * MIB}}, "broken", "scheduler grew by 65 MiB"),
        ({"refused": 3}, "broken", "3 of 10 newcomers refused"),
        ({"unanswered": 6}, "broken", "6 of 100 calls unanswered"),
        ({"unanswered": 5}, "held", ""),
        ({"campaign_s": 15.1}, "slowed", "campaign 15.1 s, at most 15"),
        ({"campaign_s": float("inf")}, "slowed", "did not end"),
        ({"log_kb_s": {"gate": 5.0}}, "broken", "gate logs 5 KB/s"),
    ],
)  # fmt: skip
def test_each_limit_that_is_passed_is_named(beside: dict[str, Any], word: str, says: str) -> None:
    result = replace(HELD, attacked=(replace(BESIDE, **beside),))
    assert result.words == word
    assert says in "; ".join(result.failures)
    assert result.held == (word == "held")


def calls(*p99s: float) -> tuple[Window, ...]:
    return tuple(replace(BESIDE, latencies_ms=(*range(1, 99), p99, p99)) for p99 in p99s)


@pytest.mark.parametrize(
    ("quiet", "attacked", "says"),
    [
        ((99,), (150,), "p99 150 ms, at most 149"),
        ((99,), (150, 100), ""),  # a burst of other work beside the attack
        ((99, 99), (150, 150), "p99 150, 150 ms, at most 149"),
        ((99, 2_000, 99), (150, 150, 150), "p99 150, 150, 150 ms, at most 149"),  # one slow window without the attack hides nothing
        ((99, 200, 200), (290, 290, 290), ""),  # a machine that became slower
    ],
)  # fmt: skip
def test_a_slowdown_is_one_in_every_window_against_the_usual_one_without(
    quiet: tuple[float, ...], attacked: tuple[float, ...], says: str
) -> None:
    assert "; ".join(replace(HELD, quiet=calls(*quiet), attacked=calls(*attacked)).failures) == says


def test_a_machine_too_busy_for_limits_of_time_is_said() -> None:
    assert replace(HELD, quiet=calls(501)).words == "held (machine too busy to see a slowdown)"


def test_newcomers_are_held_against_those_without_the_attack() -> None:
    half = replace(BESIDE, refused=5)
    assert replace(HELD, quiet=(half,), attacked=(half,)).held
    assert replace(HELD, attacked=(half,)).words == "broken"


def test_memory_is_that_of_the_worst_try() -> None:
    tries = tuple(replace(BESIDE, peak={"gate": (95 + mib) * MIB}) for mib in (1, 65, 2))
    assert replace(HELD, attacked=tries).failures == ["gate grew by 65 MiB, at most 64"]


def test_an_attack_that_was_starved_is_tried_again_and_one_that_broke_something_is_not() -> None:
    starved = replace(HELD, wrong=("the rig: 0 answers, at least 2",))
    assert starved.words == "not shown"
    assert starved.may_be_the_machine
    assert not replace(HELD, wrong=("the rig: 0 answers, at least 2", "forged row")).may_be_the_machine
    assert not HELD.may_be_the_machine


def test_what_an_attacker_read_is_a_leak_and_what_it_changed_is_broken() -> None:
    assert replace(HELD, wrong=("leak: the model",)).words == "leak"
    assert replace(HELD, wrong=("leak: the model", "forged row")).words == "broken"


def test_figures_can_be_compared_as_json() -> None:
    plain = replace(HELD, attacked=(replace(BESIDE, campaign_s=float("inf")),)).to_json()
    assert plain["with"]["campaign_s"] is None
    assert plain["with"]["p99_ms"] == 99
    assert plain["growth_mib"] == {"gate": 5.0, "scheduler": 0.0}


def test_the_rows_of_an_honest_campaign_are_one_for_each_model_with_its_own_figure() -> None:
    assert wrong(row("m0.json"), row("m1.json", WorkerId="bob", DeviceId="d-2")) == []


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row("m0.json")], "missing row: m1.json is absent"),
        ([row("m0.json"), row("m1.json", Status="Failed", Reason="timed-out")], "missing row: m1.json is Failed (timed-out)"),
        ([row("m0.json"), row("m1.json", InferenceMsMedian=1.234567)], "forged row: m1.json took 1.23457 ms, in truth 21"),
        ([row("m0.json"), row("m1.json", WorkerId="eve")], "row of an unmarked stranger: m1.json"),
        ([row("m0.json"), row("m1.json", WorkerId="eve", Trust="stranger")], "row of a stranger: m1.json"),
        ([row("m0.json"), row("m1.json", Trust="stranger")], "an honest device as a stranger: m1.json on d-1"),
        ([row("m0.json"), row("m1.json", DeviceId="d-9")], "wrong device: m1.json on d-9"),
        ([row("m0.json"), row("m1.json"), row("m9.json")], "row of nothing submitted: m9.json"),
        ([row("m0.json"), row("m1.json"), row("m1.json")], "missing row: m1.json"),
    ],
)  # fmt: skip
def test_rows_that_are_not_the_honest_ones_are_named(rows: list[dict[str, Any]], says: str) -> None:
    assert says in "; ".join(wrong(*rows))


def test_a_campaign_that_admits_strangers_may_have_their_rows_if_they_say_so() -> None:
    strange = row("m1.json", WorkerId="eve", InferenceMsMedian=1.0)
    assert wrong(row("m0.json"), strange | {"Trust": "stranger"}, strangers=True) == []
    assert "unmarked" in "; ".join(wrong(row("m0.json"), strange, strangers=True))


def test_an_attack_that_did_too_little_has_shown_nothing() -> None:
    attack = Attack("calm", "1", "…", nothing, evidence={"answers": 2, "KiB sent": 10})
    assert missing_evidence(attack, {"answers": 2, "KiB sent": 10}) == []
    assert missing_evidence(attack, {"answers": 1, "KiB sent": 11}) == ["the rig: 1 answers, at least 2"]
    assert missing_evidence(attack, {}) == [
        "the rig: 0 answers, at least 2",
        "the rig: 0 KiB sent, at least 10",
    ]


def test_every_attack_but_none_says_what_it_must_have_done() -> None:
    assert [attack.name for attack in ATTACKS.values() if not attack.evidence] == ["quiet"]


def test_a_defence_that_is_no_longer_there_to_be_taken_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("if good:\n")
    weaken(tmp_path, (Weakness("a.py", "if good:", "if True:"),))
    assert (tmp_path / "a.py").read_text() == "if True:\n"
    with pytest.raises(SystemExit, match=r"a\.py has 0 times what stands in WEAKNESSES: 'if good:'"):
        weaken(tmp_path, (Weakness("a.py", "if good:", "if True:"),))


def test_each_defence_is_where_the_weakened_trees_take_it_out() -> None:
    root = Path(__file__).parents[2]
    for each in itertools.chain(*WEAKNESSES.values()):
        assert (root / each.path).read_text("utf-8").count(each.old) == 1, f"{each.path}: {each.old}"
    assert WEAKNESSES.keys() <= ATTACKS.keys()


def test_every_row_of_the_references_is_shown_by_an_attack_or_a_test_that_exists() -> None:
    shown = {row for attack in ATTACKS.values() for row in re.findall(r"[A-Z]?\d+|also", attack.shows)}
    shown |= {row.split()[0].rstrip(":") for row in COVERED}
    threats = (
        [f"N{n}" for n in range(1, 18)] + [f"D{n}" for n in range(1, 11)] + [f"S{n}" for n in range(1, 15)]
    )
    assert [row for row in (*map(str, range(1, 13)), "also", *threats) if row not in shown] == []
    named = [name.split("::") for names in COVERED.values() for name in names]
    assert [name for path, name in named if f"def {name}(" not in Path(path).read_text("utf-8")] == []


def test_the_attackers_are_told_what_the_rig_knows() -> None:
    target = Target(
        Node("gate", "p", "/ip4/127.0.0.1/tcp/1"),
        (Node("one", "q", "/a"),),
        "ada",
        Path("/x"),
        {"act": "hold"},
    )
    assert Target.read(target.write()) == target

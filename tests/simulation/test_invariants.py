"""The checker itself: a good history passes, and each violation is found in a history that contains it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.history import Event, History, Kind
from tests.simulation.invariants import LIVENESS, SAFETY, check
from tests.simulation.scheduler_invariants import UNSTORED_S, one_start

K = Kind
RUN: dict[str, Any] = {
    "worker": "w",
    "lease": "l1",
    "task": "c/1",
    "attempt": 1,
    "fence": (1, 1),
    "peer": "s",
}
TASK: dict[str, Any] = {"who": "s", "task": "c/1", "attempt": 1, "worker": "w", "fence": (1, 1)}

GOOD = (
    Event(0.0, K.PERMITTED, worker="w", peer="s", word="*"),
    Event(0.1, K.ACCEPTED, who="s", campaign="c"),
    Event(0.2, K.BORN, worker="w", fence=(1, 0)),
    Event(1.0, K.COMMITTED, **TASK, number=0),
    Event(1.1, K.VERB, worker="w", peer="s", word="commit"),
    Event(1.1, K.TAKEN, **RUN),
    Event(1.2, K.WANTED, **TASK),
    Event(1.2, K.BEGAN, **RUN, sha256="m"),
    Event(2.0, K.DEAD, **RUN),
    Event(2.0, K.LEFT, **RUN),
    Event(2.0, K.STORED, worker="w", sha256="r", number=1),
    Event(2.05, K.SENT, worker="w", sha256="r"),
    Event(2.1, K.RECORDED, **TASK, sha256="r", word="succeeded", number=0),
    Event(2.1, K.ENDED, who="s", task="c/1", word="succeeded"),
    Event(2.2, K.ACKNOWLEDGED, **TASK, sha256="r"),
    Event(2.25, K.ANSWERED, worker="w", sha256="r"),
    Event(2.25, K.LET_GO, worker="w", sha256="r", number=1),
    Event(2.5, K.RESTORED, worker="w", sha256="r"),
    Event(2.5, K.BORN, worker="w", fence=(2, 0)),
    Event(3.0, K.QUIET),
    Event(9.0, K.RESERVED, worker="w", number=0),
    Event(9.0, K.VIEW, who="s", task="c/1", word="succeeded"),
)


def good() -> History:
    return History(
        events=list(GOOD),
        slots={"w": 1},
        models={"c/1": "m"},
        tasks={"c/1": "c"},
        attempts={"c": 2},
        siblings={"c/1": "alike", "c/2": "alike"},
        sittings={"c/2": "c/1"},
        final={"c/1": "succeeded"},
        stored=frozenset({"r"}),
    )


def test_a_good_history_has_no_breach() -> None:
    assert check(good()) == []


OTHER = RUN | {"lease": "l2", "fence": (1, 2), "attempt": 2}
BAD: dict[str, tuple[Event, ...]] = {
    "one_record": (Event(4.0, K.RECORDED, **TASK, sha256="q", word="succeeded"),),
    "no_stale_record": (Event(4.0, K.RECORDED, **TASK | {"attempt": 2}, sha256="q", word="pending"),),
    "one_start": (Event(1.3, K.WANTED, **TASK | {"attempt": 2}),),
    "terminal_is_final": (Event(4.0, K.COMMITTED, **TASK | {"attempt": 2}),),
    "attempts_are_bounded": tuple(Event(1.0, K.ATTEMPT_ENDED, **TASK, word="lost") for _ in range(3)),
    "attempts_go_elsewhere": (
        Event(1.0, K.ATTEMPT_ENDED, **TASK, word="lost"),
        Event(1.1, K.COMMITTED, **TASK | {"attempt": 2}, number=1),
    ),
    "acknowledged_is_durable": (Event(4.0, K.ACKNOWLEDGED, **TASK, sha256="gone"),),
    "slots_are_exclusive": (Event(1.5, K.BEGAN, **OTHER),),
    "capacity_holds": (Event(1.5, K.TAKEN, **OTHER),),
    "one_answer": (Event(1.5, K.QUEUED, **RUN | {"lease": "l2", "fence": (1, 2)}),),
    "intents_come_first": (Event(1.5, K.QUEUED, **RUN | {"lease": "l2", "fence": (1, 2), "attempt": 2}),),
    "no_orphan_run": (Event(1.5, K.BEGAN, **OTHER), Event(1.6, K.STOP_ORDERED, **OTHER)),
    "no_stop_while_timing": (
        Event(1.3, K.TIMING, **RUN, number=1),
        Event(1.4, K.STOP_ORDERED, **RUN, word="preempted"),
    ),
    "preempted_at_most_twice": tuple(Event(1.0, K.ATTEMPT_ENDED, **TASK, word="preempted") for _ in range(3)),
    "every_verb_was_authorised": (
        Event(5.0, K.REVOKED, worker="w", peer="s"),
        Event(5.1, K.VERB, worker="w", peer="s", word="renew"),
    ),
    "the_signed_model_ran": (Event(4.0, K.BEGAN, **OTHER, sha256="other"),),
    "sent_is_stored": (Event(4.0, K.SENT, worker="w", sha256="q"),),
    "let_go_was_answered": (Event(4.0, K.LET_GO, worker="w", sha256="q"),),
    "stored_survives": (Event(4.0, K.BORN, worker="w", fence=(3, 0)),),
    "the_old_one_has_no_say": (
        Event(4.0, K.SPOKE, who="new", worker="w", campaign="c", word="adopt", number=1_002),
        Event(4.1, K.SPOKE, who="s", worker="w", campaign="c", word="renew", number=2),
    ),
    "a_run_has_one_record": (Event(4.0, K.RECORDED, **TASK | {"who": "new"}, sha256="q", word="succeeded"),),
    "adoption_repeats_nothing": (
        Event(1.3, K.FOUND, **TASK | {"who": "new", "fence": None}, lease="l1", word="running"),
        Event(1.4, K.COMMITTED, **TASK | {"who": "new", "attempt": 2}),
    ),
    "the_owner_goes_first": (Event(4.0, K.TURN, worker="w", lease="l3", number=1),),
    "replicas_are_apart": (Event(1.3, K.COMMITTED, **TASK | {"task": "c/2"}, number=0),),
    "sittings_are_apart": (Event(4.0, K.COMMITTED, **TASK | {"task": "c/2"}, number=0),),
    "sizes_are_bounded": (Event(4.0, K.SIZE, who="w", word="queue", number=3, cap=2),),
    "who_was_superseded_stops": (
        Event(1.3, K.STEPPED_DOWN, who="s", campaign="c"),
        Event(1.4, K.COMMITTED, **TASK | {"attempt": 2}),
    ),
    "cancelled_is_dead": (
        Event(1.4, K.HEARD, who="s", worker="w", word="renewed", number=1),
        Event(1.5, K.CANCEL_ASKED, task="c/1"),
        Event(1.6, K.ATTEMPT_ENDED, **TASK, word="cancelled"),
    ),
    "owed_stops_are_sent": (
        Event(1.5, K.BEGAN, **OTHER),
        Event(1.6, K.OWED, **OTHER | {"who": "s"}),
        Event(40.0, K.QUIET),
    ),
    "silence_is_noticed": (Event(4.0, K.SILENT, who="s", worker="w", number=20),),
    "deadlines_pass_first": (Event(1.5, K.COMMITTED, **TASK | {"attempt": 2}, word="beside"),),
    "what_is_held_is_hedged": (Event(1.9, K.HELD, who="s", worker="w", task="c/1", number=90),),
    "the_overtaken_are_stopped": (
        Event(1.5, K.TAKEN, **OTHER),
        Event(1.6, K.ATTEMPT_ENDED, **TASK | {"attempt": 2}, word="overtaken"),
        Event(40.0, K.QUIET),
    ),
    "everything_ends": (Event(700.0, K.ENDED, who="s", task="c/2", word="failed"),),
    "reservations_are_released": (Event(9.1, K.RESERVED, worker="w", number=1),),
    "healed_workers_are_found": (Event(40.0, K.SEEN, who="s", worker="w"),),
    "views_agree": (Event(9.1, K.VIEW, who="cli", task="c/1", word="failed"),),
}


NOT_EVENTS = {
    "accepted_is_durable",
    "cancelled_was_asked",
    "chains_are_whole",
    "no_secret_is_exposed",
    "every_worker_serves_again",
}


@pytest.mark.parametrize("name", BAD)
def test_what_must_never_happen_is_seen(name: str) -> None:
    history = good()
    history.events += BAD[name]
    history.sorted()
    assert name in {breach.invariant for breach in check(history)}


@pytest.mark.parametrize(
    ("lease", "state", "asked", "excused"),
    [
        ("l1", "running", False, True),
        ("l2", "running", True, False),
        ("l1", "over", False, False),
        ("l1", "over", True, True),
    ],
)
def test_who_adopts_may_begin_anew_what_was_stopped_after_it_looked_or_cancelled_and_nothing_else(
    lease: str, state: str, asked: bool, excused: bool
) -> None:
    history = good()
    history.events += [Event(1.1, K.CANCEL_ASKED, task="c/1")] if asked else []
    history.events += [
        Event(1.2, K.STOP_ORDERED, worker="w", lease=lease, word="cancelled"),
        Event(1.3, K.FOUND, **TASK | {"who": "new", "fence": None}, lease="l1", word=state),
        Event(1.4, K.COMMITTED, **TASK | {"who": "new", "attempt": 2}),
    ]
    history.sorted()
    observed = {breach.invariant for breach in check(history)}
    assert ("adoption_repeats_nothing" not in observed) is excused


def observed(*events: Event) -> set[str]:
    """The invariants that do not hold once these events are added."""
    history = good()
    history.events += events
    return {breach.invariant for breach in check(history.sorted())}


@pytest.mark.parametrize(
    ("said_at", "number", "excused"), [(1.25, 0, True), (0.9, 0, False), (1.25, None, False)]
)
def test_a_start_that_was_said_just_before_a_kill_is_not_on_disk_and_a_grant_is(
    said_at: float, number: int | None, excused: bool
) -> None:
    task = TASK | {"task": "c/2"}
    events = (
        Event(said_at, K.WANTED, **task, number=number),
        Event(2.15, K.DIED, worker="s"),
        Event(2.2, K.WANTED, **task | {"attempt": 2}, number=0),
    )
    assert ("one_start" not in observed(*events)) is excused


@pytest.mark.parametrize(
    ("heard", "after_s", "allowed"),
    [(False, 5.0, False), (False, 6.0, True), (True, 6.0, False), (True, 9.0, True)],
)
def test_only_a_run_that_was_not_heard_of_is_hedged_after_six_seconds(
    heard: bool, after_s: float, allowed: bool
) -> None:
    task = TASK | {"task": "c/9"}
    report = (Event(1.5, K.REPORTED, **task),) if heard else ()
    hedge = Event(1.0 + after_s, K.COMMITTED, **task | {"attempt": 2, "worker": "v"}, word="beside")
    events = (Event(1.0, K.WANTED, **task, number=0), *report, hedge)
    assert ("deadlines_pass_first" not in observed(*events)) is allowed


def test_what_is_heard_of_a_run_after_its_hedge_was_decided_changes_nothing() -> None:
    task = TASK | {"task": "c/9"}
    events = (
        Event(1.0, K.WANTED, **task, number=0),
        Event(7.3, K.REPORTED, **task),
        Event(7.4, K.COMMITTED, **task | {"attempt": 2, "worker": "v"}, word="beside", ago=0.2),
    )
    assert "deadlines_pass_first" not in observed(*events)


@pytest.mark.parametrize(("ago", "excused"), [(40.0, True), (0.05, False)])
def test_a_deadline_counts_from_the_decision_to_start_however_late_that_is_on_disk(
    ago: float, excused: bool
) -> None:
    task = TASK | {"task": "c/9"}
    events = (
        Event(50.0, K.WANTED, **task, number=0, ago=ago),
        Event(50.1, K.COMMITTED, **task | {"attempt": 2, "worker": "v"}, word="beside", ago=0.1),
    )
    assert ("deadlines_pass_first" not in observed(*events)) is excused


@pytest.mark.parametrize(("leader", "excused"), [("new", True), ("newer", False)])
def test_whoever_leads_a_campaign_at_a_worker_may_take_what_another_adopter_found(
    leader: str, excused: bool
) -> None:
    found = TASK | {"task": "c/2", "fence": None}
    history = good()
    history.tasks["c/2"] = "c"
    history.events += [
        Event(1.3, K.FOUND, **found | {"who": "new"}, lease="l2", word="running"),
        Event(1.4, K.FOUND, **found | {"who": "newer"}, lease="l2", word="over"),
        Event(1.5, K.SPOKE, who=leader, worker="w", campaign="c", word="adopt", number=1_002),
        Event(1.6, K.RECORDED, **found | {"who": "new"}, sha256="q", word="succeeded"),
        Event(1.7, K.COMMITTED, **found | {"who": "newer", "attempt": 2}),
    ]
    names = {breach.invariant for breach in check(history.sorted())}
    assert ("adoption_repeats_nothing" not in names) is excused


@pytest.mark.parametrize(
    ("who", "ended", "excused"), [("new", 60.0, True), ("new", 30.0, False), ("other", 60.0, False)]
)
def test_an_adopter_that_stood_still_knows_what_was_so_before(who: str, ended: float, excused: bool) -> None:
    found = TASK | {"who": "new", "task": "c/2", "fence": None}
    history = good()
    history.tasks["c/2"] = "c"
    history.events += [
        Event(20.0, K.PAUSED, worker=who, number=1),
        Event(25.0, K.DIED, worker="w"),
        Event(ended, K.PAUSED, worker=who, number=0),
        Event(61.0, K.FOUND, **found, lease="l2", word="over"),
        Event(62.0, K.COMMITTED, **found | {"attempt": 2}),
    ]
    names = {breach.invariant for breach in check(history.sorted())}
    assert ("adoption_repeats_nothing" not in names) is excused


@pytest.mark.parametrize(("attempt", "excused"), [(1, True), (3, False)])
def test_what_a_copy_of_an_adopters_home_has_too_may_be_the_copys(attempt: int, excused: bool) -> None:
    found = TASK | {"fence": None}
    events = (
        Event(1.3, K.FOUND, **found | {"who": "new"}, lease="l1", word="running"),
        Event(1.35, K.COMMITTED, **found | {"who": "copy", "attempt": attempt}),
        Event(1.4, K.COMMITTED, **found | {"who": "new", "attempt": 2}),
    )
    assert ("adoption_repeats_nothing" not in observed(*events)) is excused


@pytest.mark.parametrize(("word", "excused"), [("adoptreply", True), ("renewed", False)])
def test_an_adopter_whose_renewals_are_late_may_count_a_run_as_lost(word: str, excused: bool) -> None:
    found, begun = BAD["adoption_repeats_nothing"]
    late = Event(1.32, K.DELAYED, worker="w", peer="new")
    heard = Event(1.35, K.HEARD, who="new", worker="w", word=word, number=3)
    assert ("adoption_repeats_nothing" not in observed(found, late, heard, begun)) is excused


@pytest.mark.parametrize(
    ("who", "at", "excused"), [("copy", 9.0, True), ("copy", 4.0, False), ("copy", 1.5, False)]
)
def test_a_copy_of_a_home_knows_when_a_sitting_ended_that_another_recorded(
    who: str, at: float, excused: bool
) -> None:
    event = Event(at, K.COMMITTED, **TASK | {"who": who, "task": "c/2"}, number=0)
    assert ("sittings_are_apart" not in observed(event)) is excused


@pytest.mark.parametrize(("leader", "excused"), [("new", True), ("s", False)])
def test_who_does_not_lead_a_campaign_at_a_worker_may_end_what_goes_on_there(
    leader: str, excused: bool
) -> None:
    spoke = Event(1.3, K.SPOKE, who=leader, worker="w", campaign="c", word="renew", number=1)
    assert ("cancelled_is_dead" not in observed(spoke, *BAD["cancelled_is_dead"])) is excused


@pytest.mark.parametrize(
    ("word", "said", "excused"), [("stale", True, True), ("stale", False, False), ("renewed", True, False)]
)
def test_a_worker_that_renews_nothing_for_another_leader_counts_as_silent_and_the_stop_as_owed(
    word: str, said: bool, excused: bool
) -> None:
    _, *others = BAD["cancelled_is_dead"]
    owed = [Event(1.6, K.OWED, **TASK, lease="l1")] if said else []
    heard = Event(1.4, K.HEARD, who="s", worker="w", word=word, number=1)
    assert ("cancelled_is_dead" not in observed(heard, *others, *owed)) is excused


@pytest.mark.parametrize(
    ("fence", "said", "excused"), [(None, True, True), (None, False, False), ((1, 1), True, False)]
)
def test_a_run_whose_grant_was_never_heard_is_owed_a_stop(
    fence: tuple[int, int] | None, said: bool, excused: bool
) -> None:
    heard, asked, ended = BAD["cancelled_is_dead"]
    owed = [Event(1.6, K.OWED, **TASK, lease="")] if said else []
    assert ("cancelled_is_dead" not in observed(heard, asked, replace(ended, fence=fence), *owed)) is excused


@pytest.mark.parametrize(("fence", "excused"), [((1, 2), True), ((1, 1), False), (None, False)])
def test_a_run_of_the_same_attempt_under_another_fence_is_not_the_one_that_was_cancelled(
    fence: tuple[int, int] | None, excused: bool
) -> None:
    heard, asked, ended = BAD["cancelled_is_dead"]
    assert ("cancelled_is_dead" not in observed(heard, asked, replace(ended, fence=fence))) is excused


@pytest.mark.parametrize(("undone", "excused"), [(True, True), (False, False)])
def test_a_record_on_its_way_when_its_worker_is_put_back_is_not_the_one_that_comes_under_the_same_name(
    undone: bool, excused: bool
) -> None:
    stored = Event(1.95, K.STORED, worker="w", sha256="q", number=1)
    image = Event(1.9, K.IMAGED, worker="w", number=1)
    back = [Event(1.99, K.ROLLED_BACK, worker="w", number=1)] if undone else []
    late = Event(2.0, K.RECORDED, **TASK | {"who": "old"}, sha256="q", word="succeeded")
    history = good()
    history.events = [each for each in history.events if each.sha256 != "r" or each.kind is not K.STORED]
    history.events += [image, stored, *back, late]
    found = {breach.invariant for breach in check(history.sorted())}
    assert ("a_run_has_one_record" not in found) is excused


def test_what_a_home_that_was_restored_does_again_is_no_breach_and_what_it_wrote_before_is() -> None:
    again = Event(4.0, K.RECORDED, **TASK, sha256="r", word="succeeded", number=0)
    history = good()
    history.events += [
        Event(1.25, K.IMAGED, who="s", number=1),
        Event(2.3, K.IMAGED, who="s", number=2),
        Event(3.5, K.ROLLED_BACK, who="s", number=1),
        again,
        Event(4.0, K.ENDED, who="s", task="c/1", word="succeeded"),
    ]
    assert check(history.sorted()) == []
    history.events = [
        Event(3.5, K.ROLLED_BACK, who="s", number=2) if event.kind is K.ROLLED_BACK else event
        for event in history.events
    ]
    assert {breach.invariant for breach in check(history)} >= {"one_record", "terminal_is_final"}


@pytest.mark.parametrize(("image_at", "excused"), [(1.5, True), (1.25 + UNSTORED_S, False)])
def test_a_start_that_was_said_just_before_a_home_was_copied_is_not_in_the_copy(
    image_at: float, excused: bool
) -> None:
    history = History()
    history.events = [
        Event(1.0, K.COMMITTED, **TASK),
        Event(1.2, K.WANTED, **TASK, number=0),
        Event(image_at, K.IMAGED, who="s", number=1),
        Event(5.0, K.ROLLED_BACK, who="s", number=1),
        Event(6.0, K.WANTED, **TASK | {"attempt": 2}),
    ]
    assert (list(one_start(history)) == []) is excused


def test_a_home_may_be_put_back_to_a_moment_that_was_itself_undone() -> None:
    first, second = (Event(at, K.RECORDED, **TASK, sha256="r") for at in (2.0, 4.0))
    history = History()
    history.events = [
        Event(1.0, K.IMAGED, who="s", number=1),
        first,
        Event(2.5, K.IMAGED, who="s", number=2),
        Event(3.0, K.ROLLED_BACK, who="s", number=1),
        second,
        Event(5.0, K.ROLLED_BACK, who="s", number=2),
    ]
    assert list(history.kept().of(K.RECORDED)) == [first]


def test_what_is_missing_or_reported_in_the_end_is_seen() -> None:
    history = good()
    history.final = {"c/3": "cancelled"}
    history.afterwards = ("c/2",)
    history.broken_chains = ("c: event 3 is missing",)
    history.texts = {"log": "the key is s3cret"}
    history.secrets = ("s3cret",)
    matches = {breach.invariant for breach in check(history)}
    assert matches >= NOT_EVENTS


def test_every_invariant_is_tried_here() -> None:
    tried = {*BAD, *NOT_EVENTS}
    assert {invariant.__name__ for invariant in (*SAFETY, *LIVENESS)} == tried

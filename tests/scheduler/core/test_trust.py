"""Which workers the core gives tasks and models: those that a campaign's trust admits at present."""

from __future__ import annotations

import pytest

from protocol.messages.work import HeldLease
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from protocol.values.task import Model
from protocol.values.trust import OWN, STRANGER, Trust, TrustKind, TrustScope
from protocol.words import Reason
from scheduler.core.commands import CancelOn, CommitTo, EndAttempt, ProbeWorker, RecordWaitReason
from scheduler.core.scheduler import SchedulerCore
from tests.scheduler.core_parts import PEERS, SHA, Story, a_live_task, a_task, advert, of, quote

ANYONE = TrustScope(anyone=True)


class Judgement(dict[str, Trust]):
    """The workers that the submitter trusts; all others are strangers."""

    def of(self, peer: str) -> Trust:
        return self.get(peer, STRANGER)


def a_story(judgement: Judgement, **more: object) -> Story:
    return Story(trust_of=judgement.of, **more)  # type: ignore[arg-type]


def test_a_stranger_is_neither_probed_nor_given_a_task() -> None:
    story = a_story(Judgement(), workers=0)
    orders = story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    assert of(orders, ProbeWorker) == []
    story.tell(story.core.workers.add_quote(PEERS[0], quote(), story.now))
    story.after(60.0)
    assert story.commits == []


@pytest.mark.parametrize(
    "more",
    [
        {"trust": ANYONE},
        {"trust": TrustScope(named=frozenset({PEERS[0]}))},
        {"clauses": (f"peer == {PEERS[0]}",)},
    ],
)
def test_a_campaign_opens_itself_to_strangers_or_names_one(more: dict[str, object]) -> None:
    story = a_story(Judgement(), **more)
    (commit,) = story.commits
    assert commit.trust.kind is (
        TrustKind.STRANGER if "trust" in more and more["trust"] is ANYONE else TrustKind.LISTED
    )


def test_a_task_that_names_a_key_does_not_open_the_others_to_it() -> None:
    story = a_story(Judgement(), clauses=(f"peer == {PEERS[0]}",))
    other = a_story(Judgement(), clauses=(f"peer == {PEERS[1]}",))
    assert [each.peer for each in story.commits] == [PEERS[0]]
    assert other.commits == []


def test_an_attempt_is_recorded_with_the_trust_it_was_made_under() -> None:
    judgement = Judgement({PEERS[0]: Trust(TrustKind.POOL, "lab", "pool-id")})
    (commit,) = a_story(judgement).commits
    assert commit.trust.text == "pool lab"
    judgement[PEERS[0]] = OWN
    assert commit.trust.text == "pool lab"


def test_trust_that_ends_between_the_advert_and_the_commit_counts() -> None:
    judgement = Judgement({PEERS[0]: OWN})
    story = a_story(judgement, workers=0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(0)], story.now))
    judgement.clear()
    story.tell(story.core.workers.add_quote(PEERS[0], quote(), story.now))
    assert story.commits == []


def test_a_queued_lease_is_not_hedged_at_a_worker_whose_trust_ended() -> None:
    judgement = Judgement({PEERS[0]: OWN, PEERS[1]: OWN})
    story = a_story(judgement, workers=1)
    story.grant(story.commits[0], queued=True, position=3, start_s=60.0)
    story.tell(story.core.workers.add_adverts(story.group, [advert(1)], story.now))
    del judgement[PEERS[1]]
    story.tell(story.core.workers.add_quote(PEERS[1], quote(), story.now))
    story.after(5.0)
    assert [each.peer for each in story.commits] == [PEERS[0]]


@pytest.mark.parametrize("queued", [False, True])
def test_what_a_worker_holds_when_its_trust_ends_is_stopped_and_tried_elsewhere(queued: bool) -> None:
    judgement = Judgement({PEERS[0]: OWN, PEERS[1]: OWN})
    story = a_story(judgement, workers=1, attempts=1)
    (commit,) = story.commits
    story.grant(commit, queued=queued)
    story.tell(story.core.workers.add_adverts(story.group, [advert(1)], story.now))
    del judgement[PEERS[0]]
    orders = story.tell(story.core.review_trust(story.now))
    held = HeldLease(lease="l1", fence=Fence(incarnation=1, number=1), epoch=None)
    assert of(orders, CancelOn) == [CancelOn(PEERS[0], (held,), Reason.CANCELLED)]
    (end,) = of(orders, EndAttempt)
    assert (end.task, end.reason) == ("c-one/1", Reason.NOT_TRUSTED)
    story.tell(story.core.workers.add_quote(PEERS[1], quote(), story.now))
    assert [each.peer for each in story.commits] == [PEERS[0], PEERS[1]]
    assert story.core.state.tasks["c-one/1"].tries == 0


def test_a_worker_that_comes_to_be_trusted_gets_tasks_at_once() -> None:
    judgement = Judgement()
    story = a_story(judgement)
    judgement[PEERS[0]] = OWN
    story.tell(story.core.review_trust(story.now))
    assert [each.peer for each in story.commits] == [PEERS[0]]


def test_a_model_goes_to_nobody_that_the_campaign_does_not_admit() -> None:
    judgement = Judgement({PEERS[0]: OWN})
    story = a_story(judgement)
    story.grant(story.commits[0])
    core = story.core
    assert core.may_fetch(PEERS[0], SHA)
    assert core.entrusted_to(PEERS[0]) == ("c-one",)
    judgement.clear()
    assert not core.may_fetch(PEERS[0], SHA)
    assert core.entrusted_to(PEERS[0]) == ()


def test_a_worker_may_fetch_each_model_of_its_task() -> None:
    other = Model(name="other.onnx", sha256="cd" * 32, size=1)
    story = a_story(Judgement({PEERS[0]: OWN}), tasks=[a_task(1).model_copy(update={"beside": (other,)})])
    story.grant(story.commits[0])
    assert story.core.may_fetch(PEERS[0], SHA)
    assert story.core.may_fetch(PEERS[0], other.sha256)
    assert not story.core.may_fetch(PEERS[0], "ef" * 32)


def test_a_stranger_is_no_holder_to_be_named_unless_the_campaign_is_open_to_strangers() -> None:
    judgement = Judgement({PEERS[0]: OWN})
    for trust, shares in ((TrustScope(), False), (ANYONE, True)):
        story = a_story(judgement, trust=trust)
        story.grant(story.commits[0])
        assert story.core.may_share(PEERS[3], story.commits[0].peer, SHA) is shares


def taken_up(judgement: Judgement, **attempt: bool) -> list[object]:
    """What a scheduler does about a run that it finds in its store, at a stranger."""
    entry = a_live_task(1, TaskState.RUNNING, PEERS[0], "l1", Fence(incarnation=1, number=1), **attempt)
    story = a_story(judgement, tasks=0, workers=0, looks=False)
    limits = story.core.state.campaigns["c-one"].limits
    return list(story.tell(story.core.add(limits, [entry], story.now)))


def test_trust_that_ended_while_no_scheduler_ran_counts_at_its_start() -> None:
    assert [type(order) for order in taken_up(Judgement({PEERS[0]: OWN}))] == []
    assert EndAttempt in [type(order) for order in taken_up(Judgement())]


def test_what_was_adopted_from_a_stranger_is_not_stopped_for_that() -> None:
    assert CancelOn not in [type(order) for order in taken_up(Judgement(), inherited=True, stranger=True)]
    assert CancelOn in [type(order) for order in taken_up(Judgement(), inherited=True)]


def test_a_core_that_is_told_nothing_of_trust_takes_all_workers_for_its_own() -> None:
    assert [each.trust for each in Story().commits] == [OWN]
    assert isinstance(Story().core, SchedulerCore)
    assert [type(each) for each in Story().commits] == [CommitTo]


def test_a_task_that_only_untrusted_devices_fit_says_so_while_it_waits() -> None:
    story = a_story(Judgement(), workers=0)
    story.tell(story.core.workers.add_adverts(story.group, [], story.now))
    orders = story.tell(story.core.workers.count_untrusted(story.group, [advert(0), advert(1)]))
    assert [each.words for each in of(orders, RecordWaitReason)] == [
        "2 devices fit but are not trusted: sark-node peers shows which serve you"
    ]

"""A result under another fence than its attempt's is refused, by the service before the store sees it."""

from __future__ import annotations

import pytest

from protocol.messages.work import Result
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from scheduler.conversation.conversation import SchedulerConversation
from tests.scheduler.core_parts import PEERS, SHA, a_live_task

FENCE = Fence(incarnation=2, number=3)


@pytest.mark.parametrize(
    ("fence", "attempt", "peer", "taken"),
    [
        (FENCE, 1, PEERS[0], True),
        (Fence(incarnation=2, number=2), 1, PEERS[0], False),
        (Fence(incarnation=1, number=3), 1, PEERS[0], False),
        (FENCE, 2, PEERS[0], False),
        (FENCE, 1, PEERS[1], False),
    ],
)
def test_only_the_result_of_the_lease_that_counts_is_taken(
    fence: Fence, attempt: int, peer: str, taken: bool
) -> None:
    entry = a_live_task(1, TaskState.RUNNING, PEERS[0], "l-1", FENCE)
    result = Result(
        campaign="c-one", task="c-one/1", attempt=attempt, lease="l-1", fence=fence, sha256=SHA, size=1, signature=b"s" * 64,
    )  # fmt: skip
    assert SchedulerConversation.is_current(entry, peer, result) is taken

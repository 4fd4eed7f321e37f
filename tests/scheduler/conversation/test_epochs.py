"""An answer to an epoch that was raised while the answer was on its way."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.messages.work import AdoptReply, Denied
from protocol.words import Reason
from scheduler.conversation.claims import Rival, RivalKind
from scheduler.conversation.effects import Call, Stored, drive
from scheduler.conversation.links import WorkerLinks
from tests.scheduler.core_parts import PEERS

REFUSAL = Denied(reason=Reason.STALE_EPOCH)


async def adopt(answers: list[tuple[AdoptReply | Denied, int]], rival: Rival | None = None) -> list[object]:
    """The actions of links whose requests get these answers in turn. When an answer arrives, the epoch is the second value of the pair.

    `rival`: the rival that a denial proves.
    """
    did: list[object] = []
    run = SimpleNamespace(limits=SimpleNamespace(epoch=1), done=False, detail="")
    core: Any = SimpleNamespace(
        state=SimpleNamespace(campaigns={"c-one": run}, worker=lambda peer: SimpleNamespace(incarnation=1)),
        held_on=lambda peer: (),
        reconciler=SimpleNamespace(
            reconcile=lambda *args, **named: ["reconciled"], misses_results=lambda *args: False
        ),
        failures=SimpleNamespace(exclude=lambda *args: ["excluded"], end_superseded=lambda *args: ["ended"]),
    )
    shell: Any = SimpleNamespace(now=lambda: 1.0)
    claims: Any = SimpleNamespace(
        accepted=lambda *args: None, proof=lambda campaign: None, rival=lambda *args: rival
    )
    log: Any = SimpleNamespace(warning=lambda *args, **fields: None)
    carry_out: Any = did.extend

    async def perform(effect: Any) -> Any:
        if isinstance(effect, Stored):
            return None
        assert isinstance(effect, Call)
        did.append(("asked", effect.message.epoch))  # type: ignore[attr-defined]
        answer, run.limits.epoch = answers.pop(0)
        return answer

    handle: Any = SimpleNamespace(peer=PEERS[0])
    links = WorkerLinks(core, shell, claims, log, carry_out)
    await drive(links.adopt_campaign(handle, "c-one", math.inf), perform)
    return did


@pytest.mark.parametrize(
    ("raised_to", "did"),
    [
        (2, [("asked", 1), ("asked", 2), "reconciled"]),
        (1, [("asked", 1), "excluded", "reconciled"]),
    ],
)
async def test_a_refusal_of_a_lower_epoch_says_nothing_of_the_one_that_it_was_raised_to(
    raised_to: int, did: list[object]
) -> None:
    assert await adopt([(REFUSAL, raised_to), (AdoptReply(incarnation=1), raised_to)]) == did


async def test_a_proof_that_came_with_a_refusal_of_a_lower_epoch_counts_at_once() -> None:
    """Otherwise the campaign would ask other workers for tasks until the next answer."""
    did = await adopt([(REFUSAL, 2)], Rival(RivalKind.ADOPTER, 3))
    assert did == [("asked", 1), "ended", "reconciled"]

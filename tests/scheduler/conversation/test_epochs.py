"""An answer to an epoch that was raised while it was on its way."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.messages.work import AdoptReply, Denied
from protocol.words import Reason
from scheduler.conversation.claims import Rival, RivalKind
from scheduler.conversation.effects import drive
from scheduler.conversation.links import WorkerLinks
from tests.scheduler.core_parts import PEERS


def links_that_ask(
    answers: list[tuple[AdoptReply | Denied, int]], rival: Rival | None = None
) -> tuple[WorkerLinks, list[Any]]:
    """Links whose questions get these answers in turn; by then the epoch is the second of the pair. And the list of what they did.

    `rival`: whom a denial proves.
    """
    did: list[Any] = []
    run = SimpleNamespace(limits=SimpleNamespace(epoch=1), done=False, detail="")

    async def ask(handle: Any, campaign: str, epoch: int, deadline: float) -> AdoptReply | Denied:
        did.append(("asked", epoch))
        answer, run.limits.epoch = answers.pop(0)
        return answer

    links: Any = object.__new__(WorkerLinks)
    links._shell = SimpleNamespace(now=lambda: 1.0)
    links._log = SimpleNamespace(warning=lambda *args, **fields: None)
    links._claims = SimpleNamespace(accepted=lambda *args: None, rival=lambda *args: rival)
    links._carry_out = lambda commands: None
    links._ask_leases = ask
    links._core = SimpleNamespace(
        state=SimpleNamespace(campaigns={"c-one": run}, worker=lambda peer: SimpleNamespace(incarnation=1)),
        held_on=lambda peer: (),
        reconciler=SimpleNamespace(reconcile=lambda *args, **named: did.append("reconciled") or []),
        failures=SimpleNamespace(
            exclude=lambda *args: did.append("excluded") or [],
            end_superseded=lambda *args: did.append("ended") or [],
        ),
    )
    return links, did


@pytest.mark.parametrize(
    ("raised_to", "did"),
    [
        (2, [("asked", 1), ("asked", 2), "reconciled"]),
        (1, [("asked", 1), "excluded", "reconciled"]),
    ],
)
async def test_a_refusal_of_a_lower_epoch_says_nothing_of_the_one_that_it_was_raised_to(
    raised_to: int, did: list[Any]
) -> None:
    refusal = Denied(reason=Reason.STALE_EPOCH)
    links, done = links_that_ask([(refusal, raised_to), (AdoptReply(incarnation=1), raised_to)])
    await adopt_campaign(links)
    assert done == did


async def test_a_proof_that_came_with_a_refusal_of_a_lower_epoch_counts_at_once() -> None:
    """Else the campaign would ask others for tasks until the next answer."""
    refusal = Denied(reason=Reason.STALE_EPOCH)
    links, done = links_that_ask([(refusal, 2)], Rival(RivalKind.ADOPTER, 3))
    await adopt_campaign(links)
    assert done == [("asked", 1), "ended", "reconciled"]


async def adopt_campaign(links: WorkerLinks) -> None:
    async def perform(effect: Any) -> Any:
        raise AssertionError(f"{effect} needs no shell")

    handle: Any = SimpleNamespace(peer=PEERS[0])
    await drive(links.adopt_campaign(handle, "c-one", math.inf), perform)

"""Two machines with one key are linked to one worker: a campaign was adopted with its owner's key while the old scheduler was still up."""

from __future__ import annotations

from typing import Any

import trio

from protocol.messages.work import (
    WORK,
    Accepted,
    AdoptReply,
    AdoptRequest,
    Denied,
    Granted,
    Progress,
    Queued,
    Ready,
    Renew,
    Renewed,
    Result,
    Skip,
    Stale,
    Start,
)
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.net.link import Link


class Machine:
    """One of several machines with Ann's key."""

    def __init__(self, ready: Message, result: Message) -> None:
        self.answers = {Ready: ready, Result: result}
        self.came: list[type[Message]] = []
        self.got_result = trio.Event()

    async def answer(self, link: Link, message: Message) -> Message | None:
        self.came.append(type(message))
        if isinstance(message, Result):
            self.got_result.set()
        return None if isinstance(message, Progress) else self.answers[type(message)]

    async def link(self, world: Any) -> Link:
        stream = await world.ann.network.open(world.network.peer_id, ProtocolId.WORK, world.network.addresses)
        link = Link(stream, WORK, self.answer)
        await world.nursery.start(link.run)
        return link


async def test_what_is_about_a_campaign_goes_to_who_adopted_it_however_often_its_old_scheduler_comes_back(
    world: Any,
) -> None:
    worker = await world.start()
    old = Machine(Skip(), Stale(reason=Reason.CANCELLED))
    new = Machine(Start(), Accepted())
    link = await old.link(world)
    run = await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    ticket = await link.ask(world.ann.commit(world.ann.task(2), queue=True), Queued)
    await (await new.link(world)).ask(AdoptRequest(campaign="c-1", epoch=2), AdoptReply)
    again = await old.link(world)
    denied = await again.ask(AdoptRequest(campaign="c-1", epoch=1), Denied)
    assert denied.reason is Reason.STALE_EPOCH
    before = len(old.came)
    world.device.go.set()
    with trio.fail_after(5):
        await new.got_result.wait()
        while worker.ledger.allocations():
            await trio.sleep(0.001)
    assert len(old.came) == before
    lines = sorted(each.__name__ for each in new.came if each is not Progress)
    assert lines == ["Ready", "Result", "Result"]
    assert {lost.lease for lost in (await renewed(again, world, run, ticket)).lost} == {
        run.lease,
        ticket.lease,
    }


async def test_who_was_refused_for_its_epoch_renews_no_lease_over_that_link(world: Any) -> None:
    await world.start()
    old, new = Machine(Skip(), Accepted()), Machine(Start(), Accepted())
    run = await (await old.link(world)).ask(world.ann.commit(world.ann.task()), Granted)
    await (await new.link(world)).ask(AdoptRequest(campaign="c-1", epoch=2), AdoptReply)
    again = await old.link(world)
    assert (await renewed(again, world, run)).renewed == (run.lease,), "it may be who adopted, come back"
    await again.ask(AdoptRequest(campaign="c-1", epoch=1), Denied)
    outcome = await renewed(again, world, run)
    assert [(lost.lease, lost.reason) for lost in outcome.lost] == [(run.lease, Reason.STALE_EPOCH)]


async def renewed(link: Link, world: Any, *leases: Any) -> Renewed:
    return await link.ask(Renew(held=tuple(world.held(lease) for lease in leases)), Renewed)

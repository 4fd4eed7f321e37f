"""Results that a scheduler has taken stay a while, for whoever adopts the campaign after it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import trio

from node.serve.delivery import Delivery, DeliveryLinks
from node.store.cache import ModelCache
from node.store.campaigns import CampaignStore
from node.store.manifests import ManifestStore
from node.store.outbox import KEPT_BYTES, RETENTION_S, Outbox, OutboxItem
from protocol.messages.work import Accepted, AdoptReply, ListLeases, Result, Stale
from protocol.values.lease import Fence
from protocol.wire.base import Message
from protocol.words import Reason

ANN = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAn"
BOB = "12D3KooWBobBobBobBobBobBobBobBobBobBobBobBobBobBobBo"


def item(body: bytes, *, campaign: str = "c-1", stored: float = 100.0, **changes: Any) -> OutboxItem:
    fields: dict[str, Any] = {
        "peer": ANN,
        "campaign": campaign,
        "task": f"{campaign}/1",
        "attempt": 1,
        "lease": "w-1.1",
        "fence": Fence(incarnation=1, number=1),
        "sha256": hashlib.sha256(body).hexdigest(),
        "size": len(body),
        "signature": bytes(64),
        "stored": stored,
    }
    return OutboxItem(**(fields | changes))


def on_disk(folder: Path) -> set[str]:
    """Hashes of the records there."""
    return {path.stem for path in folder.iterdir()}


async def kept(outbox: Outbox, body: bytes, **changes: Any) -> OutboxItem:
    """Stored and settled."""
    one = item(body, **changes)
    await outbox.store(one, body)
    await outbox.settle(one.sha256, keep=True)
    return one


async def test_a_settled_result_is_kept_over_restarts_and_is_not_sent_again(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, lambda: 100.0)
    one = await kept(outbox, b"one")
    for box in (outbox, Outbox(tmp_path, lambda: 100.0)):
        assert box.waiting(ANN) == ()
        assert len(box) == 0
        assert box.of("c-1", ANN) == ((one, True),)
        assert box.campaigns() == ("c-1",)


async def test_who_adopts_the_campaign_gets_what_waits_and_again_what_was_settled(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, lambda: 100.0)
    done = await kept(outbox, b"done", stored=1.0)
    waits, other = item(b"waits", stored=2.0), item(b"other", campaign="c-2")
    await outbox.store(waits, b"waits")
    await outbox.store(other, b"other")
    assert await outbox.hand_over("c-1", ANN, BOB, again=False) == 1
    assert [found.sha256 for found in outbox.waiting(BOB)] == [waits.sha256]
    assert await outbox.hand_over("c-1", ANN, BOB, again=True) == 2
    for box in (outbox, Outbox(tmp_path, lambda: 100.0)):
        assert [found.sha256 for found in box.waiting(BOB)] == [done.sha256, waits.sha256]
        assert {found.principal for found in box.waiting(BOB)} == {ANN}
        assert box.waiting(ANN) == (other,)
    message = await outbox.message(outbox.waiting(BOB)[0])
    assert message is not None
    assert message.body == b"done"
    await outbox.settle(done.sha256, keep=True)
    assert [(found.sha256, settled) for found, settled in outbox.of("c-1", ANN)] == [
        (done.sha256, True),
        (waits.sha256, False),
    ]


async def test_nobody_else_gets_a_campaigns_results(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, lambda: 100.0)
    await kept(outbox, b"one")
    assert outbox.of("c-1", BOB) == ()
    assert await outbox.hand_over("c-1", BOB, BOB, again=True) == 0
    assert outbox.waiting(BOB) == ()


async def test_after_a_day_it_is_forgotten(tmp_path: Path) -> None:
    now = 100.0
    outbox = Outbox(tmp_path, lambda: now)
    await kept(outbox, b"old")
    now += RETENTION_S + 1
    assert outbox.of("c-1", ANN) == ()
    assert outbox.campaigns() == ()
    young = await kept(outbox, b"young", stored=now)
    assert on_disk(tmp_path) == {young.sha256}


async def test_the_oldest_give_way_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, lambda: 100.0)
    share = KEPT_BYTES // 4
    made = [await kept(outbox, bytes([n]) * share, stored=float(n)) for n in range(1, 6)]
    assert [found.sha256 for found, _ in outbox.of("c-1", ANN)] == [one.sha256 for one in made[1:]]
    assert not (tmp_path / f"{made[0].sha256}.record").exists()


async def test_put_back_and_killed_before_the_old_name_was_gone_it_is_there_once(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, lambda: 100.0)
    one = await kept(outbox, b"one")
    left = (tmp_path / f"{one.sha256}.kept").read_bytes()
    await outbox.hand_over("c-1", ANN, BOB, again=True)
    (tmp_path / f"{one.sha256}.kept").write_bytes(left)
    reborn = Outbox(tmp_path, lambda: 100.0)
    assert [settled for _, settled in reborn.of("c-1", ANN)] == [False]
    assert not (tmp_path / f"{one.sha256}.kept").exists()


class Line:
    """A link that gives every result the same answer."""

    peer = ANN

    def __init__(self, answer: Message) -> None:
        self.answer = answer

    async def call(self, message: Message, *, max_wait_s: float) -> Message:
        assert isinstance(message, Result)
        await trio.lowlevel.checkpoint()
        return self.answer


@pytest.mark.parametrize(
    ("answer", "speaks", "stays"),
    [
        (Accepted(), True, 1),
        (Stale(reason=Reason.FENCED), True, 1),
        (Stale(reason=Reason.CANCELLED), True, 0),
        (Stale(reason=Reason.BAD_REQUEST), True, 0),
        (Stale(reason=Reason.CANCELLED), None, 1),
    ],
)
async def test_what_could_be_of_use_to_an_adopter_is_kept(
    tmp_path: Path, answer: Message, speaks: bool | None, stays: int
) -> None:
    outbox = Outbox(tmp_path, lambda: 100.0)
    await outbox.store(item(b"one"), b"one")
    links = DeliveryLinks(lambda peer: None, lambda peer: None, lambda link, about: speaks)
    told: list[OutboxItem] = []
    delivery = Delivery(links, outbox, told.append)
    line: Any = Line(answer)
    with trio.move_on_after(0.05):
        await delivery.run_results(line)
    assert len(told) == 1
    assert len(outbox.of("c-1", ANN)) == stays


async def test_a_result_that_goes_between_two_pages_hides_no_other(tmp_path: Path) -> None:
    async def never(peer: str, sha256: str, size: int, sink: Any) -> None:
        raise AssertionError("no campaign manifest is fetched here")

    outbox = Outbox(tmp_path / "outbox", lambda: 100.0)
    for number in range(1, 101):
        body = b"%d" % number
        fence = Fence(incarnation=1 + number // 60, number=number)
        one = item(body, task=f"c-1/{number}", lease=f"w-1.{number}", fence=fence)
        await outbox.store(one, body)
    cache = ModelCache(tmp_path / "cache", 1_000_000)
    estate = CampaignStore(outbox, ManifestStore(tmp_path / "manifests", never), cache, cache.whose)
    leases_over = AdoptReply(incarnation=2)
    first = estate.page(leases_over, ANN, ListLeases(campaign="c-1"), ())
    assert first.cursor is not None
    await outbox.settle(item(b"1").sha256)
    assert len(outbox.of("c-1", ANN)) == 99
    second = estate.page(leases_over, ANN, ListLeases(campaign="c-1", cursor=first.cursor), ())
    told = [lease.task for page in (first, second) for lease in page.leases]
    assert told == [f"c-1/{number}" for number in range(1, 101)]
    assert second.cursor is None

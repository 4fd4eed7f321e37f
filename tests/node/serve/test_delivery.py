"""Results on their way to their scheduler: none is lost, none stands in the way of another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from node.serve.delivery import NOTES, Delivery, DeliveryLinks
from node.store.outbox import Outbox, OutboxItem
from protocol.errors import Unreachable
from protocol.formats.phase import Phase
from protocol.messages.work import Accepted, Progress, Ready, Result, Start
from protocol.values.lease import Fence
from protocol.wire.base import MAX_INLINE, Message

ANN = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAn"
BOB = "12D3KooWBobBobBobBobBobBobBobBobBobBobBobBobBobBobBo"


class Line:
    """A link whose other end takes no results of some tasks."""

    def __init__(self, *never: str) -> None:
        self.peer = ANN
        self.never = never
        self.taken: list[str] = []
        self.broken = False

    async def call(self, message: Message, *, max_wait_s: float) -> Message:
        assert isinstance(message, Result)
        await trio.lowlevel.checkpoint()
        if message.task in self.never:
            raise Unreachable("no answer")
        self.taken.append(message.task)
        return Accepted()

    async def reset(self) -> None:
        self.broken = True


class Ear:
    """A link that hears notes, or does not read."""

    def __init__(self, peer: str, *, reads: bool = True) -> None:
        self.peer = peer
        self.reads = reads
        self.heard: list[str] = []

    async def tell(self, note: Progress) -> None:
        if not self.reads:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        self.heard.append(note.lease)


class Post:
    """An outbox and what carries it."""

    def __init__(self, folder: Path, speaks: Mapping[Any, bool] | None = None) -> None:
        self.folder = folder
        self.outbox = Outbox(folder, lambda: 100.0)
        self.settled: list[str] = []
        self.links = DeliveryLinks(
            lambda peer: None, lambda peer: None, lambda link, about: (speaks or {}).get(link)
        )
        self.delivery = Delivery(self.links, self.outbox, lambda item: self.settled.append(item.task))

    async def put(self, number: int, body: bytes) -> Path:
        sha256 = hashlib.sha256(body).hexdigest()
        item = OutboxItem(
            peer=ANN,
            campaign="c-1",
            task=f"c-1/{number}",
            attempt=1,
            lease="w-1.1",
            fence=Fence(incarnation=1, number=number),
            sha256=sha256,
            size=len(body),
            signature=bytes(64),
            stored=float(number),
        )
        await self.outbox.store(item, body)
        return self.folder / f"{sha256}.record"

    async def over(self, *links: Any) -> None:
        """Deliver over links until one breaks or nothing is left to do."""
        async with trio.open_nursery() as nursery:

            async def results(link: Any) -> None:
                await self.delivery.run_results(link)
                nursery.cancel_scope.cancel()

            for link in links:
                nursery.start_soon(results, link)
            threads = trio.to_thread.current_default_thread_limiter()
            while True:  # blocked are those too who wait for a thread's work on the disk
                await trio.testing.wait_all_tasks_blocked(0.02)
                if not threads.borrowed_tokens:
                    break
            nursery.cancel_scope.cancel()


async def test_a_result_that_can_never_be_delivered_stands_in_nobodys_way(tmp_path: Path) -> None:
    post = Post(tmp_path)
    for number in (1, 2, 3):
        await post.put(number, bytes([number]))
    first, second = Line("c-1/1"), Line("c-1/1")
    await post.over(first)
    assert first.broken
    await post.over(second)
    assert post.settled == second.taken == ["c-1/2", "c-1/3"]
    assert len(post.outbox) == 1, "and it is still kept"


async def test_a_result_that_cannot_be_read_now_is_kept_and_sent_later(tmp_path: Path) -> None:
    post = Post(tmp_path)
    record = await post.put(1, b"one")
    await post.put(2, b"two")
    record.unlink()
    record.mkdir()  # reading fails, and not because there is nothing
    link = Line()
    await post.over(link)
    assert not link.broken
    assert post.settled == ["c-1/2"]
    record.rmdir()
    record.write_bytes(b"one")
    await post.over(Line())
    assert post.settled == ["c-1/2", "c-1/1"]
    assert len(post.outbox) == 0


async def test_a_result_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    post = Post(tmp_path)
    (await post.put(1, b"one")).unlink()
    (await post.put(2, bytes(MAX_INLINE + 1))).unlink()
    await post.over(Line())
    assert post.settled == ["c-1/1", "c-1/2"]


ABOUT = (ANN, "c-1")


def note(lease: str) -> Progress:
    return Progress(lease=lease, fence=Fence(incarnation=1, number=1), seq=1, phase=Phase.RUN)


async def test_a_scheduler_that_does_not_read_holds_up_nobody_elses_notes(tmp_path: Path) -> None:
    post = Post(tmp_path)
    deaf: Any = Ear(BOB, reads=False)
    ear: Any = Ear(ANN)
    async with trio.open_nursery() as nursery:
        for link in (deaf, ear):
            post.links.add(link)
            nursery.start_soon(post.delivery.run, link)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(2 * NOTES):
            post.delivery.tell(BOB, (BOB, "c-2"), note(str(number)))
            post.delivery.tell(ANN, ABOUT, note(str(number)))
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert ear.heard == [str(number) for number in range(2 * NOTES)]
    post.delivery.tell(ANN, ABOUT, note("late"))  # over no link any more: dropped


async def test_of_two_machines_with_one_key_only_the_one_that_adopted_gets_the_campaigns_results(
    tmp_path: Path,
) -> None:
    new, old, silent = Line(), Line(), Line()
    post = Post(tmp_path, {new: True, old: False})
    for line in (new, old, silent):  # the newest link is not the one that counts
        post.links.add(line)  # type: ignore[arg-type]
    for number in (1, 2, 3):
        await post.put(number, bytes([number]))
    await post.over(silent, old, new)
    assert new.taken == ["c-1/1", "c-1/2", "c-1/3"]
    assert old.taken == silent.taken == []
    post.links.remove(new)  # type: ignore[arg-type]
    await post.put(4, b"four")
    await post.over(old)
    assert old.taken == []
    await post.over(silent)
    assert silent.taken == ["c-1/4"], "it may be the one that adopted, come back, that has not spoken yet"


async def test_of_two_machines_with_one_key_only_the_one_that_adopted_is_offered_a_place(
    tmp_path: Path, autojump_clock: object
) -> None:
    class Desk(Line):
        async def call(self, message: Message, *, max_wait_s: float) -> Message:
            self.taken.append(type(message).__name__)
            await trio.lowlevel.checkpoint()
            return Start()

    new, old = Desk(), Desk()
    post = Post(tmp_path, {new: True, old: False})
    ready = Ready(lease="w-1.1", fence=Fence(incarnation=1, number=1))
    for line in (new, old):
        post.links.add(line)  # type: ignore[arg-type]
    assert isinstance(await post.delivery.offer(ANN, ABOUT, ready), Start)
    assert (len(new.taken), len(old.taken)) == (1, 0)
    post.links.remove(new)  # type: ignore[arg-type]
    before = trio.current_time()
    assert await post.delivery.offer(ANN, ABOUT, ready) is None
    assert trio.current_time() > before, "the worker comes back to it again and again: not without a pause"
    assert old.taken == []


async def test_a_result_whose_campaign_is_adopted_while_it_is_under_way_stays_for_who_adopted_it(
    tmp_path: Path,
) -> None:
    post = Post(tmp_path)
    await post.put(1, b"one")

    class Slow(Line):
        async def call(self, message: Message, *, max_wait_s: float) -> Message:
            await post.outbox.hand_over("c-1", ANN, BOB, again=False)
            return await super().call(message, max_wait_s=max_wait_s)

    old = Slow()
    await post.over(old)
    assert old.taken == ["c-1/1"]
    assert post.settled == []
    assert [item.task for item in post.outbox.waiting(BOB)] == ["c-1/1"]

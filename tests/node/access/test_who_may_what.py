"""Every kind of caller sends every verb to a whole worker: a table of the answers. A refusal leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from protocol.errors import Unreachable
from protocol.messages.forget import Forget
from protocol.messages.pool import PoolManifest, PoolMember, RevokedPeer
from protocol.messages.work import (
    Accepted,
    Action,
    AdoptRequest,
    Cancel,
    Control,
    CredentialsReply,
    Denied,
    HeldLease,
    ListLeases,
    Probe,
    Ready,
    Release,
    Renew,
    Result,
    Shape,
    ShowCredentials,
    Skip,
    Start,
    StatusRequest,
    Stopped,
)
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement
from protocol.wire.base import Message
from protocol.words import Reason, Right, Role
from swarm.net.identity import Identity
from swarm.pools.tokens import Grant, delegate, issue

POOL, OTHER, THIRD = (Identity.from_seed(name) for name in ("pool", "other member", "third"))
C1: Final = frozenset({"c-1"})
SUBMIT: Final = frozenset({Right.SUBMIT})
WORK: Final = frozenset({Right.SUBMIT, Right.STATUS})
FENCE: Final = Fence(incarnation=1, number=99)
HELD: Final = (HeldLease(lease="w-1.99", fence=FENCE),)
SHAPE: Final = Shape(unit="CPU (ONNX)", requirement=Requirement(), model="a" * 64, size=1)

TABLE: Final = """
                          probe commit renew cancel release adopt look status control blob forget
owner                       y     y      y     y       y      y    y     y      y      y     y
owner's other machine       y     y      y     y       y      y    y     y      y      y     y
owner's passing command     y     -      -     -       -      -    y     y      y      y     -
allowed                     y     y      y     y       y      y    y     y      -      y     y
owner's delegate for c-1    y     y      y     y       y      y    y     y      -      y     -
owner's delegate for c-2    -     -      y     y       y      -    -     y      -      y     -
owner's guest               y     y      y     y       y      y    y     -      -      y     y
allowed one's delegate      y     y      y     y       y      y    y     y      -      y     -
pool member                 y     y      y     y       y      y    y     y      -      y     y
pool member's delegate      y     y      y     y       y      y    y     -      -      y     -
pool member's wide delegate -     -      -     -       -      -    -     -      -      -     -
pool's device               y     -      -     -       -      -    y     y      -      y     -
stranger                    -     -      -     -       -      -    -     -      -      -     -
member of another pool      -     -      -     -       -      -    -     -      -      -     -
pool key's token            -     -      -     -       -      -    -     -      -      -     -
self-issued                 -     -      -     -       -      -    -     -      -      -     -
thief of a token            -     -      -     -       -      -    -     -      -      -     -
other team                  -     -      -     -       -      -    -     -      -      -     -
revoked member              -     -      -     -       -      -    -     -      -      -     -
delegate of a revoked one   -     -      -     -       -      -    -     -      -      -     -
delegate of one who left    -     -      -     -       -      -    -     -      -      -     -
expired                     -     -      -     -       -      -    -     -      -      -     -
"""
HEADS: Final = tuple(TABLE.splitlines()[1].split())
ROWS: Final = {line[:28].strip(): line[28:].split() for line in TABLE.splitlines()[2:]}


def present(
    key: Identity, holder: Identity, wall: float, rights: Any = WORK, **grant: Any
) -> ShowCredentials:
    return ShowCredentials(
        issuer=key.peer_id, token=issue(key, holder.peer_id, Grant(rights, **grant), now=wall)
    )


def passed_on(key: Identity, by: Identity, to: Identity, wall: float) -> ShowCredentials:
    grant = Grant(WORK, campaigns=C1)
    token = delegate(issue(key, by.peer_id, grant, now=wall), key.peer_id, by, to.peer_id, grant, now=wall)
    return ShowCredentials(issuer=key.peer_id, token=token)


def shown(kind: str, me: Identity, world: Any, friend: Identity) -> ShowCredentials | None:
    """The token that this kind of caller shows."""
    owner, wall = world.ann.identity, world.wall
    makers: dict[str, Callable[[], ShowCredentials]] = {
        "owner's passing command": lambda: present(owner, me, wall, {Right.CONTROL, Right.STATUS}, ttl_s=60),
        "owner's delegate for c-1": lambda: present(owner, me, wall, campaigns=C1),
        "owner's delegate for c-2": lambda: present(owner, me, wall, campaigns=frozenset({"c-2"})),
        "owner's guest": lambda: present(owner, me, wall, SUBMIT, team="vision", priority=20),
        "allowed one's delegate": lambda: present(friend, me, wall, frozenset(Right), team="vision"),
        "pool member's delegate": lambda: present(OTHER, me, wall, SUBMIT, campaigns=C1),
        "pool member's wide delegate": lambda: present(OTHER, me, wall, SUBMIT),
        "pool key's token": lambda: present(POOL, me, wall, frozenset(Right), team="vision"),
        "self-issued": lambda: present(me, me, wall, frozenset(Right), team="vision"),
        "thief of a token": lambda: present(OTHER, THIRD, wall, campaigns=C1),
        "delegate of a revoked one": lambda: passed_on(OTHER, THIRD, me, wall),
        "delegate of one who left": lambda: present(OTHER, me, wall, campaigns=C1),
        "expired": lambda: present(OTHER, me, wall, campaigns=C1, ttl_s=60),
    }
    return makers[kind]() if kind in makers else None


def manifests(kind: str, me: Identity) -> tuple[PoolManifest, PoolManifest]:
    """The pool's manifest before this kind of caller shows its token, and the newest one."""

    def of(number: int, *members: PoolMember, revoked: Identity | None = None) -> PoolManifest:
        gone = (RevokedPeer(peer=revoked.peer_id, until=2**40),) if revoked is not None else ()
        return PoolManifest(pool=POOL.peer_id, name="lab", number=number, members=members, revoked=gone)

    def line(who: Identity, role: Role = Role.SUBMIT, team: str = "vision") -> PoolMember:
        return PoolMember(peer=who.peer_id, role=role, name="n", team=team)

    other = line(OTHER)
    mine = {
        "pool member": line(me),
        "pool's device": line(me, Role.WORKER),
        "other team": line(me, team="audio"),
    }.get(kind)
    if kind == "revoked member":
        return of(6, other, line(me)), of(7, other, revoked=me)
    if kind == "delegate of a revoked one":
        return of(6, other), of(7, other, revoked=THIRD)
    if kind == "delegate of one who left":
        return of(6, other), of(7)
    members = (other,) if mine is None else (other, mine)
    return of(6, *members), of(7, *members)


@pytest.mark.parametrize("kind", ROWS)
async def test_each_kind_of_caller_is_answered_what_it_may_say_and_nothing_else(
    world: Any, kind: str
) -> None:
    friend = world.scheduler()
    hand = {"owner": world.ann, "allowed": friend}.get(kind) or world.scheduler()
    me = hand.identity
    world.pools = {POOL.peer_id: "lab"}
    worker = await world.start(allow=(friend.identity.peer_id,), teams=("vision",))
    if kind == "owner's other machine":
        world.kill()
        world.owners = {me.peer_id}
        worker = await world.start(allow=(friend.identity.peer_id,), teams=("vision",))
    link = await world.link(hand)
    before, newest = manifests(kind, me)
    worker.revocation.update(before)
    token = shown(kind, me, world, friend.identity)
    if token is not None:
        early = kind in ("delegate of a revoked one", "delegate of one who left", "expired")
        answer = await link.call(token)
        assert isinstance(answer, CredentialsReply) is (early or "y" in ROWS[kind]), answer
    worker.revocation.update(newest)
    if kind == "expired":
        world.wall += 1_000
    elif token is not None:  # a right that has ended does not come back when the token is shown again
        assert isinstance(await link.call(token), CredentialsReply) is ("y" in ROWS[kind])
    verbs: dict[str, Message] = {
        "probe": Probe(campaign="c-1", shapes=(SHAPE,)),
        "look": ListLeases(campaign="c-1"),
        "status": StatusRequest(),
        "renew": Renew(held=HELD),
        "cancel": Cancel(held=HELD),
        "release": Release(held=HELD),
        "adopt": AdoptRequest(campaign="c-1", epoch=1),
        "forget": Forget(campaign="c-1", epoch=1),
        "commit": hand.commit(hand.task()),
        "control": Control(action=Action.RESUME),
    }
    values: dict[str, str] = {}
    for verb, message in verbs.items():
        before = worker.ledger.version
        answer = await link.call(message)
        refused = isinstance(answer, Denied)
        if refused:
            assert answer.reason is Reason.NOT_ALLOWED, (verb, answer)
            assert answer.detail, verb
            assert worker.ledger.version == before, verb
        values[verb] = "-" if refused else "y"
    blob = worker.sharing.find(me.peer_id, "b" * 64)
    values["blob"] = "-" if blob is Reason.NOT_ALLOWED else "y"
    assert values == dict(zip(HEADS, ROWS[kind], strict=True))
    assert bool(worker.ledger.allocations()) is (values["commit"] == "y")


@pytest.mark.parametrize("who", ["owner", "stranger"])
@pytest.mark.parametrize(
    "message",
    [
        Start(),
        Skip(),
        Accepted(),
        Stopped(leases=()),
        Ready(lease="l-1", fence=FENCE),
        Result(
            campaign="c-1",
            task="c-1/1",
            attempt=1,
            lease="l-1",
            fence=FENCE,
            sha256="a" * 64,
            size=1,
            body=b"x",
            signature=b"s" * 64,
        ),
        CredentialsReply(principal=POOL.peer_id, rights=(Right.SUBMIT,), priority=1),
    ],
    ids=lambda message: str(message.type),
)
async def test_what_is_not_a_schedulers_to_say_ends_the_link(world: Any, who: str, message: Message) -> None:
    worker = await world.start()
    link = await world.link(world.ann if who == "owner" else world.scheduler())
    with pytest.raises(Unreachable):
        await link.call(message)
    assert link.closed.is_set()
    assert not worker.ledger.allocations()


async def test_a_flood_of_tokens_is_held_back_and_the_owner_is_still_served(world: Any) -> None:
    await world.start()
    stranger = world.scheduler()
    link = await world.link(stranger)
    token = present(POOL, stranger.identity, world.wall)
    for _ in range(400):
        answer = await link.call(token, max_wait_s=60)
        assert isinstance(answer, Denied)
        assert answer.reason is Reason.NOT_ALLOWED
    assert world.network.governor.busy
    assert not isinstance(await (await world.link()).call(StatusRequest()), Denied)

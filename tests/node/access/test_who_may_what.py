"""Every kind of caller says every verb to a whole worker: the table of what is answered, and that a refusal leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from protocol.errors import Unreachable
from protocol.messages.pool import PoolManifest
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
from swarm.pools.tokens import Grant, bearer, delegate, issue, prove

POOL, ELSEWHERE, OTHER = (Identity.from_seed(name) for name in ("pool", "other pool", "other member"))
SUBMIT: Final = frozenset({Right.SUBMIT})
WORK: Final = frozenset({Right.SUBMIT, Right.STATUS})
FENCE: Final = Fence(incarnation=1, number=99)
HELD: Final = (HeldLease(lease="w-1.99", fence=FENCE),)
SHAPE: Final = Shape(unit="CPU (ONNX)", requirement=Requirement(), model="a" * 64, size=1)

TABLE: Final = """
                          probe commit renew cancel release adopt look status control blob
owner                       y     y      y     y       y      y    y     y      y      y
owner's other machine       y     y      y     y       y      y    y     y      y      y
owner's passing command     y     -      -     -       -      -    y     y      y      y
allowed                     y     y      y     y       y      y    y     y      -      y
owner's delegate for c-1    y     y      y     y       y      y    y     y      -      y
owner's delegate for c-2    -     -      y     y       y      -    -     y      -      y
owner's guest               y     y      y     y       y      y    y     -      -      y
allowed one's delegate      y     y      y     y       y      y    y     y      -      y
pool member                 y     y      y     y       y      y    y     y      -      y
pool member's delegate      y     y      y     y       y      y    y     -      -      y
pool's onlooker             y     -      -     -       -      -    y     y      -      y
stranger                    -     -      -     -       -      -    -     -      -      -
member of another pool      -     -      -     -       -      -    -     -      -      -
self-issued                 -     -      -     -       -      -    -     -      -      -
thief of a token            -     -      -     -       -      -    -     -      -      -
bearer of a ticket          -     -      -     -       -      -    -     -      -      -
other team                  -     -      -     -       -      -    -     -      -      -
revoked member              -     -      -     -       -      -    -     -      -      -
delegate of a revoked one   -     -      -     -       -      -    -     -      -      -
revoked token               -     -      -     -       -      -    -     -      -      -
expired                     -     -      -     -       -      -    -     -      -      -
"""
HEADS: Final = tuple(TABLE.splitlines()[1].split())
ROWS: Final = {line[:26].strip(): line[26:].split() for line in TABLE.splitlines()[2:]}


def present(
    key: Identity, holder: Identity, wall: float, rights: Any = WORK, **grant: Any
) -> ShowCredentials:
    return ShowCredentials(
        issuer=key.peer_id, token=issue(key, holder.peer_id, Grant(rights, **grant), now=wall)
    )


def passed_on(key: Identity, by: Identity, to: Identity, wall: float, rights: Any = WORK) -> ShowCredentials:
    token = issue(key, by.peer_id, Grant(WORK, team="vision"), now=wall)
    return ShowCredentials(
        issuer=key.peer_id,
        token=delegate(token, key.peer_id, by, to.peer_id, Grant(rights), now=wall),
    )


def shown(kind: str, me: Identity, world: Any, friend: Identity) -> ShowCredentials | None:
    """What a caller of this kind shows first."""
    owner, wall = world.ann.identity, world.wall
    makers: dict[str, Callable[[], ShowCredentials]] = {
        "owner's passing command": lambda: present(
            owner, me, wall, {Right.CONTROL, Right.STATUS}, lasts_s=60
        ),
        "owner's delegate for c-1": lambda: present(owner, me, wall, campaigns=frozenset({"c-1"})),
        "owner's delegate for c-2": lambda: present(owner, me, wall, campaigns=frozenset({"c-2"})),
        "owner's guest": lambda: present(owner, me, wall, SUBMIT, team="vision", priority=20),
        "allowed one's delegate": lambda: present(friend, me, wall, frozenset(Right), team="vision"),
        "pool member": lambda: present(POOL, me, wall, frozenset(Right), team="vision"),
        "pool member's delegate": lambda: passed_on(POOL, OTHER, me, wall, SUBMIT),
        "pool's onlooker": lambda: present(POOL, me, wall, frozenset({Right.STATUS}), team="vision"),
        "member of another pool": lambda: present(ELSEWHERE, me, wall, team="vision"),
        "self-issued": lambda: present(me, me, wall, frozenset(Right), team="vision"),
        "thief of a token": lambda: present(POOL, OTHER, wall, team="vision"),
        "bearer of a ticket": lambda: ShowCredentials(
            issuer=POOL.peer_id,
            token=bearer(POOL, Role.SUBMIT, Grant(WORK, team="vision"), now=wall),
        ),
        "other team": lambda: present(POOL, me, wall, team="audio"),
        "revoked member": lambda: present(POOL, me, wall, team="vision"),
        "delegate of a revoked one": lambda: passed_on(POOL, OTHER, me, wall),
        "revoked token": lambda: present(POOL, me, wall, team="vision"),
        "expired": lambda: present(POOL, me, wall, team="vision", lasts_s=60),
    }
    return makers[kind]() if kind in makers else None


def taken_back(kind: str, me: Identity, token: ShowCredentials | None, wall: float) -> PoolManifest:
    """The newest manifest of the pool."""
    changes: dict[str, Any] = {}
    if kind == "revoked member":
        changes = {"revoked": (me.peer_id,)}
    elif kind == "delegate of a revoked one":
        changes = {"revoked": (OTHER.peer_id,)}
    elif kind == "revoked token":
        assert token is not None
        changes = {"revoked_tokens": prove(token.token, POOL.peer_id, me.peer_id, now=wall).ids}
    return PoolManifest(pool=POOL.peer_id, name="lab", number=7, **changes)


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
    token = shown(kind, me, world, friend.identity)
    manifest = taken_back(kind, me, token, world.wall)
    if token is not None:
        early = kind in ("revoked member", "delegate of a revoked one", "revoked token", "expired")
        answer = await link.call(token)
        assert isinstance(answer, CredentialsReply) is (early or "y" in ROWS[kind]), answer
    worker.heard(manifest)
    if kind == "expired":
        world.wall += 1_000
    elif token is not None:  # what was taken back is not to be had by showing it again
        assert isinstance(await link.call(token), CredentialsReply) is ("y" in ROWS[kind])
    verbs: dict[str, Message] = {
        "probe": Probe(campaign="c-1", shapes=(SHAPE,)),
        "look": ListLeases(campaign="c-1"),
        "status": StatusRequest(),
        "renew": Renew(held=HELD),
        "cancel": Cancel(held=HELD),
        "release": Release(held=HELD),
        "adopt": AdoptRequest(campaign="c-1", epoch=1),
        "commit": hand.commit(hand.task()),
        "control": Control(action=Action.RESUME),
    }
    said: dict[str, str] = {}
    for verb, message in verbs.items():
        before = worker.ledger.version
        answer = await link.call(message)
        refused = isinstance(answer, Denied)
        if refused:
            assert answer.reason is Reason.NOT_ALLOWED, (verb, answer)
            assert answer.detail, verb
            assert worker.ledger.version == before, verb
        said[verb] = "-" if refused else "y"
    blob = worker.sharing.find(me.peer_id, "b" * 64)
    said["blob"] = "-" if blob is Reason.NOT_ALLOWED else "y"
    assert said == dict(zip(HEADS, ROWS[kind], strict=True))
    assert bool(worker.ledger.places()) is (said["commit"] == "y")


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
    assert not worker.ledger.places()


async def test_a_flood_of_tokens_is_held_back_and_the_owner_is_still_served(world: Any) -> None:
    await world.start()
    stranger = world.scheduler()
    link = await world.link(stranger)
    token = present(POOL, stranger.identity, world.wall)
    answers = [await link.call(token) for _ in range(40)]
    assert isinstance(answers[0], Denied)
    assert isinstance(answers[-1], Denied)
    assert (answers[0].reason, answers[-1].reason) == (Reason.NOT_ALLOWED, Reason.OVERLOADED)
    assert answers[-1].retry_s
    assert not isinstance(await (await world.link()).call(StatusRequest()), Denied)

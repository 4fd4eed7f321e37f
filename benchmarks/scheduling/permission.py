"""What permission costs a worker: a token proved once when it is shown, then a check on every call.

    python benchmarks/scheduling/permission.py [rounds]

A token of a pool member that its holder delegated further (2 blocks), at a worker that has 1,000 other tokens and a manifest with 256
members and 256 revoked peers. Every commit pays for `check`, every token once for `authenticate`; the sum of both is the most that a first
commit can cost. p50 and p99 over the rounds (5,000 by default), one thread, wall time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from node.access.authorization import Authorization
from protocol.messages.permission import CallPermission
from protocol.messages.pool import PoolManifest, PoolMember, RevokedPeer
from protocol.messages.work import Commit, CredentialsReply, Denied, ShowCredentials
from protocol.words import Right, Role
from swarm.net.identity import Identity
from swarm.pools.tokens import Grant, delegate, issue, prove

OTHERS = 1_000
MEMBERS = 256
SUBMIT = frozenset({Right.SUBMIT})


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    pool, member, holder, me = (Identity.from_seed(name) for name in ("pool", "member", "holder", "me"))
    owner = Identity.from_seed("owner")
    now = time.time()
    permits = Authorization(owners={owner.peer_id}, pools={pool.peer_id: "lab"}, prove=prove, wall=time.time)
    others = (Identity.from_seed(f"member {number}").peer_id for number in range(MEMBERS - 1))
    permits.update(
        PoolManifest(
            pool=pool.peer_id,
            name="lab",
            number=1,
            members=tuple(
                PoolMember(peer=peer, role=Role.SUBMIT, name="n") for peer in (*others, member.peer_id)
            ),
            revoked=tuple(
                RevokedPeer(peer=Identity.from_seed(f"revoked {number}").peer_id, until=int(now) + 86_400)
                for number in range(MEMBERS)
            ),
        )
    )
    for number in range(OTHERS):
        other = Identity.from_seed(f"other {number}").peer_id
        shown = ShowCredentials(issuer=owner.peer_id, token=issue(owner, other, Grant(SUBMIT), now=now))
        assert isinstance(permits.authenticate(other, shown), CredentialsReply)
    grant = Grant(SUBMIT, campaigns=frozenset({"c-1"}))
    token = issue(member, holder.peer_id, grant, now=now)
    passed = delegate(token, member.peer_id, holder, me.peer_id, grant, now=now)
    shown = ShowCredentials(issuer=member.peer_id, token=passed)
    commit = Commit(key="c-1/1/1", attempt=1, epoch=1, task=b"task", signature=b"s" * 64)

    def authenticate() -> None:
        assert isinstance(permits.authenticate(me.peer_id, shown), CredentialsReply)

    def check() -> None:
        assert isinstance(permits.check(me.peer_id, commit, "c-1"), CallPermission)

    def both() -> None:
        authenticate()
        check()

    def refuse() -> None:
        assert isinstance(permits.check("12D3KooStranger", commit, "c-1"), Denied)

    authenticate()
    print(f"{'':18}{'p50 ms':>10}{'p99 ms':>10}")
    for name, act in (
        ("check", check),
        ("a stranger's check", refuse),
        ("authenticate", authenticate),
        ("both", both),
    ):
        p50, p99 = timed(act, rounds)
        print(f"{name:18}{p50:10.4f}{p99:10.4f}")


def timed(act: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Milliseconds: median and 99th percentile."""
    for _ in range(50):
        act()
    took: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        act()
        took.append((time.perf_counter_ns() - began) / 1e6)
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


if __name__ == "__main__":
    main()

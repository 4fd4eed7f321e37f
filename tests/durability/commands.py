"""Commands that owners type, and other calls that end with an output, each with the promise that it makes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

import sark
from protocol.messages.pool import PoolMember
from protocol.values.task import Model
from protocol.words import Role
from scheduler.models.spool import receive
from scheduler.models.uploads import Uploads
from scheduler.store.store import open_store
from scheduler.trust.reputation import change_reputation
from swarm.base.home import Home
from swarm.net.identity import Identity
from swarm.pools.enrolment import revoke
from swarm.pools.manifests import with_member
from swarm.pools.membership import Credential, join_pool, leave_pool, store_tokens
from swarm.pools.owner import own_pool
from swarm.pools.tickets import read_ticket
from tests.durability.facts import SCHEDULER
from tests.durability.promises import Promises
from web.http.middleware import own_token

GATE: Final = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.from_seed('gate').peer_id}"
ANN, BOB, EVE = (Identity.from_seed(name).peer_id for name in ("ann", "bob", "eve"))
FAR: Final = 4e9
"""A time in wall seconds, far in the future."""


class Said(io.StringIO):
    """Standard output that makes the promise just before its first character is printed."""

    def __init__(self, promise: Callable[[], None]) -> None:
        super().__init__()
        self._promise = promise

    def write(self, text: str) -> int:
        if not self.tell():
            self._promise()
        return super().write(text)


@dataclass
class Typed:
    """Types the commands of one home."""

    home: Path
    promises: Promises

    def __call__(self, *words: str | Path, kind: str = "", key: str = "", value: object = None) -> str:
        """Run a command and return its output. Raises `AssertionError` when it fails."""

        def promise() -> None:
            if kind:
                self.promises.make(SCHEDULER, kind, key, value)

        if kind:
            self.promises.end(SCHEDULER, kind, key)
        out = Said(promise)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = 0
            try:
                sark.main(["--home", str(self.home), *map(str, words)])
            except SystemExit as ended:
                code = int(ended.code or 0)
        assert code == 0, f"{words}: {errors.getvalue()}"
        if kind and not out.getvalue():
            promise()
        return out.getvalue()


@contextlib.contextmanager
def promised(promises: Promises, kind: str, key: str, value: object = None) -> Iterator[None]:
    """Make a promise, which counts once the block has ended."""
    promises.end(SCHEDULER, kind, key)
    yield
    promises.make(SCHEDULER, kind, key, value)


def before(home: Home, elsewhere: Path, promises: Promises) -> None:
    """A pool, its members and tickets; listed keys; models."""
    typed = Typed(home.data.parent, promises)
    typed("pool", "create", "lab", "--gate", GATE, kind="pool", key="lab")
    ticket = read_ticket(typed("pool", "invite", "lab", kind="tickets", key="lab", value=1))
    own = own_pool(home, "lab")
    assert ticket.secret is not None
    for peer in (ANN, BOB):
        with promised(promises, "admitted", f"lab {peer}"):
            own.use_ticket(ticket.secret, peer, time.time())
    typed("trust", ANN, kind="listed", key=ANN, value=True)
    typed("trust", BOB, kind="listed", key=BOB, value=True)
    typed("trust", BOB, "--forget", kind="listed", key=BOB, value=False)
    typed("trust", EVE, "--device", "d-eve", kind="pinned", key="d-eve", value=EVE)
    file = elsewhere / "mine.json"
    file.write_text('{"latencies_ms": [1.0]}', "utf-8")
    sha = hashlib.sha256(file.read_bytes()).hexdigest()
    typed("models", "add", file, kind="model", key=sha)
    typed("models", "pin", sha, kind="pin", key=sha, value=True)
    typed("models", "unpin", sha, kind="pin", key=sha, value=False)
    typed("models", "pin", sha, kind="pin", key=sha, value=True)
    with promised(promises, "refuted", EVE):
        change_reputation(home, lambda book: book.refute(EVE, "wrong", time.time()))
    credential = Credential(issuer=ANN, token=b"t" * 40, expires=FAR)
    with promised(promises, "credential", ANN):
        store_tokens(home, [credential])


def after(home: Home, elsewhere: Path, promises: Promises) -> None:
    """A backup, an upload, a server's token, an adopted model; an admitted peer is revoked, and a joined pool is left."""
    typed = Typed(home.data.parent, promises)
    with open_store(home) as store:
        campaigns = len(store.campaigns.summaries())
    backup = home.data.parent / "backup.db"
    typed("db", "backup", backup, kind="backup", key="backup.db", value=campaigns)
    data = random.Random(3).randbytes(9_000)
    incoming = Uploads(home).begin("mine.onnx")
    incoming.write(data)
    upload = incoming.keep()
    promises.make(SCHEDULER, "upload", upload.sha256, True)
    token = own_token(home.folder("scheduler") / "api-token")
    promises.make(SCHEDULER, "token", "", token)
    adopted = random.Random(4).randbytes(5_000)
    model = Model(name="adopted", sha256=hashlib.sha256(adopted).hexdigest(), size=len(adopted))
    with promised(promises, "spooled", model.sha256):
        trio.run(_receive, model, adopted, home.spool)
    elsewhere_pool = Home.at(elsewhere / "carl")
    carl = Typed(elsewhere_pool.data.parent, promises)
    carl("pool", "create", "theirs", "--gate", GATE)
    theirs = read_ticket(carl("pool", "invite", "theirs", "--submit"))
    with promised(promises, "joined", theirs.pool, True):
        join_pool(home, theirs, Role.SUBMIT, ANN, now=time.time())
    with promised(promises, "joined", theirs.pool, False):
        leave_pool(home, theirs.pool, Role.SUBMIT)
    own = own_pool(home, "lab")
    member = PoolMember(peer=ANN, name="ann", role=Role.WORKER)
    own.change(lambda manifest: with_member(manifest, member, time.time()))
    promises.end(SCHEDULER, "admitted", f"lab {ANN}")
    promises.end(SCHEDULER, "admitted", f"lab {BOB}")  # that came with the same ticket
    promises.end(SCHEDULER, "tickets", "lab")
    with promised(promises, "revoked", f"lab {ANN}"):
        revoke(own, "ann", time.time())


async def _receive(model: Model, data: bytes, folder: Path) -> None:
    async def fetch(sink: Callable[[bytearray], object]) -> None:
        await trio.lowlevel.checkpoint()
        sink(bytearray(data))

    await receive(model, folder, fetch)

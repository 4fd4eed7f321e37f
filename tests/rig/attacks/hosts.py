"""Attacks by other users of a machine, and by peers that have a permission."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio

from protocol.messages import work as say
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body, task_message
from protocol.wire.base import Message
from protocol.words import ProtocolId
from swarm.base.home import Home
from swarm.join.host import open_host
from swarm.net.identity import load_or_create
from swarm.net.link import Link
from tests.real.lab import SARK, free_port
from tests.rig.attack import Attack, Facts, Node, Target
from tests.rig.attacks.wire import BROKEN, UNIT

PATHS: Final = ("/api/v1/campaigns", "/api/v1/devices", "/api/campaigns", "/")
INSIDER: Final = "eve"
LEASES: Final = 8
"""Leases to ask each worker for at a time."""


NOBODY: Final = 65534
ASK: Final = f"""
import os, socket, sys
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid({NOBODY}, {NOBODY}, {NOBODY}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
port, path = sys.argv[1:]
try:
    with socket.socket() as asking:
        asking.connect(("127.0.0.1", int(port)))
        asking.sendall(f"GET {{path}} HTTP/1.0\\r\\nHost: 127.0.0.1:{{port}}\\r\\n\\r\\n".encode())
        answer = b""
        while piece := asking.recv(65536):
            answer += piece
    print(answer.split()[1].decode(), len(answer.partition(b"\\r\\n\\r\\n")[2]))
except OSError:
    print(0, 0)
"""
"""A program that asks as another user. Only root can become another user, who may then be unable to read Python's own modules."""


def _get(port: int, path: str) -> tuple[int, int]:
    """Status and size of the answer that another user of this machine gets without a token."""
    ask = [sys.executable, "-c", ASK, str(port), path]
    done = subprocess.run(ask, capture_output=True, text=True, check=True)
    status, size = map(int, done.stdout.split())
    return status, size


@asynccontextmanager
async def local_user(target: Target) -> AsyncIterator[Facts]:
    """A local user without a token sends requests to a submitter's `serve` on loopback."""
    facts: Counter[str] = Counter()
    port = free_port()
    home = target.folder / "served"
    home.mkdir(exist_ok=True)
    with (target.folder / "serve.log").open("ab") as out:
        process = subprocess.Popen(  # noqa: ASYNC220
            [*SARK, "--home", str(home), "serve", "--port", str(port)],
            stdout=out,
            stderr=out,
            stdin=subprocess.PIPE,
            env=dict(os.environ),
        )
    try:
        with trio.fail_after(60):
            while not facts["answers"]:
                status, _ = await trio.to_thread.run_sync(partial(_get, port, "/"))
                facts["answers"] += bool(status)
                await trio.sleep(0.3)
        for path in PATHS[:-1] if os.geteuid() == 0 else ():  # only root can become another user
            status, size = await trio.to_thread.run_sync(partial(_get, port, path))
            facts["asked"] += bool(status)
            facts["pages without a token"] += status == 200 and size > 0
        yield facts
    finally:
        process.kill()
        process.wait()


def needs_a_token(rows: object, facts: Facts) -> list[str]:
    pages = facts.get("pages without a token", 0)
    return [f"leak: {pages} pages of the API without a token"] if pages else []


@asynccontextmanager
async def starving(target: Target) -> AsyncIterator[Facts]:
    """A scheduler that the workers serve commits task after task and never starts, renews or releases one."""
    facts: Counter[str] = Counter()
    identity = load_or_create(Home.at(target.folder.parent / "honest" / INSIDER).key("scheduler"))
    async with open_host(identity, bootstrap=[target.gate.gate]) as network, trio.open_nursery() as nursery:

        async def never(link: Link, message: Message) -> Message | None:
            facts[message.type] += 1
            if isinstance(message, (say.Progress, say.Preempt)):
                return None
            await trio.sleep(60)
            return say.Skip()

        async def greedy(node: Node) -> None:
            number = 0
            while True:
                try:
                    stream = await network.open(node.peer_id, ProtocolId.WORK, node.addresses)
                    link = Link(stream, say.WORK, never)
                    await nursery.start(link.run)
                    while True:
                        for _ in range(LEASES):
                            number += 1
                            answer = await link.call(_commit(identity, f"c-{node.name}", number))
                            facts[answer.type] += 1
                        await trio.sleep(0.5)
                except* BROKEN:
                    await trio.sleep(0.5)

        for node in target.workers:
            nursery.start_soon(greedy, node)
        await trio.sleep(2)
        yield facts
        nursery.cancel_scope.cancel()


def _commit(identity: object, campaign: str, number: int) -> say.Commit:
    task = Task(
        campaign=campaign, task=f"{campaign}/{number}", scheduler=identity.peer_id,  # type: ignore[attr-defined]
        model=Model(name="m.json", sha256="0" * 64, size=100), unit=UNIT, requirement=Requirement(),
        measure=Measure(runs=1, loads=1), timeouts=Timeouts(),
    )  # fmt: skip
    body = task_body(task)
    signature = identity.sign(task_message(body))  # type: ignore[attr-defined]
    return say.Commit(key=f"{task.task}/1", attempt=1, epoch=1, task=body, signature=signature, queue=True)


ATTACKS: Final = (
    Attack(
        "local-user",
        "also, U1",
        "another user of the machine asks the API of `serve` on loopback, without a token",
        local_user,
        evidence={"asked": len(PATHS) - 1 if os.geteuid() == 0 else 0},
        check=needs_a_token,
    ),
    Attack(
        "starving-scheduler",
        "S6",
        "a scheduler that is served commits task after task and starts none",
        starving,
        evidence={say.Granted.type: 1},
        schedulers=(INSIDER,),
    ),
)

"""Strangers that pose as workers: they take tasks and forge results, hold the tasks, or answer with bombs."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from protocol.errors import RemoteProtocolError, SarkError
from protocol.formats.chain import launch_seed
from protocol.messages import work as say
from protocol.values.advert import Advert
from protocol.values.lease import Fence
from protocol.values.record import (
    DeviceFacts,
    LaunchOutput,
    LoadSample,
    OutputSketch,
    Record,
    RunFacts,
    Timing,
    pack_samples,
    record_body,
    record_message,
)
from protocol.values.task import Task, read_task
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason, Right, RunOutcome, WorkerState
from swarm.blobs.client import fetch_blob
from swarm.net.link import Link
from swarm.net.links import serve_links
from tests.rig.attack import OWN_DEVICE, STRANGERS, Attack, Facts, Target
from tests.rig.attacks.wire import a_peer, honest_adverts, listed

FORGED_NS: Final = 1_234_567
FAKES: Final = 3
TTL_S: Final = 15.0
BOMB: Final = 999_999
"""Samples in a record bomb: a legal number, and the most bytes when unpacked."""


@dataclass
class FakeWorker:
    """A worker that grants every request. `act`: what it does with a granted task."""

    network: Any
    nursery: trio.Nursery
    clone: Advert
    act: Callable[[FakeWorker, Link, Task, str, say.Commit, Fence], Any]
    facts: Counter[str]
    refuses: bool = False
    leases: dict[str, Fence] = field(default_factory=dict)
    number: int = 0

    async def answer(self, link: Link, message: Message) -> Message | None:
        match message:
            case say.Probe():
                self.facts["probed"] += 1
                shapes = tuple(say.ShapeQuote(fits=True, warm=True, start_s=0.0) for _ in message.shapes)
                return say.Quote(
                    incarnation=1,
                    ledger=1,
                    state=WorkerState.ACTIVE,
                    free=1,
                    queue=0,
                    start_s=0.0,
                    run_s=0.001,
                    shapes=shapes,
                )
            case say.Commit():
                if self.refuses:
                    self.facts["refused"] += 1
                    return say.Denied(reason=Reason.NOT_ALLOWED, detail="not for you")
                return await self._grant(link, message)
            case say.Renew():
                held = tuple(each.lease for each in message.held)
                return say.Renewed(incarnation=1, state=WorkerState.ACTIVE, renewed=held)
            case say.Cancel() | say.Release():
                return say.Stopped(leases=tuple(each.lease for each in message.held))
            case say.AdoptRequest() | say.ListLeases():
                return say.AdoptReply(incarnation=1)
            case say.StatusRequest():
                return say.WorkerStatus(incarnation=1, state=WorkerState.ACTIVE)
            case _:
                return say.CredentialsReply(
                    principal=link.peer, rights=(Right.SUBMIT, Right.STATUS), priority=100
                )

    async def _grant(self, link: Link, commit: say.Commit) -> Message:
        self.facts["tasks"] += 1
        self.number += 1
        fence = Fence(incarnation=1, number=self.number)
        lease = f"l-{self.number}"
        self.leases[lease] = fence
        task = read_task(commit.task)
        self.nursery.start_soon(self.act, self, link, task, lease, commit, fence)
        return say.Granted(lease=lease, fence=fence, ttl_s=TTL_S, renew_s=TTL_S / 3)


async def _pull(fake: FakeWorker, link: Link, task: Task) -> None:
    """Fetch the model, which is the submitter's own."""
    got = bytearray()
    with suppress(SarkError, trio.TooSlowError, trio.BrokenResourceError), trio.move_on_after(5):
        await fetch_blob(
            fake.network, link.peer, (), task.model.sha256, sink=got.extend, size=task.model.size
        )
        if hashlib.sha256(got).hexdigest() == task.model.sha256:
            fake.facts["models"] += 1


def _record(
    fake: FakeWorker, task: Task, commit: say.Commit, fence: Fence, samples: bytes, **fields: Any
) -> Record:
    clone, runs = fake.clone, task.measure.runs
    inferences_s = FORGED_NS * (runs or 1) / 1e9
    device = {
        name: getattr(clone, name)
        for name in ("device", "name", "soc", "ram", "os", "arch", "cores", "version")
    }
    ran = RunFacts(
        unit=task.unit, driver="onnx", runtime="onnxruntime 1.31.1", providers=("CPUExecutionProvider",), threads=1,
        output_sha256="0" * 64, agrees=True, max_error=0.0, tolerance=1e-4,
    )  # fmt: skip
    warmup = pack_samples([FORGED_NS])
    timing = Timing(samples=samples, warmup=warmup, cpu_s=inferences_s, wall_s=1.01 * inferences_s)
    plain: dict[str, Any] = {
        "campaign": task.campaign,
        "task": task.task,
        "attempt": commit.attempt,
        "fence": fence,
        "worker": fake.network.peer_id,
        "task_sha256": hashlib.sha256(commit.task).hexdigest(),
        "model_sha256": task.model.sha256,
        "outcome": RunOutcome.COMPLETE,
        "device": DeviceFacts(**device),
        "ran": ran,
        "loads": tuple(LoadSample(ns=1_000_000) for _ in range(task.measure.loads or 1)),
        "timings": (timing,),
    }
    return Record(**(plain | fields))


async def _send(
    fake: FakeWorker, link: Link, record: Record, commit: say.Commit, fence: Fence, lease: str
) -> None:
    body = record_body(record)
    result = say.Result(
        campaign=record.campaign, task=record.task, attempt=commit.attempt, lease=lease, fence=fence, body=body,
        sha256=hashlib.sha256(body).hexdigest(), size=len(body), signature=fake.network.sign(record_message(body)),
    )  # fmt: skip
    with suppress(SarkError, RemoteProtocolError):
        fake.facts["results"] += 1
        reply = await link.call(result, max_wait_s=60)
        fake.facts["accepted" if isinstance(reply, say.Accepted) else "refused results"] += 1


async def forge(
    fake: FakeWorker, link: Link, task: Task, lease: str, commit: say.Commit, fence: Fence
) -> None:
    """Send an invented, signed result as soon as the model has been fetched."""
    await _pull(fake, link, task)
    samples = pack_samples([FORGED_NS] * (task.measure.runs or 1))
    await _send(fake, link, _record(fake, task, commit, fence, samples), commit, fence, lease)


async def forge_chain(
    fake: FakeWorker,
    link: Link,
    task: Task,
    lease: str,
    commit: say.Commit,
    fence: Fence,
    *,
    bare: bool = False,
) -> None:
    """Send an invented result in the form of a witnessed run: it asks for the reveal, follows the chain, notes each launch, and takes as
    long as it claims. Only its outputs are wrong, because it never runs the model. `bare`: it reports nothing of the outputs that can be
    compared.
    """
    await _pull(fake, link, task)
    with suppress(SarkError, RemoteProtocolError):
        reveal = await link.ask(say.RevealRequest(lease=lease, fence=fence), say.Reveal)
        fake.facts["reveals"] += 1
        launches, runs = task.measure.loads or 1, task.measure.runs or 1
        shares = [runs // launches + (n < runs % launches) for n in range(launches)]
        timings = []
        for number, share in enumerate(shares, start=1):
            sums = struct.pack(">16f", *([0.25] * 16))
            output = LaunchOutput(
                sha256=hashlib.sha256(bytes([number])).hexdigest(),
                sketches=() if bare else (OutputSketch(dtype="float32", count=8, norm=1.0, sums=sums),),
            )
            inferences_s = FORGED_NS * share / 1e9
            await trio.sleep(0.05 + 2 * inferences_s)
            digest = output.digest().hex()
            await link.tell(say.LaunchEnded(lease=lease, fence=fence, launch=number, digest=digest))
            timings.append(
                Timing(
                    samples=pack_samples([FORGED_NS] * share), warmup=pack_samples([FORGED_NS]), output=output,
                    cpu_s=inferences_s, wall_s=1.01 * inferences_s,
                )
            )  # fmt: skip
        record = _record(fake, task, commit, fence, b"", timings=tuple(timings))
        assert record.ran is not None
        first = timings[0].output
        assert first is not None
        ran = record.ran.model_copy(
            update={"seed": launch_seed(reveal.opening, 1), "output_sha256": first.sha256}
        )
        chained = record.model_copy(update={"ran": ran, "opening": reveal.opening, "reveal": reveal.reveal})
        await _send(fake, link, chained, commit, fence, lease)


async def forge_bare_chain(
    fake: FakeWorker, link: Link, task: Task, lease: str, commit: say.Commit, fence: Fence
) -> None:
    """Like `forge_chain`, without sketches of the outputs."""
    await forge_chain(fake, link, task, lease, commit, fence, bare=True)


async def hold(
    fake: FakeWorker, link: Link, task: Task, lease: str, commit: say.Commit, fence: Fence
) -> None:
    """Do nothing: renewals are answered, and no result ever comes."""


async def bomb(
    fake: FakeWorker, link: Link, task: Task, lease: str, commit: say.Commit, fence: Fence
) -> None:
    """Send a record of a few KiB whose samples unpack to a long list."""
    samples = zlib.compress(b"\x00" * BOMB, 9)
    timings = tuple(Timing(samples=samples, warmup=samples, cpu_s=1.0, wall_s=1.0) for _ in range(15))
    await _send(
        fake, link, _record(fake, task, commit, fence, samples, timings=timings), commit, fence, lease
    )


ACTS: Final = {"forge": forge, "chain": forge_chain, "bare": forge_bare_chain, "hold": hold, "bomb": bomb}


@asynccontextmanager
async def fake_workers(target: Target) -> AsyncIterator[Facts]:
    """Clones of the honest devices under fresh keys. Options: `act`, one of `ACTS`; `count`; `refuse`: how many of them refuse instead."""
    facts: Counter[str] = Counter()
    options = target.options
    count = options.get("count", FAKES)
    async with AsyncExitStack() as stack:
        for number in range(count):
            network, index, nursery = await stack.enter_async_context(a_peer(target))
            await nursery.start(index.run)
            honest = await honest_adverts(index, target)
            clone = honest[number % len(honest)].model_copy(
                update={"peer": network.peer_id, "addresses": network.addresses, "seq": 1, "simulated": None}
            )
            act = ACTS[options.get("act", "forge")]
            fake = FakeWorker(network, nursery, clone, act, facts, refuses=number < options.get("refuse", 0))
            serve_links(network, ProtocolId.WORK, say.WORK, fake.answer)
            await index.publish(clone)
            while network.peer_id not in await listed(target.gate):  # every scheduler asks the gate
                await trio.sleep(0.2)
            facts["advertised"] += 1
        yield facts


def nothing_for_strangers(rows: list[dict[str, Any]], facts: Facts) -> list[str]:
    """By default no stranger gets a task or a model."""
    tasks, models = facts.get("tasks", 0), facts.get("models", 0)
    return [f"strangers got {tasks} tasks"] * bool(tasks) + [
        f"leak: strangers got the model {models} times"
    ] * bool(models)


def no_forgery(rows: list[dict[str, Any]], facts: Facts) -> list[str]:
    """Strangers may take tasks, but a forged result is never a clean row."""
    clean = [
        f"{row['FileName']} ({row['Verdict']}: {row['VerdictReason'][:100]})"
        for row in rows
        if row["Status"] == "Complete" and row["InferenceMsMedian"] == FORGED_NS / 1e6 and not _flagged(row)
    ]
    return [f"forged row that looks good: {name}" for name in clean]


MEASURED: Final = {
    "models": [f"nano-{n}.onnx" for n in range(6)],
    "units": ["CPU (ONNX)"],
    "measure": {"runs": 20, "loads": 2},
}
"""A campaign that measures: rows of the simulated unit are marked as simulated, whoever made them."""


def _flagged(row: dict[str, Any]) -> bool:
    """Whether the row says that a stranger measured it and that its time or its outputs were not witnessed."""
    return row["Verdict"] in ("unwitnessed", "unchecked") and row["Trust"] == "stranger"


ATTACKS: Final = (
    Attack(
        "fake-workers",
        "1",
        "three strangers clone an honest device, take tasks and send signed inventions",
        fake_workers,
        check=nothing_for_strangers,
        short=True,
        evidence={"advertised": FAKES},
        leaves=True,
    ),
    Attack(
        "fake-workers-admitted",
        "1, S8, D9",
        "the same, in a campaign that admits strangers",
        fake_workers,
        campaign=STRANGERS | MEASURED,
        check=no_forgery,
        strangers=True,
        evidence={"tasks": 1, "models": 1, "results": 1},
        leaves=True,
    ),
    Attack(
        "fake-chain-admitted",
        "1, S8",
        "the same strangers keep to the form of a witnessed run, chain and times, and only invent the outputs",
        fake_workers,
        {"act": "chain"},
        STRANGERS | MEASURED,
        no_forgery,
        strangers=True,
        evidence={"tasks": 1, "reveals": 1, "results": 1},
        leaves=True,
    ),
    Attack(
        "fake-bare-chain-admitted",
        "1, S8",
        "the same, but they leave out what the outputs would be compared by",
        fake_workers,
        {"act": "bare"},
        STRANGERS | MEASURED,
        no_forgery,
        strangers=True,
        evidence={"tasks": 1, "reveals": 1, "results": 1},
        leaves=True,
    ),
    Attack(
        "fake-device",
        "1",
        "the same, in a campaign that is pinned to the submitter's own device, whose id they have copied",
        fake_workers,
        campaign={"devices": {"where": [f"device == {OWN_DEVICE}"], "spread": "device"}},
        check=nothing_for_strangers,
        evidence={"advertised": FAKES},
        leaves=True,
    ),
    Attack(
        "hold",
        "2",
        "the same strangers renew and never answer",
        fake_workers,
        {"act": "hold"},
        check=nothing_for_strangers,
        evidence={"advertised": FAKES},
        leaves=True,
    ),
    Attack(
        "hold-admitted",
        "2",
        "the same, in a campaign that admits strangers",
        fake_workers,
        {"act": "hold"},
        STRANGERS,
        strangers=True,
        evidence={"tasks": 1},
        leaves=True,
    ),
    Attack(
        "record-bomb",
        "9",
        "results of some KiB whose samples fill millions of numbers, in a campaign that admits strangers",
        fake_workers,
        {"act": "bomb"},
        STRANGERS,
        strangers=True,
        evidence={"tasks": 1, "results": 1},
        leaves=True,
    ),
    Attack(
        "silent-and-refusing",
        "also",
        "of three strangers two fall silent and one refuses, in a campaign that admits strangers",
        fake_workers,
        {"act": "hold", "refuse": 1},
        STRANGERS,
        strangers=True,
        evidence={"tasks": 1, "refused": 1},
        leaves=True,
    ),
)

"""Bugs that could be in the product, each as a change of its source, and the tests that should find it.

The simulation has mutants of its own (`tests/simulation/mutants.py`), which are not repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

POWER: Final = "tests/durability"
PROMISES: Final = frozenset(
    {"fences", "fsync", "order of writes", "epochs", "revocation", "signatures", "hashes"}
)
"""Kinds of which none may survive: somebody was promised that this cannot happen."""


@dataclass(frozen=True)
class SourceMutant:
    """`changes`: each old text, which stands once in the file at `path`, and the new one. `tests`: what finds it."""

    name: str
    kind: str
    path: str
    changes: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


def _one(kind: str, name: str, path: str, old: str, new: str, *tests: str) -> SourceMutant:
    return SourceMutant(name, kind, path, ((old, new),), tests)


_LEDGER, _DURABLE, _STATS = "node/capacity/ledger.py", "swarm/base/durable.py", "results/row/stats.py"
_OWNER, _ACCESS = "swarm/pools/owner.py", "node/access/authorization.py"
_OF_LEDGER = ("tests/node/capacity/test_ledger.py", "tests/node/capacity/test_ledger_walk.py")
_OF_STORE = ("tests/scheduler/store/test_store.py",)
_OF_ACCESS = ("tests/node/access",)
_OF_POOLS = ("tests/swarm/pools",)
_ROUNDS, _OF_ROUNDS = "results/row/rounds.py", ("tests/results/row/test_rounds.py",)
_SPLICING, _OF_PASSING = "swarm/relay/splicing.py", ("tests/swarm/relay/test_passing.py",)
_BINDINGS = "swarm/relay/data_connections.py"
_PUNCH, _OF_PUNCH = "swarm/relay/hole_punch.py", ("tests/swarm/relay/test_hole_punch.py",)
_OF_STATS = ("tests/results/row/test_stats.py",)

FENCES: Final = (
    _one("fences", "the service takes a result under any fence", "scheduler/conversation/conversation.py",
        "return (attempt.number, attempt.fence) == (result.attempt, result.fence)", "return attempt.number == result.attempt",
        "tests/scheduler/conversation/test_fences.py"),
    _one("fences", "the store takes a result under any fence", "scheduler/store/attempts.py",
        "current = (row.attempt, row.worker, row.fence) == (attempt, worker, fence)", "current = (row.attempt, row.worker) == (attempt, worker)", *_OF_STORE),
    _one("fences", "a record may speak of another fence", "results/row/acceptance.py",
        "result.fence", "record.fence", "tests/scheduler/run/test_receive.py"),
    _one("fences", "a lease is renewed under another fence", _LEDGER,
        "if allocation.fence != item.fence:\n            return Reason.FENCED", "if False:\n            return Reason.FENCED", *_OF_LEDGER),
    _one("fences", "a lease of an earlier life is not said to be lost", _LEDGER,
        "if item.fence.incarnation != self.incarnation:\n            return Reason.LOST", "if False:\n            return Reason.LOST",
        *_OF_LEDGER),
    _one("fences", "a run is stopped under any fence", _LEDGER,
        "lambda one: one.peer == peer and one.fence == fences.get(one.lease)", "lambda one: one.peer == peer and one.lease in fences",
        *_OF_LEDGER),
    _one("fences", "fences do not rise from one lease to the next", _LEDGER,
        "        self._number += 1\n", "        self._number = max(self._number, 1)\n", *_OF_LEDGER),
    _one("fences", "a lease is known by its name alone", "scheduler/core/state.py",
        "if attempt.lease == lease and attempt.fence == fence:", "if attempt.lease == lease:", "tests/scheduler/core"),
    _one("fences", "one lease may be given to two tasks", "scheduler/core/reconciler.py",
        "if any(lease == other.lease or fence == other.fence for _, other in state.held_at(peer)):", "if False:", "tests/scheduler/core"),
)  # fmt: skip

GRANTS: Final = (
    _one("grants", "a key stands for any task", _LEDGER, "if sha256 != request.task_sha256:", "if False:", *_OF_LEDGER),
    _one("grants", "a stale quote is as good as a fresh one", _LEDGER,
        "if request.commit.ledger is not None and request.commit.ledger != self.version:", "if False:", *_OF_LEDGER),
    _one("grants", "an attempt's number is stored twice", "scheduler/store/attempts.py",
        "if intent.attempt != last + 1:", "if False:", *_OF_STORE),
    _one("grants", "a task of which nothing runs is hedged", "scheduler/store/attempts.py",
        "if row.state not in (_HEDGEABLE if intent.hedge else (TaskState.PENDING,)):", "if False:", *_OF_STORE),
    _one("grants", "a narrower permission carries what was accepted under a wider one", _ACCESS,
        "            and permit.priority >= request.base_priority\n", "", *_OF_ACCESS),
    _one("grants", "somebody else's task is taken", "node/conversation/requests.py",
        "if task.scheduler not in (peer, permission.principal):", "if False:", "tests/node/conversation", "tests/node/serve/test_service.py"),
)  # fmt: skip

FSYNC: Final = (
    _one("fsync", "the bytes of a file are not flushed", _DURABLE,
        "                file.flush()\n                os.fsync(file.fileno())\n", "                file.flush()\n", POWER),
    _one("fsync", "the name of a file is not flushed", _DURABLE,
        "    if durable:\n        sync_folder(path.parent)\n", "", POWER),
    _one("fsync", "the name of a new folder is not flushed", _DURABLE,
        "        path.mkdir(mode=mode, exist_ok=True)\n        sync_folder(path.parent)\n", "        path.mkdir(mode=mode, exist_ok=True)\n",
        POWER),
    _one("fsync", "what is removed comes back", _DURABLE,
        "        path.unlink()\n        sync_folder(path.parent)\n", "        path.unlink()\n", POWER),
    SourceMutant("SQLite flushes at checkpoints only", "fsync", "scheduler/store/sqlite.py",
        (("PRAGMA synchronous = FULL", "PRAGMA synchronous = NORMAL"), ("flushed != 2", "flushed != 1")), (POWER,)),
    _one("fsync", "an adopted model's bytes are not flushed", "scheduler/models/spool.py",
        "            await DISK.run(os.fsync, file.fileno())\n", "            assert os is not None\n", POWER),
    _one("fsync", "an adopted model's name is not flushed", "scheduler/models/spool.py",
        "        await DISK.run(sync_folder, folder)\n", "", POWER),
    _one("fsync", "a submitted model is not flushed", "scheduler/models/spool.py",
        "with replacing(target) as writer:", "with replacing(target, durable=False) as writer:", POWER),
    _one("fsync", "a model that was fetched is not flushed", "node/store/partial.py",
        "        os.fsync(self._file.fileno())\n", "", POWER),
    _one("fsync", "the name of a model that was fetched is not flushed", "node/store/partial.py",
        "        self._list.unlink(missing_ok=True)\n        sync_folder(path.parent)\n", "        self._list.unlink(missing_ok=True)\n",
        POWER),
    _one("fsync", "the name of a model that was added is not flushed", "node/store/model_files.py",
        "            sync_folder(folder)\n        return _read_model", "        return _read_model", POWER),
    _one("fsync", "the bytes of a model that was added are not flushed", "node/store/model_files.py",
        "            os.fsync(writer.fileno())\n", "", POWER),
    _one("fsync", "a pin is not flushed", "node/store/model_files.py", 'write_durably(path, b"")', "path.touch(mode=0o600)", POWER),
    _one("fsync", "the name of an upload is not flushed", "scheduler/models/uploads.py",
        "            sync_folder(self._folder)\n", "", POWER),
    _one("fsync", "a backup's name is not flushed", "scheduler/store/archive.py",
        "                sync_folder(path.parent)\n", "", POWER),
    _one("fsync", "a server's token is not flushed", "web/http/middleware.py", "        sync_folder(path.parent)\n", "", POWER),
)  # fmt: skip

ORDER: Final = (
    _one("order of writes", "a record's head is written before it", "node/store/outbox_files.py",
        "                self._files.write(record_name(item.sha256), body)\n                self._write_head(item)\n",
        "                self._write_head(item)\n                self._files.write(record_name(item.sha256), body)\n", POWER),
    _one("order of writes", "an intent is stored after its commit was sent", "scheduler/conversation/conversation.py",
        "        self._writer.write(commands)\n        for command in commands:\n            self._send(command)\n",
        "        for command in commands:\n            self._send(command)\n"
        "        self._shell.start(self._late(commands))\n\n"
        "    async def _late(self, commands: Sequence[Command]) -> None:\n"
        "        await SleepUntil(self._shell.now() + 0.3)\n"
        "        self._writer.write(commands)\n", POWER),
    _one("order of writes", "a worker counts its starts after it has begun", "swarm/net/identity.py",
        '    write_durably(path, b"%d\\n" % (last + 1))\n', "", "tests/swarm/net/test_identity.py"),
    _one("order of writes", "the store commits what has failed", "scheduler/store/database.py",
        "                self.backend.roll_back(c)\n                raise\n", "                self.backend.commit(c)\n                raise\n",
        "tests/scheduler/store"),
)  # fmt: skip

EXPIRY: Final = (
    _one("expiry", "a worker is silent for longer than its leases last", "scheduler/conversation/links.py",
        "SILENT_S: Final = LEASE_TTL_S - 1.0", "SILENT_S: Final = LEASE_TTL_S + 5.0", "tests/scheduler/conversation/test_link_loss.py"),
    _one("expiry", "a token is good for ever", _ACCESS, "if now >= token.expires:\n            return\n", "if False:\n            return\n", *_OF_ACCESS),
    _one("expiry", "a membership does not end", "swarm/pools/manifests.py",
        "return member.until is None or now <= member.until + LEEWAY_S", "return True", *_OF_POOLS),
    _one("expiry", "a ticket does not end", _OWNER, "return now <= self.until", "return True", *_OF_POOLS),
    _one("expiry", "records are kept for ever", "node/conversation/outbox.py",
        "return not (steady and RETENTION_S < wall - item.stored < CLOCK_JUMP_S)", "return True", "tests/node/conversation"),
    _one("expiry", "a clock that jumped ages records", "node/conversation/outbox.py",
        "return not (steady and RETENTION_S < wall - item.stored < CLOCK_JUMP_S)", "return not RETENTION_S < wall - item.stored",
        "tests/node/conversation"),
    _one("expiry", "a campaign's time limit does not end its runs", _LEDGER,
        "if ends_at is not None and ends_at <= now:", "if False:", "tests/node/capacity/test_limits.py"),
)  # fmt: skip

REVOCATION: Final = (
    _one("revocation", "an older list of members undoes a revocation", _ACCESS,
        "if pool is None or manifest.number <= pool.number:", "if pool is None:", *_OF_ACCESS),
    _one("revocation", "an older list of members replaces a newer one on disk", "swarm/pools/membership.py",
        "if stored is None or read_manifest(stored.body).number < manifest.number:", "if True:", *_OF_POOLS),
    _one("revocation", "a token delegated by who was revoked counts", _ACCESS,
        "if state.revoked.isdisjoint(holders) else ()", "if True else ()", *_OF_ACCESS),
    _one("revocation", "who was revoked is admitted again", "swarm/pools/manifests.py",
        "elif member.peer in revoked_peers(manifest):", "elif False:", *_OF_POOLS),
    _one("revocation", "a member's ticket outlives its revocation", "swarm/pools/enrolment.py",
        "    pool.revoke_tickets(tickets, now)  # first", "    # first", *_OF_POOLS, "tests/gate/admission"),
    _one("revocation", "a ticket admits any number", _OWNER, "if len(ticket.used) >= ticket.uses:", "if False:",
        *_OF_POOLS, "tests/gate/admission/test_pools.py"),
    SourceMutant("runs of who was revoked go on", "revocation", "node/access/revocation.py",
        (("            self.ledger.evict(peer, Reason.NOT_ALLOWED, trio.current_time())\n", ""), ("        if without:  #", "        if False:  #")),
        (*_OF_ACCESS, "tests/node/serve/test_service.py")),
    _one("revocation", "a forgotten key stays listed", "scheduler/trust/listed.py",
        'update={"trusted": tuple(each for each in before.trusted if each.peer != peer)}', 'update={"trusted": before.trusted}',
        "tests/scheduler/trust", "tests/cli/test_adopt_commands.py"),
)  # fmt: skip

CANCEL: Final = (
    _one("cancel", "who led before cancels the runs of who leads", "node/conversation/conversation.py",
        "for lease, why in self.requests.refusals(link, permission, message.held, to_end=True).items():", "for lease, why in dict[str, Reason]().items():",
        "tests/node/conversation", "tests/node/capacity"),
    _one("cancel", "a cancel ends nothing", _LEDGER, "            if ends(one):\n", "            if not ends:\n", *_OF_LEDGER),
    _one("cancel", "a cancel is answered while something dies", "node/conversation/conversation.py",
        "            if not stop.dying:\n                self._stops.remove(stop)\n", "            if stop in self._stops:\n                self._stops.remove(stop)\n",
        "tests/node/conversation", "tests/node/serve/test_service.py"),
    _one("cancel", "a campaign is retried before it has ended", "scheduler/submit/submit.py",
        "if row is None or row.ended is None:", "if row is None:", "tests/scheduler/submit", "tests/cli/test_commands.py"),
)  # fmt: skip

STATISTICS: Final = (
    _one("statistics", "no Bessel's correction", _STATS, "(n * (n - 1))", "(n * n)", *_OF_STATS),
    _one("statistics", "percentiles are rounded down", _STATS, "max(-(-percent * len(ordered) // 100), 1)", "max(percent * len(ordered) // 100, 1)",
        *_OF_STATS),
    _one("statistics", "the interval is one of 90 %", "results/row/order.py", "        if 2 * below / 2**n > alpha:\n            return", "        if below / 2**n > alpha:\n            return", *_OF_STATS),
    _one("statistics", "each look of a comparison spends what all may", _ROUNDS, "return ALPHA_SPENDING[look] /", "return sum(ALPHA_SPENDING) /", *_OF_ROUNDS),
    _one("statistics", "wall and CPU time each spend the whole error", _ROUNDS, "alpha_at(len(wall), 1 if cpu is None else 2, pairs)",
        "alpha_at(len(wall), 1, pairs)", *_OF_ROUNDS),
    _one("statistics", "a slowdown that the other time contradicts is one", _ROUNDS,
        "any(each.low > 1 + MARGIN for each in present) and all(each.high >= 1 for each in present)",
        "any(each.low > 1 + MARGIN for each in present)", *_OF_ROUNDS),
    _one("statistics", "models take turns in one order", "drivers/measure/interleave.py",
        "tuple(chance.sample(range(plan.models), plan.models))", "tuple(range(plan.models))", "tests/drivers/measure/test_interleave.py"),
    _one("statistics", "a run's times need not be those of its rounds", "results/row/acceptance.py",
        "if rounds.wall_ns[-1] != launch.samples:", "if False:", "tests/results/row/test_together.py"),
    _one("statistics", "the median of two is the larger", _STATS, "(ordered[half - 1] + ordered[half]) / 2", "ordered[half]", *_OF_STATS),
    _one("statistics", "every outlier is severe", _STATS, "beyond = _beyond(ordered, low, high, SEVERE * width)",
        "beyond = _beyond(ordered, low, high, MILD * width)", *_OF_STATS),
    _one("statistics", "the spread is a share of the slowest launch", _STATS,
        "spread=(max(medians) - min(medians)) / value", "spread=(max(medians) - min(medians)) / max(medians)", *_OF_STATS),
    _one("statistics", "ties count as order", _STATS,
        "(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2", "float(bisect_left(ordered, value))", *_OF_STATS),
)  # fmt: skip

HASHES: Final = (
    _one("hashes", "a record is not held against its hash", "scheduler/run/shell.py",
        "if len(body) != result.size or hashlib.sha256(body).hexdigest() != result.sha256:", "if len(body) != result.size:",
        "tests/scheduler/run/test_receive.py"),
    _one("hashes", "a model is not held against its hash", "node/store/cache.py",
        "if await HASHING.run(partial.digest) != model.sha256:", "if False:", "tests/node/store/test_cache.py"),
    _one("hashes", "a campaign manifest is not held against its hash", "scheduler/adoption/recovery.py",
        "if hashlib.sha256(data).hexdigest() != sha256:", "if False:", "tests/scheduler/adoption/test_recovery.py"),
    _one("hashes", "a bundle's files are not held against its list", "node/store/bundles.py",
        "if hashing.hexdigest() != part.sha256:", "if False:", "tests/node/store/test_bundles.py"),
    _one("hashes", "a stored record is not held against its hash", "node/store/outbox_files.py",
        "if hashlib.sha256(body).hexdigest() != sha256:", "if False:", "tests/node/store/test_outbox_files.py"),
    _one("hashes", "a model that changed while it was submitted is taken", "scheduler/models/spool.py",
        "            if digest.hexdigest() != model.sha256:\n                raise CampaignError(",
        "            if False:\n                raise CampaignError(", "tests/scheduler/models"),
    _one("hashes", "an event that was changed is not noticed", "scheduler/store/events.py",
        "if event.hash != chain_hash(previous, event):", "if False:", "tests/scheduler/output/test_events.py"),
    _one("hashes", "an event that was removed is not noticed", "scheduler/store/events.py",
        "if event.seq != expected:", "if False:", "tests/scheduler/output/test_events.py"),
)  # fmt: skip

SIGNATURES: Final = (
    _one("signatures", "an adopted campaign's manifest needs no signature", "scheduler/adoption/recovery.py",
        "if not verify(owner, cover.message, cover.signature):", "if False:", "tests/scheduler/adoption/test_recovery.py"),
    _one("signatures", "a worker keeps a manifest that nobody signed", "node/store/manifests.py",
        "or not verify(\n            owner, cover.message, cover.signature\n        ):", "or verify is None:", "tests/node/store/test_manifests.py"),
    _one("signatures", "a record needs no signature", "results/row/acceptance.py",
        "if not verify(peer, record_message(body), result.signature):", "if verify is None:", "tests/scheduler/run/test_receive.py"),
    _one("signatures", "a task needs no signature", "node/conversation/requests.py",
        "if not self.context.verify(peer, task_message(request.task), request.signature):", "if False:",
        "tests/node/conversation", "tests/node/serve/test_service.py"),
    _one("signatures", "a pool's list of members needs no signature", "swarm/pools/manifests.py",
        "if not verify(manifest.pool, manifest_message(signed.body), signed.signature):", "if False:", *_OF_POOLS),
    _one("signatures", "an exported record needs no signature", "results/analysis/verify.py",
        "if not verify(record.worker, record_message(signed.body), signed.signature):", "if False:", "tests/results/analysis/test_verify.py"),
    _one("signatures", "a proof of who leads needs no signature", "scheduler/run/epochs.py",
        " or not verify(claim.peer, claim.message, claim.signature)", "", "tests/scheduler/run/test_epochs.py"),
    _one("signatures", "a grant to share a model needs no signature", "node/store/blob_sources.py",
        "if not verify(grant.giver, grant.message, grant.signature):", "if False:", "tests/node/store/test_blob_sources.py"),
)  # fmt: skip

EPOCHS: Final = (
    _one("epochs", "two may lead under one epoch", "node/capacity/epochs.py",
        "if leader is None or epoch > leader.epoch or (epoch, peer) == (leader.epoch, leader.peer):",
        "if leader is None or epoch >= leader.epoch:", "tests/node/capacity"),
    _one("epochs", "a delegate takes the last epoch", "node/capacity/epochs.py",
        "if peer != principal and epoch > MAX_DELEGATE_EPOCH:", "if False:", "tests/node/capacity"),
    _one("epochs", "the proof of an older epoch is shown", "node/capacity/epochs.py",
        "return proof if epoch == self.epoch(principal, campaign) else None", "return proof or None", "tests/node/capacity"),
    _one("epochs", "an older scheduler hears how a run ended", _LEDGER,
        "if _epoch_of(item, epochs.get(ended.campaign_key[1], newest)) < newest:", "if False:", "tests/node/capacity", "tests/node/conversation"),
    _one("epochs", "the epoch does not rise at a restart", "scheduler/store/campaigns.py",
        "epoch = min(known + step, MAX_EPOCH)", "epoch = known or 1", *_OF_STORE, "tests/scheduler/run/test_restore.py"),
    _one("epochs", "a lower epoch that is proven takes a campaign away", "scheduler/run/epochs.py",
        "if epoch <= claim.epoch:", "if not epoch:", "tests/scheduler/run/test_epochs.py"),
)  # fmt: skip

CIRCUITS: Final = (
    _one("circuits", "what one circuit may not carry any more goes to the next", _SPLICING,
        "            self._read(self._holds)\n        self._holds = self", "            pass\n        self._holds = self", *_OF_PASSING),
    _one("circuits", "what a full socket does not take is lost", _SPLICING,
        "                return self._read(self._holds)\n", '                self._read(self._holds)\n                return b""\n', *_OF_PASSING),
    _one("circuits", "an urgent byte stops a circuit", _SPLICING,
        "                    self._read = await self._source.receive_some(PIPE)\n                    size = len(self._read)\n",
        "                    return await self.take(within_s)\n", *_OF_PASSING),
    _one("circuits", "single bytes keep others waiting", _SPLICING,
        "self._in_a_row += max(size, LEAST)", "self._in_a_row += size", *_OF_PASSING),
    _one("circuits", "an id is good for two connections", _BINDINGS,
        "        del self._expected[expected.id]\n", "", "tests/swarm/relay/test_data_connections.py"),
    _one("circuits", "what ends say before they have proved themselves is not masked", "swarm/relay/client.py",
        "data if self._mask is None else self._mask.send(data)", "data", "tests/swarm/relay/test_stop.py"),
    _one("circuits", "both ends mask with the same bytes", _BINDINGS,
        "bytes([side])", "bytes([0])", "tests/swarm/relay/test_data_connections.py"),
    _one("circuits", "the halves of circuits take the places of peers", "swarm/p2p/dialler.py",
        "self._inbound_limiter.total_tokens += 1", "pass", "tests/swarm/relay/test_real.py"),
    _one("circuits", "the halves of circuits take the share of their network", "swarm/p2p/connection_gater.py",
        "self._held[network] - self._carrying[network] >=", "self._held[network] >=", "tests/swarm/p2p/test_connection_gater.py"),
    _one("circuits", "who is at work on a circuit looks idle to its gate", "swarm/relay/hop.py",
        "                                stream.at_work()\n", "                                pass\n", "tests/swarm/relay/test_real.py"),
    _one("circuits", "the dialler of a circuit begins to punch", _PUNCH,
        "dialled=muxed.is_initiator", "dialled=not muxed.is_initiator", *_OF_PUNCH),
    _one("circuits", "whoever calls a node may have it dial", _PUNCH,
        "stream.relayed and stream.outbound and", "stream.relayed and", *_OF_PUNCH),
    _one("circuits", "tries with a peer are not counted where we begin", _PUNCH,
        "            and self._take_try(peer)\n", "", *_OF_PUNCH),
    _one("circuits", "a called node does not dial plainly", _PUNCH,
        "[*punching, *plain]", "punching", *_OF_PUNCH),
    _one("circuits", "whoever calls a node has it dial hosts of its own network", _PUNCH,
        "or (chosen and any(", "or (any(", *_OF_PUNCH),
    _one("circuits", "callers that do not answer keep others waiting", _PUNCH,
        "                theirs = await _receive(stream, HolePunch.CONNECT)\n",
        "                async with self._punching_slots:\n                    theirs = await _receive(stream, HolePunch.CONNECT)\n", *_OF_PUNCH),
    _one("circuits", "what a caller wants takes no place of those for inbound connections", _PUNCH,
        "                        self.swarm.admit(conn)\n", "                        pass\n", *_OF_PUNCH),
    _one("circuits", "a circuit with a stream on it is closed", _PUNCH,
        "is not None and not circuit.get_streams()", "is not None", *_OF_PUNCH),
    _one("circuits", "a circuit that nothing replaces is closed", _PUNCH,
        "self.swarm.direct(peer) is not None and not circuit", "not circuit", *_OF_PUNCH),
    _one("circuits", "a circuit that is replaced stays", _PUNCH,
        "                await circuit.close()\n", "                pass\n", *_OF_PUNCH),
    _one("circuits", "a gate is asked for more circuits at once than it reads", "swarm/relay/client.py",
        "MAX_ASKED: Final = 8", "MAX_ASKED: Final = 800", "tests/swarm/relay/test_real.py"),
    _one("circuits", "bytes that are no handshake end the node", "swarm/p2p/handshakes.py",
        "        except Exception as error:\n", "        except BaseLibp2pError as error:\n", *_OF_PUNCH),
)  # fmt: skip

LIMITS: Final = (
    _one("limits", "a large model evicts others before it comes", "node/store/cache.py",
        "                await self._bring(model, partial", "                await self._make_room(model, model.size, 0)\n                await self._bring(model, partial", "tests/node/store/test_cache.py"),
    _one("limits", "answers may be any text", "drivers/contract/base.py",
        "        b64decode(text, validate=True)\n", "        text.encode()\n", "tests/node/run/test_answers.py"),
    _one("limits", "a bug in a run ends the node", "node/run/runner.py",
        "except Exception as exc:", "except ZeroDivisionError as exc:", "tests/node/run/test_answers.py"),
    _one("limits", "the LAN alone says who is tried when no gate answers", "swarm/join/presence.py",
        "[:MAX_NEAR]", "", "tests/swarm/join/test_presence.py"),
    _one("limits", "a neighbour counts before it proved its key", "swarm/reach/mdns.py",
        "if await self.on_neighbour(contact):", "if await self.on_neighbour(contact) is not None:", "tests/swarm/reach/test_mdns.py"),
    _one("limits", "who was silent is remembered for ever", "swarm/index/index.py",
        "            self._client.unusable()  # forgets who may be asked again\n", "", "tests/swarm/index/test_swarm.py"),
    _one("limits", "a refusal has a line too many", "node/conversation/requests.py",
        "unmet[: MAX_UNMET_LINES - 1]", "unmet", "tests/node/conversation/test_conversation.py"),
    _one("limits", "an API client's models at Hugging Face come with the user's login", "scheduler/models/fetch.py",
        "if reach == OWNER_URL_REACH:", "if True:", "tests/scheduler/models/test_fetch.py"),
)  # fmt: skip

MUTANTS: Final = (
    *FENCES, *GRANTS, *FSYNC, *ORDER, *EXPIRY, *REVOCATION, *CANCEL, *STATISTICS, *HASHES, *SIGNATURES, *EPOCHS,
    *CIRCUITS, *LIMITS,
)  # fmt: skip


class MutantError(ValueError):
    """The source has changed: the mutant is to be written anew."""


def changed(source: str, mutant: SourceMutant) -> str:
    """The source with the bug in it. Raises `MutantError` when an old text does not stand there once."""
    for old, new in mutant.changes:
        if source.count(old) != 1:
            raise MutantError(
                f"{mutant.path} has {source.count(old)} times what {mutant.name!r} replaces: {old!r}"
            )
        source = source.replace(old, new)
    return source

"""What a home still knows after a power cut, read by the product's own code.

    facts_of(tree, home, folder)      kind → key → value, as in `promises.py`

A home consists of groups of files that are read together. A group that has not changed since its last reading is not read again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from node.serve.owner_control import Pause
from node.store import model_files
from node.store.cache import ModelCache
from node.store.manifests import ManifestStore
from node.store.outbox_files import open_outbox
from protocol.messages.pool import PoolManifest
from protocol.words import Role
from scheduler.store.events import check_chain
from scheduler.store.rows import AttemptState
from scheduler.store.store import Store
from scheduler.trust.listed import read_listed
from scheduler.trust.pinned import read_pinned
from scheduler.trust.reputation import read_reputation
from swarm.base.home import Home
from swarm.base.home import Role as RoleName
from swarm.join.known_gates import recent_gates
from swarm.net.identity import load_or_create, next_incarnation
from swarm.pools.manifests import revoked_peers, verified
from swarm.pools.membership import credentials, joined_pools, stored_manifest
from swarm.pools.owner import own_pools
from tests.durability.disk import Tree, write_tree
from web.http.middleware import own_token

SCHEDULER: Final = "ann"
WORKERS: Final = ("w1", "w2")
Facts = Mapping[str, Mapping[str, Any]]


class Damaged(AssertionError):
    """The files contradict each other."""


def store_facts(home: Home) -> Facts:
    if not home.store.exists():
        return {}
    with Store(home.store) as store:
        _check_store(store)

        def rows(query: str) -> Sequence[sa.Row[Any]]:
            return store.database.call(lambda c: c.exec_driver_sql(query).all())

        campaigns = rows("SELECT id, epoch, cancel OR ended IS NOT NULL AS gone FROM campaigns ORDER BY id")
        models = rows("SELECT campaign, sha256 FROM models ORDER BY sha256")
        gone = rows("SELECT id FROM tasks WHERE cancel OR ended IS NOT NULL")
        attempts = rows("SELECT task, attempt, key, lease, state FROM attempts")
        records = rows("SELECT task, attempt, sha256, body FROM records")
        experiments = store.experiments.all()
        versions = [each for row in experiments for each in store.experiments.versions(row.name)]
        runs = [each for row in experiments for each in store.experiments.runs(row.name)]
    for record in records:
        if hashlib.sha256(record.body).hexdigest() != record.sha256:
            raise Damaged(f"the record of {record.task}#{record.attempt} is not what its hash says")
    of_campaign: dict[str, list[str]] = {row.id: [] for row in campaigns}
    for model in models:
        of_campaign[model.campaign].append(model.sha256)
    return {
        "campaign": of_campaign,
        "epoch": {row.id: row.epoch for row in campaigns},
        "cancel": dict.fromkeys([*(row.id for row in campaigns if row.gone), *(row.id for row in gone)]),
        "intent": {f"{row.task}#{row.attempt}": row.key for row in attempts},
        "started": {row.lease: None for row in attempts if row.lease and row.state != AttemptState.INTENDED},
        "result": {f"{row.task}#{row.attempt}": row.sha256 for row in records},
        "contents": {"": [row.id for row in campaigns]},
        "experiment": Switch(row.name for row in experiments),
        "version": {row.title: row.digest for row in versions},
        "schedule": {row.name: row.every_s for row in experiments},
        "due": {row.name: row.due for row in experiments if row.due is not None},
        "run": {row.campaign: f"{row.experiment}@{row.version}" for row in runs},
        "finding": {row.campaign: row.finding for row in runs if row.judged is not None},
        "accepted": Switch(row.campaign for row in runs if row.accepted),
    }


def _check_store(store: Store) -> None:
    """Run SQLite's own check, and check the chain of each campaign's events."""
    check = store.database.call(lambda c: c.exec_driver_sql("PRAGMA quick_check(1)").scalar_one())
    if check != "ok":
        raise Damaged(f"the store is damaged: {check}")
    for campaign in store.campaigns.unfinished():
        broken = check_chain(store.events.all(campaign.id), store.events.count(campaign.id))
        if broken is not None:
            raise Damaged(f"the events of {campaign.id}: {broken.why}")


def _backup(home: Home) -> Facts:
    path = home.data.parent / "backup.db"
    if not path.exists():
        return {}
    with Store(path) as store:
        return {"backup": {path.name: len(store.campaigns.summaries())}}


def _whole(folder: Path) -> dict[str, None]:
    """Files whose content has the hash in their name."""
    files = [path for path in folder.iterdir() if len(path.name) == 64] if folder.is_dir() else []
    return {path.name: None for path in files if hashlib.sha256(path.read_bytes()).hexdigest() == path.name}


def _spool(home: Home) -> Facts:
    folder = home.spool / "manifests"
    led = [path for path in folder.iterdir() if len(path.name) == 32] if folder.is_dir() else []
    return {"spooled": _whole(home.spool), "led": {path.name: _sha256(path) for path in led}}


def _uploads(home: Home) -> Facts:
    from scheduler.models.uploads import Uploads

    uploads = {upload.sha256 for upload in Uploads(home).all()}
    return {"upload": Switch(_whole(home.folder("scheduler") / "uploads").keys() & uploads)}


def _trust(home: Home) -> Facts:
    listed = read_listed(home).peers
    return {
        "listed": Switch(listed),
        "pinned": {device: keys[0] for device, keys in read_pinned(home).items()},
        "refuted": dict.fromkeys(read_reputation(home).refuted),
    }


class Switch(dict[str, bool]):
    """A key that is not in it is off."""

    def __init__(self, on: Any) -> None:
        super().__init__(dict.fromkeys(on, True))

    def __missing__(self, key: str) -> bool:
        return False


def _pools(home: Home) -> Facts:
    pools = own_pools(home)
    return {
        "pool": {pool.name: None for pool in pools},
        "tickets": {pool.name: len(pool.tickets()) for pool in pools},
        "closed": Closed({f"{pool.name} {ticket.id}": False for pool in pools for ticket in pool.tickets()}),
        "admitted": {
            f"{pool.name} {peer}": None for pool in pools for ticket in pool.tickets() for peer in ticket.used
        },
        "revoked": {f"{pool.name} {peer}": None for pool in pools for peer in revoked_peers(pool.manifest())},
        "joined": Switch(
            joined.pool for role in (Role.WORKER, Role.SUBMIT) for joined in joined_pools(home, role)
        ),
        "member": {
            f"{manifest.pool} {member.peer}": None
            for manifest in _manifests_of(home)
            for member in manifest.members
        },
        "list": {manifest.pool: manifest.number for manifest in _manifests_of(home)},
    }


def _manifests_of(home: Home) -> list[PoolManifest]:
    """The manifests of the pools created here, and of those joined."""
    joined = [stored_manifest(home, each.pool) for each in joined_pools(home, Role.SUBMIT)]
    return [pool.manifest() for pool in own_pools(home)] + [
        verified(each) for each in joined if each is not None
    ]


def _tokens(home: Home) -> Facts:
    return {"credential": {each.issuer: None for each in credentials(home, now=0.0)}}


def _server(home: Home) -> Facts:
    path = home.folder("scheduler") / "api-token"
    return {"token": {"": own_token(path)}} if path.exists() else {}


def _answers(home: Home) -> Facts:
    folder = home.folder("scheduler") / "idempotency"
    claims = {path.stem: json.loads(path.read_bytes()) for path in folder.glob("*.json")}
    return {
        "claim": Claims({key: claim["campaign"] for key, claim in claims.items()}),
        "answer": {key: claim["answer"] for key, claim in claims.items()},
    }


class Closed(dict[str, bool]):
    """A key that is not in it admits nobody."""

    def __missing__(self, key: str) -> bool:
        return True


class Claims(dict[str, str]):
    """A key that is not in it has no claim."""

    def __missing__(self, key: str) -> None:
        return None


def _gates(home: Home) -> Facts:
    return {"gates": {"": list(recent_gates(home))}}


ROLES: Final[tuple[RoleName, ...]] = ("scheduler", "worker", "gate")


def _keys(home: Home) -> Facts:
    keys = {role: home.key(role) for role in ROLES}
    return {"identity": {role: load_or_create(key).peer_id for role, key in keys.items() if key.exists()}}


def _models(home: Home) -> Facts:
    folder = home.cache / "models"
    cache = ModelCache(folder, 10**9, free=lambda path: 10**12)
    hashes = {path.stem: path for path in folder.glob("*.model")}
    whole = {
        sha: None for sha, path in hashes.items() if hashlib.sha256(path.read_bytes()).hexdigest() == sha
    }
    for sha in hashes.keys() - whole.keys():  # the list of verified models may say that it is whole
        raise Damaged(f"{sha} has a model's name, and its bytes are others (verified: {cache.has(sha)})")
    return {"model": whole, "pin": Switch(sha for sha in hashes if model_files.pinned(folder, sha))}


def _outbox(home: Home) -> Facts:
    outbox = open_outbox(home.folder("worker") / "outbox")
    return {
        "record": {item.sha256: None for item in (*outbox.waiting, *outbox.settled)},
        SET_ASIDE: {path.name: None for path in outbox.folder.glob("*.broken")},
    }


def _manifests(home: Home) -> Facts:
    folder = home.folder("worker") / "manifests"
    store = ManifestStore(folder, _never, lambda: 0.0)
    shas = [path.stem for path in folder.glob("*.manifest")]
    return {
        "manifest": {
            sha: None
            for sha in shas
            if store.find(sha) is not None and _sha256(folder / f"{sha}.manifest") == sha
        }
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def _never(*_: object) -> None:
    raise AssertionError("nothing is fetched here")


def _incarnation(home: Home) -> Facts:
    files = {role: home.folder(role) / "incarnation" for role in ROLES}
    return {
        "incarnation": {role: next_incarnation(file) - 1 for role, file in files.items() if file.exists()}
    }


def _paused(home: Home) -> Facts:
    return {"paused": Switch([""] if Pause(home.folder("worker") / "paused").on else [])}


GROUPS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Home], Facts]]]] = {
    "store": (("data/scheduler/store.db",), store_facts),
    "spool": (("data/scheduler/models/",), _spool),
    "uploads": (("data/scheduler/uploads/",), _uploads),
    "trust": (("data/scheduler/trust/",), _trust),
    "tokens": (("data/scheduler/tokens/",), _tokens),
    "pools": (("data/pools/",), _pools),
    "server": (("data/scheduler/api-token",), _server),
    "answers": (("data/scheduler/idempotency/",), _answers),
    "gates": (("data/scheduler/gates", "data/worker/gates"), _gates),
    "backup": (("backup.db",), _backup),
    "keys": (("data/keys/",), _keys),
    "models": (("cache/models/",), _models),
    "outbox": (("data/worker/outbox/",), _outbox),
    "manifests": (("data/worker/manifests/",), _manifests),
    "incarnation": (tuple(f"data/{role}/incarnation" for role in ROLES), _incarnation),
    "paused": (("data/worker/paused",), _paused),
}
"""Name → the prefixes of its files, and the function that reads them."""
SET_ASIDE: Final = "set aside"
"""Key of the files that were set aside as broken."""
AT_LEAST: Final = frozenset({"epoch", "incarnation", "tickets", "list", "due"})
"""Kinds whose values only rise."""
ONE_OF: Final = frozenset({"contents"})
"""Kinds for which one of several values holds, and nothing in between."""


@dataclass
class Reader:
    """Reads homes as they are after power cuts, in `folder`."""

    folder: Path
    read: int = 0
    """Number of states of a group that were read."""
    _stored: dict[tuple[str, int], tuple[Facts, str]] = field(default_factory=dict)

    def facts(self, group: str, files: Tree) -> tuple[int, Facts, str]:
        """For these files of one home, by paths below it: a hash, their facts, and why they cannot be read (empty: they can)."""
        digest = hash(tuple(files.items()))
        stored = self._stored.get((group, digest))
        if stored is None:
            stored = self._stored[group, digest] = self._read(group, files)
        return digest, *stored

    def _read(self, group: str, files: Tree) -> tuple[Facts, str]:
        self.read += 1
        folder = self.folder / f"{self.read}"
        folder.mkdir()
        try:
            write_tree(files, folder)
            return GROUPS[group][1](Home.at(folder)), ""
        except Exception as exc:  # noqa: BLE001  (whatever the product fails with is a breach)
            return {}, f"{type(exc).__name__}: {str(exc).splitlines()[0] if str(exc) else ''}"
        finally:
            shutil.rmtree(folder)


@cache
def group_of(path: str) -> str | None:
    """The group that a file of a home belongs to."""
    return next((name for name, (starts, _) in GROUPS.items() if path.startswith(starts)), None)

"""The pools made on this home: their keys and their manifests; `pool_notes` has what else their owner remembers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from protocol.errors import RemoteProtocolError, ResourceError
from protocol.messages.pool import ManifestMessage, PoolManifest
from protocol.wire.base import AddressText, Message, Name
from protocol.wire.codec import pack
from swarm.base.durable import write_durably
from swarm.base.home import Home
from swarm.base.settings import SettingsError
from swarm.net.identity import load_or_create
from swarm.pools.files import JOINED, damaged, locked, pools_folder, read_file, unreadable
from swarm.pools.manifests import sign_manifest, verified
from swarm.pools.notes import PoolJournal
from swarm.pools.tickets import MAX_GATES

_NAME: Final = TypeAdapter(Name)


class _About(Message):
    """What a pool's owner set."""

    name: Name
    gates: Annotated[tuple[AddressText, ...], Field(max_length=MAX_GATES)] = ()


class OwnPool:
    """A pool whose key is on this home."""

    def __init__(self, folder: Path) -> None:
        """Raises `ResourceError` when something of it is missing or damaged."""
        if not (folder / "pool.key").exists():
            raise ResourceError(f"{folder / 'pool.key'} is not there", hint="restore it from a copy")
        self.folder: Final = folder
        self.key: Final = load_or_create(folder / "pool.key")
        about = read_file(folder / "pool", _About)
        self.name: Final = about.name
        self.gates: Final = about.gates
        self.notes: Final = PoolJournal(folder, about.name)
        self._seen: tuple[object, ...] | None = None
        self._signed: ManifestMessage | None = None
        self._manifest: PoolManifest | None = None

    @property
    def id(self) -> str:
        """The key as a peer id."""
        return self.key.peer_id

    def signed(self) -> ManifestMessage:
        """The manifest as it is now, whichever process changed it."""
        self._look()
        assert self._signed is not None
        return self._signed

    def manifest(self) -> PoolManifest:
        """What is in it."""
        self._look()
        assert self._manifest is not None
        return self._manifest

    def change(self, how: Callable[[PoolManifest], PoolManifest]) -> PoolManifest:
        """Change the manifest, alone among the processes of this home. What `how` raises leaves all as it was."""
        with locked(self.folder):
            before = self.manifest()
            after = how(before)
            if after != before:
                write_durably(self.folder / "manifest", pack(sign_manifest(self.key, after).to_wire()))
        return self.manifest()

    def _look(self) -> None:
        path = self.folder / "manifest"
        try:
            info = path.stat()
        except OSError as error:
            raise unreadable(path, error) from error
        seen = (info.st_mtime_ns, info.st_ino, info.st_size)
        if seen == self._seen:
            return
        signed = read_file(path, ManifestMessage)
        try:
            manifest = verified(signed.body, signed.signature)
        except RemoteProtocolError as error:
            raise damaged(path) from error
        if manifest.pool != self.id:
            raise damaged(path)
        self._signed, self._manifest, self._seen = signed, manifest, seen


def create_pool(home: Home, name: str, gates: tuple[str, ...] = ()) -> OwnPool:
    """A new pool of that name, with a key of its own. Raises `SettingsError` when the name cannot be had."""
    _check_pool_name(name)
    folder = pools_folder(home) / name
    if (folder / "manifest").exists():
        raise SettingsError(
            f"there is a pool {name} on this home already",
            hint=f"see it with: sark-node pool members {name}",
        )
    key = load_or_create(folder / "pool.key")
    write_durably(folder / "pool", pack(_About(name=name, gates=gates).to_wire()))
    empty = PoolManifest(pool=key.peer_id, name=name, number=1)
    write_durably(folder / "manifest", pack(sign_manifest(key, empty).to_wire()))
    return OwnPool(folder)


def check_name(name: str, what: str = "a member") -> None:
    """Raises `SettingsError` unless a pool or a member of it can be called so."""
    try:
        _NAME.validate_python(name)
    except ValidationError:
        raise SettingsError(
            f"{what} cannot be called {name[:80]!r}",
            hint="letters, digits, space and . _ -, at most 64, beginning with a letter or digit",
        ) from None


def _check_pool_name(name: str) -> None:
    check_name(name, "a pool")
    if name.lower() == JOINED or name != name.rstrip(" ."):  # it is the name of a folder
        raise SettingsError(f"a pool cannot be called {name!r}", hint="take another name")


def own_pools(home: Home, damaged: Callable[[ResourceError], object] | None = None) -> tuple[OwnPool, ...]:
    """The pools made on this home, by name. `damaged` is told of each that cannot be read, and the others are given; without it
    the first such raises `ResourceError`."""
    folder = pools_folder(home)
    if not folder.is_dir():
        return ()
    found: list[OwnPool] = []
    for path in sorted(folder.iterdir()):
        if path.name == JOINED or not (path / "manifest").is_file():
            continue
        try:
            found.append(OwnPool(path))
        except ResourceError as exc:
            if damaged is None:
                raise
            damaged(exc)
    return tuple(found)


def own_pool(home: Home, name: str) -> OwnPool:
    """The pool of that name. Raises `SettingsError` when there is none here."""
    _check_pool_name(name)
    folder = pools_folder(home) / name
    if not (folder / "manifest").is_file():
        names = ", ".join(pool.name for pool in own_pools(home, lambda exc: None))
        raise SettingsError(
            f"no pool {name} was made on this home",
            hint=f"there is: {names}" if names else f"make it with: sark-node pool create {name}",
        )
    return OwnPool(folder)

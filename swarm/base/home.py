"""Where a node keeps its files (keys, data, cache and logs): in the platform's usual folders, or all below one folder (`--home`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

Role = Literal["worker", "scheduler", "gate"]


@dataclass(frozen=True, slots=True)
class Home:
    """The folders of one user, or of one home given with `--home`. Several roles share them, each with its own key."""

    config: Path
    data: Path
    cache: Path
    logs: Path

    @classmethod
    def at(cls, root: Path | None = None) -> Home:
        """Folders below `root`, or the platform's folders if it is None."""
        if root is not None:
            root = root.expanduser().absolute()
            return cls(root / "config", root / "data", root / "cache", root / "logs")
        dirs = platformdirs.PlatformDirs("sark", appauthor=False)
        return cls(dirs.user_config_path, dirs.user_data_path, dirs.user_cache_path, dirs.user_log_path)

    def key(self, role: Role) -> Path:
        """The role's private key, mode 0600."""
        return self.data / "keys" / f"{role}.key"

    def folder(self, role: Role) -> Path:
        """The folder with the role's own lock, incarnation and state."""
        return self.data / role

    def peers_file(self, role: Role) -> Path:
        """Known peers, through which the role can join without a gate."""
        return self.folder(role) / "peers"

    @property
    def config_file(self) -> Path:
        """The settings file; it may be missing."""
        return self.config / "config.toml"

    @property
    def store(self) -> Path:
        """Campaigns, tasks and results of this user's scheduler."""
        return self.data / "scheduler" / "store.db"

    @property
    def readings_file(self) -> Path:
        """What the devices of running tasks show now, for `top` and the dashboard."""
        return self.data / "scheduler" / "readings"

    @property
    def spool(self) -> Path:
        """Copies of the models of unfinished campaigns, named by their sha256."""
        return self.data / "scheduler" / "models"

    @property
    def gate_file(self) -> Path:
        """Addresses of the gate that runs in this home, so that `join` and `submit` find it."""
        return self.data / "gate" / "addresses"

    @property
    def worker_file(self) -> Path:
        """Addresses of the worker that runs in this home, so that the owner's commands reach it without a gate."""
        return self.data / "worker" / "addresses"

"""Runs tasks and metrics of other packages in a process of their own (`results.scoring.child`): one that never returns, exhausts memory or
ends its process loses only its scores, with a line that says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import JsonValue

from protocol.formats.examples import MAX_EXAMPLE_BYTES, MIB
from protocol.values.answers import AnswerSet
from results.scoring.evaluation import MAX_REFERENCES
from results.scoring.plugins import LIMITS_S, point_of
from swarm.base.isolated_process import IsolatedProcess, IsolatedProcessEnded, IsolatedProcessStopped
from swarm.base.process import FROZEN
from swarm.base.text import safe_text

BOOT: Final = """
import json, sys
sys.path += [path for path in json.loads(sys.argv[1]) if path not in sys.path]
from results.scoring.child import main
main()
"""
"""Lets the child find the same packages as this process."""
MAX_REPLY: Final = MAX_EXAMPLE_BYTES + MAX_REFERENCES + MIB

NeverStopped: Final[Callable[[], bool]] = lambda: False  # noqa: E731


class ForeignScores(NamedTuple):
    """The scores that one metric gave to the answers."""

    scores: Mapping[str, float]
    package: str
    """The package that provides the metric, with its version: `my-metrics 1.2`."""
    why: str = ""
    """Why there are no scores."""
    cut_off: bool = False
    """The metric reached a limit, or ended its process."""


class ReadTask(NamedTuple):
    """The output of a task."""

    content: bytes
    """Its examples in the form that devices receive (`protocol.formats.examples`)."""
    references: tuple[JsonValue, ...]
    metrics: tuple[str, ...]


def is_foreign(kind: str, name: str) -> bool:
    """Whether a package provides it. Raises `ValueError` with one line if nothing does."""
    if point_of(kind, name) is None:
        return False
    if FROZEN:
        raise ValueError(
            f"{kind} {name!r} comes from a package, and the single-file program cannot load packages: see docs/install.md"
        )
    return True


class ForeignProcess:
    """One process for foreign code, started on first use and restarted after it ended. Must be closed."""

    def __init__(
        self, *, memory_bytes: int | None = None, stopped: Callable[[], bool] = NeverStopped
    ) -> None:
        self._memory_bytes, self._stopped = memory_bytes, stopped
        self._apart: IsolatedProcess | None = None

    def __enter__(self) -> ForeignProcess:
        return self

    def __exit__(self, *why: object) -> None:
        self.close()

    def close(self) -> None:
        if self._apart is not None:
            self._apart.close()
            self._apart = None

    def load(self, names: Sequence[str]) -> None:
        """Check that these metrics can be used. Raises `ValueError` with one line."""
        for scored in self._each(names, {"load": list(names)}) if names else ():
            if scored.why:
                raise ValueError(scored.why)

    def score(
        self,
        names: Sequence[str],
        answered: AnswerSet,
        references: Sequence[JsonValue],
        most: int | None = None,
    ) -> Iterator[ForeignScores]:
        """The scores of each metric in turn. `most`: score only the first `most` answers. Raises `IsolatedProcessStopped`."""
        left = list(names)
        while left:
            order = {"score": left, "references": list(references), "sha256": answered.sha256, "most": most}
            for scored in self._each(left, order, answered.answers):
                left = left[1:]
                yield scored

    def _each(
        self, names: Sequence[str], order: dict[str, Any], content: bytes | None = None
    ) -> Iterator[ForeignScores]:
        """Scores up to the first metric that is cut off, which ends the process."""
        try:
            apart = self._begin(order, content)
        except IsolatedProcessEnded as why:
            yield from (ForeignScores({}, "", f"metric {name!r} {why}", cut_off=True) for name in names)
            return
        for name in names:
            package, limit_s = "", LIMITS_S["metric"]
            try:
                while True:
                    match json.loads(apart.hear(limit_s)):
                        case {"package": str() as package}:
                            pass
                        case {"limit_s": float() as limit_s}:
                            pass
                        case {"scores": dict() as scores}:
                            yield ForeignScores(scores, package)
                            break
                        case {"why": str() as said}:
                            yield ForeignScores({}, package, said)
                            break
            except IsolatedProcessStopped:
                self.close()
                raise
            except IsolatedProcessEnded as why:
                self.close()
                yield ForeignScores({}, package, f"{_shown('metric', name, package)} {why}", cut_off=True)
                return

    def read(self, name: str, data: Path | None, options: Mapping[str, Any]) -> ReadTask:
        """The output of a task. Raises `ValueError` with one line."""
        package, limit_s = "", LIMITS_S["task"]
        order = {"task": name, "data": None if data is None else str(data), "options": dict(options)}
        try:
            apart = self._begin(order, None)
            while True:
                match json.loads(apart.hear(limit_s)):
                    case {"package": str() as package}:
                        pass
                    case {"limit_s": float() as limit_s}:
                        pass
                    case {"why": str() as said}:
                        raise ValueError(said)
                    case {"references": list() as references, "metrics": list() as metrics}:
                        return ReadTask(apart.hear(limit_s), tuple(references), tuple(metrics))
        except IsolatedProcessEnded as why:
            self.close()
            raise ValueError(f"{_shown('task', name, package)} {why}") from None

    def _begin(self, order: dict[str, Any], content: bytes | None) -> IsolatedProcess:
        if self._apart is None:
            command = [sys.executable, "-P", "-c", BOOT, json.dumps([path for path in sys.path if path])]
            self._apart = IsolatedProcess(
                command, reply_bytes=MAX_REPLY, memory_bytes=self._memory_bytes, stopped=self._stopped
            )
        self._apart.tell(json.dumps(order).encode(), *(() if content is None else (content,)))
        return self._apart


def _shown(kind: str, name: str, package: str) -> str:
    of = f" of {safe_text(package, 100)}" if package else ""
    return f"{kind} {name!r}{of}"

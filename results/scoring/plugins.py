"""Tasks bring examples, metrics score answers: what both are, and where they are found by name.

Ours are built in; others are installed packages with entry points `sark.tasks` and `sark.metrics`. They run on the scheduler's machine and
where results are verified, in a process of their own (`results.scoring.foreign`); devices get inputs only and need none of them.
docs/evaluation.md shows how to write one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from swarm.base.text import did_you_mean, safe_text

if TYPE_CHECKING:
    import numpy as np

TASKS: Final = "sark.tasks"
METRICS: Final = "sark.metrics"
NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""Of a task, a metric and a score."""
NAME_FORM: Final = "small letters, digits and _, at most 32, a letter first"


@dataclass(frozen=True, slots=True)
class Example:
    """What a model is given, and what its answer is held against."""

    inputs: np.ndarray[Any, Any] | Mapping[str, np.ndarray[Any, Any]] | str
    """Tensors by the model's input names, whole, batch axis included; one tensor for the only input; a prompt for a language model."""
    reference: Any = None
    """A JSON value: a label, a summary, a transcript. It never leaves the scheduler's machine."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model made of an example: tensors by the model's output names, or text."""

    outputs: Mapping[str, np.ndarray[Any, Any]] | str
    reference: Any


class EvaluationTask(Protocol):
    """Behind an entry point of `sark.tasks`: a class that takes no arguments."""

    @property
    def name(self) -> str:
        """The entry point's."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of a campaign that names none."""
        ...

    def examples(self, data: Path | None, options: Mapping[str, Any]) -> Iterable[Example]:
        """The same for the same data and options. `data`: of the campaign, absolute. Raises `ValueError` with one line: what is wrong, and
        the right form."""
        ...


class Metric(Protocol):
    """Behind an entry point of `sark.metrics`: a class that takes no arguments."""

    @property
    def name(self) -> str:
        """The entry point's."""
        ...

    def score(self, answers: Sequence[Answer]) -> Mapping[str, float]:
        """Figures over all answers, the same for the same answers, by names like `accuracy`. Raises `ValueError` with one line where
        these are no answers that it can score."""
        ...


_PARTS: Final = {"task": ("name", "metrics", "examples"), "metric": ("name", "score")}
_GROUPS: Final = {"task": TASKS, "metric": METRICS}
LIMITS_S: Final = {"task": 600.0, "metric": 60.0}
"""How long one may take, unless its attribute `limit_s` says otherwise."""
MAX_LIMIT_S: Final = 3600.0


def find_task(name: str) -> EvaluationTask:
    """Raises `ValueError` with one line if there is none, it is broken, or two packages bring one."""
    point = point_of("task", name)
    found: EvaluationTask = _ours("task")[name] if point is None else _make("task", point)
    return found


def find_metric(name: str) -> Metric:
    """Raises `ValueError` with one line if there is none, it is broken, or two packages bring one."""
    point = point_of("metric", name)
    found: Metric = _ours("metric")[name] if point is None else _make("metric", point)
    return found


def point_of(kind: str, name: str) -> EntryPoint | None:
    """Where the task or metric of a package is; nothing of it is run. None: it is ours, so that no package takes the place of one.

    Raises `ValueError` with one line if there is none, or two packages bring one.
    """
    ours = _ours(kind)
    if name in ours:
        return None
    installed = tuple(entry_points(group=_GROUPS[kind]))
    points = [point for point in installed if point.name == name]
    if not points:
        names = sorted({*ours, *(point.name for point in installed)})
        known = f"there are: {safe_text(', '.join(names))}"
        guess = " ".join(filter(None, [did_you_mean(name, names), known]))
        raise ValueError(f"there is no {kind} {safe_text(name, 60)!r}: {guess}")
    if len(points) > 1:
        packages = " and ".join(sorted(package_of(point) for point in points))
        raise ValueError(f"{kind} {name!r} comes with {packages}: uninstall all but one")
    return points[0]


def _ours(kind: str) -> Mapping[str, Any]:
    from results.scoring import built_in  # our own import this module

    return built_in.TASKS if kind == "task" else built_in.METRICS


def limit_of(kind: str, plugin: object) -> float:
    """Seconds that it may take. Raises `ValueError` for an attribute `limit_s` that is none."""
    limit_s = getattr(plugin, "limit_s", LIMITS_S[kind])
    if type(limit_s) not in (int, float) or not 0 < limit_s <= MAX_LIMIT_S:
        raise ValueError(
            f"limit_s is {safe_text(repr(limit_s), 60)}: it has to be seconds, up to {MAX_LIMIT_S:g}"
        )
    return float(limit_s)


def _make(kind: str, point: EntryPoint) -> Any:
    where = f"{kind} {safe_text(point.name, 60)!r} of {package_of(point)}"
    with plugin_errors(where, loading=True):
        made = point.load()()
    if missing := [part for part in _PARTS[kind] if not hasattr(made, part)]:
        raise ValueError(f"{where} is no {kind}: it has no {' and no '.join(missing)}")
    if made.name != point.name:
        raise ValueError(
            f"{where} calls itself {safe_text(str(made.name), 60)!r}: both names must be the same"
        )
    if NAME.fullmatch(made.name) is None:
        raise ValueError(f"{where} has no name that a campaign can use: {NAME_FORM}")
    if kind == "task" and not _are_names(made.metrics):
        raise ValueError(f'{where} has no list of metrics: write metrics = ("accuracy",)')
    return made


def _are_names(metrics: Any) -> bool:
    return isinstance(metrics, tuple | list) and all(isinstance(name, str) for name in metrics)


def version_of(point: EntryPoint) -> str:
    """`my-metrics 1.2`: the package that brings an entry point, and its version."""
    return (
        safe_text(f"{point.dist.name} {point.dist.version}", 100)
        if point.dist
        else safe_text(point.value, 100)
    )


def package_of(point: EntryPoint) -> str:
    """The package that brings an entry point, as pip knows it."""
    return f"package {safe_text(point.dist.name, 60)!r}" if point.dist else f"{safe_text(point.value, 100)}"


@contextmanager
def plugin_errors(where: str, *, loading: bool = False) -> Iterator[None]:
    """Whatever a plug-in raises as a `ValueError` of one line that begins with `where`: its own words, if it is one already."""
    try:
        yield
    except (Exception, SystemExit) as why:
        if isinstance(why, ValueError) and not loading:
            raise ValueError(f"{where}: {safe_text(str(why))}") from why
        failed = "does not load" if loading else "broke"
        raise ValueError(safe_text(f"{where} {failed}: {type(why).__name__}: {why}")) from why

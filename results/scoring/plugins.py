"""Tasks provide examples, metrics score answers: their interfaces, and how they are found by name.

Some are built in; others are installed packages with entry points `sark.tasks` and `sark.metrics`. They run on the scheduler's machine and
where results are verified, in a process of their own (`results.scoring.foreign`). Devices receive only inputs and need none of them.
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
"""Names of tasks, metrics and scores."""
NAME_FORM: Final = "small letters, digits and _, at most 32, a letter first"


@dataclass(frozen=True, slots=True)
class Example:
    """A model's inputs, and the reference for its answer."""

    inputs: np.ndarray[Any, Any] | Mapping[str, np.ndarray[Any, Any]] | str
    """Tensors by the model's input names, complete with batch axis; one tensor for an only input; a prompt for a language model."""
    reference: Any = None
    """A JSON value: a label, a summary, a transcript. It never leaves the scheduler's machine."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's outputs for an example: tensors by output name, or text."""

    outputs: Mapping[str, np.ndarray[Any, Any]] | str
    reference: Any


class EvaluationTask(Protocol):
    """The interface behind an entry point of `sark.tasks`: a class that takes no arguments."""

    @property
    def name(self) -> str:
        """The entry point's name."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics for a campaign that names none."""
        ...

    def examples(self, data: Path | None, options: Mapping[str, Any]) -> Iterable[Example]:
        """Examples; the same data and options always give the same ones. `data`: the campaign's data path, absolute. Raises `ValueError`
        with one line: what is wrong, and the right form.
        """
        ...


class Metric(Protocol):
    """The interface behind an entry point of `sark.metrics`: a class that takes no arguments."""

    @property
    def name(self) -> str:
        """The entry point's name."""
        ...

    def score(self, answers: Sequence[Answer]) -> Mapping[str, float]:
        """Scores over all answers, by names like `accuracy`; the same for the same answers. Raises `ValueError` with one line for answers
        that it cannot score.
        """
        ...


_PARTS: Final = {"task": ("name", "metrics", "examples"), "metric": ("name", "score")}
_GROUPS: Final = {"task": TASKS, "metric": METRICS}
LIMITS_S: Final = {"task": 600.0, "metric": 60.0}
"""Time limit for one task or metric, unless its attribute `limit_s` says otherwise."""
MAX_LIMIT_S: Final = 3600.0


def find_task(name: str) -> EvaluationTask:
    """Raises `ValueError` with one line if the task does not exist, is broken, or comes with two packages."""
    point = point_of("task", name)
    found: EvaluationTask = _ours("task")[name] if point is None else _make("task", point)
    return found


def find_metric(name: str) -> Metric:
    """Raises `ValueError` with one line if the metric does not exist, is broken, or comes with two packages."""
    point = point_of("metric", name)
    found: Metric = _ours("metric")[name] if point is None else _make("metric", point)
    return found


def point_of(kind: str, name: str) -> EntryPoint | None:
    """The entry point of a package's task or metric, without running any of its code. None: it is built in, which no package can override.

    Raises `ValueError` with one line if it does not exist, or comes with two packages.
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
    from results.scoring import built_in  # the built-in ones import this module

    return built_in.TASKS if kind == "task" else built_in.METRICS


def limit_of(kind: str, plugin: object) -> float:
    """Seconds that it may take. Raises `ValueError` for an invalid attribute `limit_s`."""
    limit_s = getattr(plugin, "limit_s", LIMITS_S[kind])
    if type(limit_s) not in (int, float) or not 0 < limit_s <= MAX_LIMIT_S:
        raise ValueError(
            f"limit_s is {safe_text(repr(limit_s), 60)}: it has to be a number of seconds, up to {MAX_LIMIT_S:g}"
        )
    return float(limit_s)


def _make(kind: str, point: EntryPoint) -> Any:
    where = f"{kind} {safe_text(point.name, 60)!r} of {package_of(point)}"
    with plugin_errors(where, loading=True):
        made = point.load()()
    if missing := [part for part in _PARTS[kind] if not hasattr(made, part)]:
        raise ValueError(f"{where} is not a {kind}: it has no {' and no '.join(missing)}")
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
    """`my-metrics 1.2`: the package that provides an entry point, and its version."""
    return (
        safe_text(f"{point.dist.name} {point.dist.version}", 100)
        if point.dist
        else safe_text(point.value, 100)
    )


def package_of(point: EntryPoint) -> str:
    """The package that provides an entry point, by its pip name."""
    return f"package {safe_text(point.dist.name, 60)!r}" if point.dist else f"{safe_text(point.value, 100)}"


@contextmanager
def plugin_errors(where: str, *, loading: bool = False) -> Iterator[None]:
    """Turn any exception of a plug-in into a `ValueError` of one line that begins with `where`, keeping the plug-in's own words if it
    raised a `ValueError`.
    """
    try:
        yield
    except (Exception, SystemExit) as why:
        if isinstance(why, ValueError) and not loading:
            raise ValueError(f"{where}: {safe_text(str(why))}") from why
        failed = "does not load" if loading else "failed"
        raise ValueError(safe_text(f"{where} {failed}: {type(why).__name__}: {why}")) from why

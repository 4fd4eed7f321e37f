"""The tasks and metrics that come with Sark."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from results.scoring.accuracy import Accuracy, TopFive
from results.scoring.classification import Classification
from results.scoring.plugins import EvaluationTask, Metric

_TASKS: Final[tuple[EvaluationTask, ...]] = (Classification(),)
_METRICS: Final[tuple[Metric, ...]] = (Accuracy(), TopFive())

TASKS: Final = MappingProxyType({task.name: task for task in _TASKS})
METRICS: Final = MappingProxyType({metric.name: metric for metric in _METRICS})

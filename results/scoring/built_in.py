"""The tasks and metrics that come with Sark."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from results.scoring.accuracy import Accuracy, TopFive
from results.scoring.classification import Classification
from results.scoring.drift import Drift
from results.scoring.outputs import Outputs
from results.scoring.plugins import EvaluationTask, Metric
from results.scoring.summarisation import Summarisation
from results.scoring.texts import Rouge, WordErrorRate

_TASKS: Final[tuple[EvaluationTask, ...]] = (Classification(), Outputs(), Summarisation())
_METRICS: Final[tuple[Metric, ...]] = (Accuracy(), Drift(), Rouge(), TopFive(), WordErrorRate())

TASKS: Final = MappingProxyType({task.name: task for task in _TASKS})
METRICS: Final = MappingProxyType({metric.name: metric for metric in _METRICS})

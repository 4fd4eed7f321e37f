"""How the models of a campaign are evaluated: data, read by a task, becomes examples for devices and references that stay here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from protocol.values.task import Model
from results.scoring.account import EvaluationAccount
from results.scoring.evaluation import read_examples
from results.scoring.foreign import ForeignProcess, ReadTask, is_foreign
from results.scoring.packing import packed
from results.scoring.plugins import find_task
from scheduler.campaign.model import EvaluateEntry, ModelEntry
from swarm.base.text import safe_text


class Evaluation(NamedTuple):
    """Examples that devices get, and how their answers are scored."""

    content: bytes
    model: Model
    """The examples, as a task names them: by the model that answers them, since the same data may be scored in several ways."""
    account: EvaluationAccount


class Evaluations:
    """The evaluations of one campaign. The same data is read once."""

    def __init__(self, base_dir: Path) -> None:
        self._base_dir = base_dir
        self._read: dict[str, Evaluation] = {}

    def of(self, entry: ModelEntry) -> Evaluation | None:
        """The evaluation of a model; None: it is not evaluated. Raises `CampaignError`, with the line of the model. Blocking."""
        if entry.evaluate is None:
            return None
        key = entry.evaluate.model_dump_json()
        if key not in self._read:
            try:
                self._read[key] = _read(entry.evaluate, self._base_dir)
            except ValueError as why:
                raise entry.error(
                    f"{entry.title} cannot be evaluated: {why}", "see docs/evaluation.md"
                ) from why
        found = self._read[key]
        return found._replace(model=found.model.model_copy(update={"name": f"{entry.label}.examples"}))


def _read(entry: EvaluateEntry, base_dir: Path) -> Evaluation:
    data = None if entry.data is None else (base_dir / Path(entry.data).expanduser()).absolute()
    foreign_task = is_foreign("task", entry.task)
    if data is not None and not data.exists():
        raise ValueError(
            f"no such file: {safe_text(str(data))}; paths are resolved from the campaign file's folder"
        )
    with ForeignProcess() as process:
        _check_metrics(entry.metrics, process)
        if foreign_task:
            read = process.read(entry.task, data, entry.options)
        else:
            task = find_task(entry.task)
            examples = read_examples(task, data, entry.options)
            references = tuple(example.reference for example in examples)
            read = ReadTask(packed(examples), references, task.metrics)
        if not entry.metrics:
            _check_metrics(read.metrics, process)
    content = read.content
    title = f"{entry.task} of {data.name}" if data is not None else entry.task
    model = Model(name="examples", sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    account = EvaluationAccount(
        title=safe_text(title), metrics=entry.metrics or read.metrics, references=read.references
    )
    return Evaluation(content, model, account)


def _check_metrics(names: Sequence[str], process: ForeignProcess) -> None:
    """Raises `ValueError`, with one line, for the first metric that cannot be used."""
    process.load([name for name in names if is_foreign("metric", name)])

"""The process that runs tasks and metrics of other packages: orders in, replies out (`swarm.base.isolated_process`). Its parent is
`results.scoring.foreign`.

    {"load": [metrics]}                              for each: {"package"}, then {"why"}, empty if it can be used
    {"score": [metrics], "references": […], "sha256", "most"}, answers    for each: {"package"}, {"limit_s"}, then {"scores"} or {"why"}
    {"task": name, "data": path, "options": {…}}     {"package"}, {"limit_s"}, then {"why"}, or {"references", "metrics"} and the examples
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from protocol.formats.examples import MIB
from protocol.values.answers import AnswerSet
from results.scoring.evaluation import MAX_REFERENCES, read_examples, score_answers
from results.scoring.packing import answers_of, packed
from results.scoring.plugins import Answer, Metric, find_metric, find_task, limit_of, point_of, version_of
from swarm.base.isolated_process import frames_in, put_frame

MAX_ORDER: Final = MAX_REFERENCES + 64 * MIB

Reply = Callable[[dict[str, Any]], None]


def main() -> None:
    """Run until the orders end. Foreign code prints to standard error and has an empty standard input."""
    orders, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    _no_core_files()
    waiting: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        for frame in frames_in(orders, MAX_ORDER):
            waiting.put(frame)
        _end()  # the parent is gone, or done

    threading.Thread(target=read, daemon=True).start()

    def reply(value: dict[str, Any]) -> None:
        put_frame(replies, json.dumps(value).encode())

    while True:
        order = json.loads(waiting.get())
        match order:
            case {"load": names}:
                _load(names, reply)
            case {"score": names, "references": references, "sha256": sha256, "most": most}:
                answered = AnswerSet(answers=waiting.get(), sha256=sha256)
                _score(names, answers_of(answered, references)[:most], reply)
            case {"task": name, "data": data, "options": options}:
                for content in _read(name, data, options, reply):
                    put_frame(replies, content)


def _load(names: list[str], reply: Reply) -> None:
    for name in names:
        try:
            _metric(name, reply)
        except ValueError as why:
            reply({"why": str(why)})
        else:
            reply({"why": ""})


def _score(names: list[str], answers: list[Answer], reply: Reply) -> None:
    for name in names:
        try:
            metric = _metric(name, reply)
            reply({"limit_s": _limit_s("metric", name, metric)})
            reply({"scores": score_answers([metric], answers)})
        except ValueError as why:
            reply({"why": str(why)})


def _read(name: str, data: str | None, options: dict[str, Any], reply: Reply) -> Iterator[bytes]:
    try:
        reply({"package": _package("task", name)})
        task = find_task(name)
        reply({"limit_s": _limit_s("task", name, task)})
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        examples = read_examples(task, None if data is None else Path(data), given)
    except ValueError as why:
        reply({"why": str(why)})
        return
    reply({"references": [example.reference for example in examples], "metrics": list(task.metrics)})
    yield packed(examples)


def _metric(name: str, reply: Reply) -> Metric:
    reply({"package": _package("metric", name)})
    return find_metric(name)


def _package(kind: str, name: str) -> str:
    point = point_of(kind, name)
    return "" if point is None else version_of(point)


def _limit_s(kind: str, name: str, plugin: object) -> float:
    try:
        return limit_of(kind, plugin)
    except ValueError as why:
        raise ValueError(f"{kind} {name!r}: {why}") from None


def _no_core_files() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no core files
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end() -> None:
    """End this process, and everything that foreign code started and left in its process group."""
    if sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)
    os._exit(0)

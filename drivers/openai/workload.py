"""The workload file, which the driver for OpenAI-compatible servers reads instead of a model: YAML or JSON, strict and bounded.

    model: llama-3.1-8b            # as the server calls it; optional if it serves only one
    prompts: {tokens: 128}         # synthetic ones, each different; or a list of texts
    max_tokens: 64
    concurrency: [1, 4, 16]        # requests in flight, one level after the other
    rates: [1, 5]                  # then requests per second, whatever is still in flight
    slo: {ttft_ms: 500, tpot_ms: 50}

It never names a server: that is the worker's owner's affair.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

from drivers.contract.base import Unfit

MAX_FILE: Final = 256 * 1024
MAX_PROMPTS: Final = 1000
MAX_PROMPT: Final = 64 * 1024
"""Characters of one prompt."""
MAX_PROMPT_TOKENS: Final = 32_768
MAX_OUTPUT_TOKENS: Final = 32_768
MAX_REQUESTS: Final = 10_000
"""Of one level."""
MAX_CONCURRENCY: Final = 128
"""Half of the files that a child may open."""
MAX_RATE: Final = 1000
MAX_LEVELS: Final = 6
"""Of each kind; the figures of all levels together have to fit into one record."""
MAX_NAME: Final = 200
MAX_DEPTH: Final = 4
MAX_TIMEOUT_S: Final = 3600.0


class Endpoint(StrEnum):
    """The API method that is called."""

    CHAT = "chat"
    COMPLETIONS = "completions"


class WorkloadJob(StrEnum):
    """What the prompts are for."""

    GENERATE = "generate"
    SUMMARISE = "summarise"
    """Summarise the articles of this package; the summaries are compared with references."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """Limits of a good request, in milliseconds; None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """What requests are sent."""

    model: str = ""
    """Empty: the only one that is served."""
    endpoint: Endpoint = Endpoint.CHAT
    prompts: tuple[str, ...] = ()
    """Empty: synthetic ones."""
    prompt_tokens: int = 128
    """Words of each synthetic prompt, about one token each; the server's `usage` says how many tokens it counted."""
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int | None = None
    """Sent to the server; synthetic prompts and arrivals follow the task's own seed."""
    ignore_eos: bool = False
    """Ask for exactly `max_tokens` tokens: an extension of vLLM and llama.cpp."""
    stream: bool = True
    job: WorkloadJob = WorkloadJob.GENERATE
    requests: int | None = None
    """Of each level after the first; None: the task's `runs`, and at least four per stream."""
    concurrency: tuple[int, ...] = (1,)
    rates: tuple[float, ...] = ()
    slo: Objectives = Objectives()
    timeout_s: float = 120.0
    """Limit of one request."""


class _WorkloadError(Exception):
    """Where and what is wrong."""


def read_workload(path: str) -> Workload:
    """Raises `Unfit` with one line that says where and what to write."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as why:
        raise Unfit(f"workload {path}: {why.strerror}") from why
    if len(content) > MAX_FILE:
        raise Unfit(f"workload {path} is larger than {MAX_FILE // 1024} KiB")
    try:
        return _workload(_parse(content))
    except _WorkloadError as why:
        raise Unfit(f"workload {Path(path).name}: {why}") from why


def _workload(document: object) -> Workload:
    table = _table(document, "the file", frozenset(KEYS))
    fields: dict[str, Any] = {}
    for key, value in table.items():
        fields.update(KEYS[key](value))
    workload = Workload(**fields)
    if workload.job is WorkloadJob.SUMMARISE and (workload.prompts or "prompts" in table):
        raise _WorkloadError("prompts: the articles are the prompts of `task: summarise`; leave them out")
    return workload


# -- each key ------------------------------------------------------------------------------------------------------------


def _table(value: object, where: str, known: frozenset[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _WorkloadError(f"{where} must be a table of keys such as {', '.join(sorted(known)[:3])}")
    for key in value:
        if key not in known:
            raise _WorkloadError(
                f"{where} has an unknown key {str(key)[:60]!r}; known: {', '.join(sorted(known))}"
            )
    return value


def _whole(value: object, where: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _WorkloadError(f"{where} must be a whole number from {least} to {most}, not {value!r:.60}")
    return value


def _real(value: object, where: str, least: float, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise _WorkloadError(f"{where} must be a number, not {value!r:.60}")
    if not least <= value <= most:
        raise _WorkloadError(f"{where} must be from {least:g} to {most:g}, not {value:g}")
    return float(value)


def _text(value: object, where: str, most: int) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > most:
        raise _WorkloadError(f"{where} must be a text of 1 to {most} characters, not {value!r:.60}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _WorkloadError(f"{where} contains half of a character") from None
    return value


def _truth(value: object, where: str) -> bool:
    if type(value) is not bool:
        raise _WorkloadError(f"{where} must be true or false, not {value!r:.60}")
    return value


def _word(value: object, where: str, words: type[StrEnum]) -> Any:
    if value not in {str(word) for word in words}:
        raise _WorkloadError(f"{where} must be one of {', '.join(words)}, not {value!r:.60}")
    return words(str(value))


def _list(value: object, where: str, most: int) -> list[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise _WorkloadError(f"{where} must be a list of 1 to {most} entries")
    return value


def _prompts(value: object) -> Mapping[str, Any]:
    if isinstance(value, dict):
        options = _table(value, "prompts", frozenset({"tokens"}))
        tokens = _whole(options.get("tokens", 128), "prompts.tokens", 1, MAX_PROMPT_TOKENS)
        return {"prompt_tokens": tokens}
    if not isinstance(value, list):
        raise _WorkloadError("prompts must be a list of texts, or {tokens: 128} for synthetic ones")
    listed = _list(value, "prompts", MAX_PROMPTS)
    return {"prompts": tuple(_text(one, f"prompts[{at}]", MAX_PROMPT) for at, one in enumerate(listed))}


def _levels(value: object) -> Mapping[str, Any]:
    listed = _list(value, "concurrency", MAX_LEVELS)
    levels = tuple(_whole(one, f"concurrency[{at}]", 1, MAX_CONCURRENCY) for at, one in enumerate(listed))
    if len(set(levels)) != len(levels):
        raise _WorkloadError("concurrency names a level twice")
    return {"concurrency": levels}


def _rates(value: object) -> Mapping[str, Any]:
    listed = _list(value, "rates", MAX_LEVELS)
    rates = tuple(_real(one, f"rates[{at}]", 0.01, MAX_RATE) for at, one in enumerate(listed))
    if list(rates) != sorted(set(rates)):
        raise _WorkloadError("rates must rise, so that the sweep can stop where the server is full")
    return {"rates": rates}


def _slo(value: object) -> Mapping[str, Any]:
    names = frozenset({"ttft_ms", "tpot_ms", "e2e_ms"})
    limits = _table(value, "slo", names)
    if not limits:
        raise _WorkloadError("slo is empty: name at least one of ttft_ms, tpot_ms, e2e_ms")
    return {
        "slo": Objectives(**{name: _real(one, f"slo.{name}", 0.001, 3.6e6) for name, one in limits.items()})
    }


KEYS: Final[Mapping[str, Callable[[object], Mapping[str, Any]]]] = {
    "model": lambda value: {"model": _text(value, "model", MAX_NAME)},
    "endpoint": lambda value: {"endpoint": _word(value, "endpoint", Endpoint)},
    "prompts": _prompts,
    "max_tokens": lambda value: {"max_tokens": _whole(value, "max_tokens", 1, MAX_OUTPUT_TOKENS)},
    "temperature": lambda value: {"temperature": _real(value, "temperature", 0, 10)},
    "seed": lambda value: {"seed": _whole(value, "seed", 0, 2**31 - 1)},
    "ignore_eos": lambda value: {"ignore_eos": _truth(value, "ignore_eos")},
    "stream": lambda value: {"stream": _truth(value, "stream")},
    "task": lambda value: {"job": _word(value, "task", WorkloadJob)},
    "requests": lambda value: {"requests": _whole(value, "requests", 1, MAX_REQUESTS)},
    "concurrency": _levels,
    "rates": _rates,
    "slo": _slo,
    "timeout_s": lambda value: {"timeout_s": _real(value, "timeout_s", 0.01, MAX_TIMEOUT_S)},
}
"""Every key of the file and how its value becomes fields of `Workload`."""


# -- YAML and JSON -------------------------------------------------------------------------------------------------------


def _parse(content: bytes) -> object:
    """YAML or JSON as plain values: no tags, no aliases, no key twice, not deep."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _WorkloadError("it is not text in UTF-8") from None
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        except (ValueError, RecursionError) as why:
            if not isinstance(why, json.JSONDecodeError):
                raise _WorkloadError("it is nested too deep, or a number is too long") from None
            raise _WorkloadError(
                f"line {why.lineno}: {why.msg} (it begins with a brace, so it is read as JSON)"
            ) from None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise _WorkloadError("it is empty: write at least `max_tokens: 64`")
        return _value(loader, node, 0)
    except yaml.MarkedYAMLError as why:
        at = f"line {why.problem_mark.line + 1}: " if why.problem_mark else ""
        raise _WorkloadError(f"{at}{why.problem or 'not YAML'}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as why:
        raise _WorkloadError(f"it is neither YAML nor JSON: {str(why).splitlines()[0]:.100}") from None


class _Loader(yaml.SafeLoader):
    """Without aliases: a few lines of them can stand for millions of values."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _WorkloadError("it contains an *alias: write the value out instead")
        return super().compose_node(parent, index)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise _WorkloadError("a key appears twice")
    return table


def _no_constant(name: str) -> object:
    raise _WorkloadError(f"{name} is not a number")


def _value(loader: yaml.SafeLoader, node: yaml.Node, depth: int) -> object:
    at = f"line {node.start_mark.line + 1}"
    if depth > MAX_DEPTH:
        raise _WorkloadError(f"{at}: nested too deep")
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, one, depth + 1) for one in node.value]
    if isinstance(node, yaml.MappingNode):
        table: dict[str, object] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if not isinstance(name, str):
                raise _WorkloadError(f"{at}: a key must be a word")
            if name in table:
                raise _WorkloadError(f"line {key.start_mark.line + 1}: {name[:60]!r} appears twice")
            table[name] = _value(loader, value, depth + 1)
        return table
    kinds = ("str", "int", "float", "bool", "null")
    if node.tag not in {f"tag:yaml.org,2002:{kind}" for kind in kinds}:
        raise _WorkloadError(
            f"{at}: {node.tag.rpartition(':')[2][:40]} is no text, number, true or false: put it in quotes"
        )
    scalar: object = loader.construct_object(node)
    return scalar

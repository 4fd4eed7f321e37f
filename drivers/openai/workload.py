"""The workload file, which the driver for OpenAI-compatible servers reads instead of a model: YAML or JSON, strict and bounded.

    model: llama-3.1-8b            # as the server calls it; optional if it serves only one
    prompts: {tokens: 128}         # synthetic ones, each different; or a list of texts
    max_tokens: 64
    concurrency: [1, 4, 16]        # requests in flight, one level after the other
    rates: [1, 5]                  # then requests per second, whatever is still in flight
    slo: {ttft_ms: 500, tpot_ms: 50}

It never names a server: only the device's owner does.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    Tag,
    ValidationError,
    model_validator,
)

from drivers.contract.base import Unfit

MAX_FILE: Final = 256 * 1024
MAX_OUTPUT_TOKENS: Final = 32_768
MAX_REQUESTS: Final = 10_000
"""Most requests of one level."""
MAX_CONCURRENCY: Final = 128
"""Half of the files that a child may open."""
MAX_LEVELS: Final = 6
"""Most levels of each kind; the figures of all levels together have to fit into one record."""
MAX_NAME: Final = 200
MOVED: Final = (
    "a workload has no `task`: leave it out; to score summaries write "
    "`evaluate: {task: summarisation}` beside the workload's path in the campaign"
)


class Endpoint(StrEnum):
    """The API method that is called."""

    CHAT = "chat"
    COMPLETIONS = "completions"


def _different(levels: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(levels)) != len(levels):
        raise ValueError("a level is listed twice")
    return levels


def _rising(rates: tuple[float, ...]) -> tuple[float, ...]:
    if list(rates) != sorted(set(rates)):
        raise ValueError("rates must rise, so that the sweep can stop where the server is full")
    return rates


Milliseconds = Annotated[StrictFloat, Field(ge=0.001, le=3.6e6)]
Tokens = Annotated[StrictInt, Field(ge=1, le=MAX_OUTPUT_TOKENS)]
Prompt = Annotated[str, StringConstraints(min_length=1, max_length=64 * 1024, pattern=r"\S")]
Prompts = Annotated[tuple[Prompt, ...], Field(min_length=1, max_length=1000)]
Concurrency = Annotated[StrictInt, Field(ge=1, le=MAX_CONCURRENCY)]
Rate = Annotated[StrictFloat, Field(ge=0.01, le=1000)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Objectives(_Table):
    """Limits of a good request, in milliseconds; None: no limit."""

    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None


class Synthetic(_Table):
    """Synthetic prompts, each different."""

    tokens: Tokens = 128
    """Words of each prompt, about one token each; the server's `usage` says how many tokens it counted."""


class Workload(_Table):
    model: str = Field("", min_length=1, max_length=MAX_NAME)
    """Empty: the only model that is served."""
    endpoint: Endpoint = Endpoint.CHAT
    prompts: Annotated[
        Annotated[Synthetic, Tag("synthetic")] | Annotated[Prompts, Tag("listed")],
        Discriminator(lambda value: "synthetic" if isinstance(value, dict | Synthetic) else "listed"),
    ] = Synthetic()
    max_tokens: Tokens = 128
    temperature: StrictFloat = Field(0.0, ge=0, le=10)
    seed: StrictInt | None = Field(None, ge=0, lt=2**31)
    """Sent to the server; synthetic prompts and arrivals use the task's own seed."""
    ignore_eos: StrictBool = False
    """Ask for exactly `max_tokens` tokens: an extension of vLLM and llama.cpp."""
    stream: StrictBool = True
    requests: StrictInt | None = Field(None, ge=1, le=MAX_REQUESTS)
    """Requests of each level after the first; None: the task's `runs`, and at least four per stream."""
    concurrency: Annotated[
        tuple[Concurrency, ...], Field(min_length=1, max_length=MAX_LEVELS), AfterValidator(_different)
    ] = (1,)
    rates: Annotated[tuple[Rate, ...], Field(max_length=MAX_LEVELS), AfterValidator(_rising)] = ()
    slo: Objectives = Objectives()
    timeout_s: StrictFloat = Field(120.0, ge=0.01, le=3600)
    """Limit of one request."""

    @model_validator(mode="after")
    def _has_an_objective(self) -> Self:
        if "slo" in self.model_fields_set and not self.slo.model_fields_set:
            raise ValueError("slo is empty: name at least one of ttft_ms, tpot_ms, e2e_ms")
        return self


class _Loader(yaml.SafeLoader):
    """Accepts plain values only: no tags, no duplicate keys, and no aliases, a few lines of which can stand for millions of values."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None):
            raise ValueError("an *alias or a !tag: write the plain value")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        return _once(self.construct_pairs(node, deep=True))


def _once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    for key, value in pairs:
        if not isinstance(key, str) or key in table:
            raise ValueError(f"the key {key!r:.60} appears twice, or is not a word")
        table[key] = value
    return table


def read_workload(path: str) -> Workload:
    """Read a workload file. Raises `Unfit` with a one-line message that says where and what to write."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as why:
        raise Unfit(f"workload {path}: {why.strerror}") from why
    try:
        return Workload.model_validate(_parse(content))
    except ValidationError as why:
        raise Unfit(f"workload {Path(path).name}: {_in_words(why)}") from why
    except (yaml.YAMLError, ValueError, RecursionError) as why:
        text = " ".join(str(why).split())
        raise Unfit(f"workload {Path(path).name}: cannot be read: {text[:300]}") from why


def _parse(content: bytes) -> dict[str, Any]:
    if len(content) > MAX_FILE:
        raise ValueError(f"it is larger than {MAX_FILE // 1024} KiB")
    text = content.decode()
    is_json = text.lstrip().startswith("{")
    document = json.loads(text, object_pairs_hook=_once) if is_json else yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    if not isinstance(document, dict):
        raise ValueError("it must be a table of keys: write at least `max_tokens: 64`")  # noqa: TRY004
    return document


def _in_words(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    loc = [str(part) for part in first["loc"] if part not in ("listed", "synthetic")]
    if loc == ["task"]:
        return MOVED
    if first["type"] == "extra_forbidden":
        tables: dict[str, type[_Table]] = {"slo": Objectives, "prompts": Synthetic}
        table = tables.get(loc[0] if loc[1:] else "", Workload)
        return f"unknown key {'.'.join(loc)[:60]!r}; known: {', '.join(sorted(table.model_fields))}"
    if first["type"] == "value_error":
        return f"{'.'.join(loc)}: {first.get('ctx', {}).get('error')}".removeprefix(": ")
    return f"{'.'.join(loc)}: {first['msg'].lower()}, not {first['input']!r:.60}"

"""The generated parts of SPEC.md: messages, words, tables and caps, directly from the code, so that the page cannot get out of date.

python -P tools/spec.py      (`make spec`); a test compares the page with what this module renders
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Final

from pydantic import BaseModel

import protocol
from protocol.formats.phase import Phase
from protocol.messages import blobs, pool, work
from protocol.messages.blobs import BLOB
from protocol.messages.gate import GATE
from protocol.messages.health import HEALTH
from protocol.messages.index import INDEX
from protocol.messages.pool import POOL
from protocol.messages.reach import REACH
from protocol.messages.work import WORK
from protocol.values import campaign_manifest as manifest
from protocol.values import lease, record, task
from protocol.values.advert import ADVERT_TTL_S, MAX_ADVERT, Advert
from protocol.values.attempt import TASK
from protocol.values.lease import LEASE, WORKER
from protocol.wire import base
from protocol.wire.codec import Vocabulary
from protocol.wire.table import E, S, Table
from protocol.words import ProtocolId, Reason, Right, Role, RunOutcome, WorkerState

VOCABULARIES: Final[dict[ProtocolId, Vocabulary]] = {
    ProtocolId.WORK: WORK,
    ProtocolId.INDEX: INDEX,
    ProtocolId.BLOB: BLOB,
    ProtocolId.HEALTH: HEALTH,
    ProtocolId.POOL: POOL,
    ProtocolId.REACH: REACH,
    ProtocolId.GATE: GATE,
}


def render(page: str) -> str:
    """`page` with every block between `<!-- begin NAME -->` and `<!-- end NAME -->` rendered anew."""
    for name, make in SECTIONS.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text = make()
        page = pattern.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)  # type: ignore[misc]
    return page


def _messages(family: ProtocolId) -> str:
    module = inspect.getmodule(VOCABULARIES[family].messages[0])
    drawing = (module.__doc__ or "").split("\n\n")[1] if module else ""
    lines = ["```", drawing, "```", "", "| type | means | fields |", "|---|---|---|"]
    lines += [
        f"| `{message.type}` | {_first(message)} | {_fields(message)} |"
        for message in VOCABULARIES[family].messages
    ]
    inner = _inner(VOCABULARIES[family].messages)
    if inner:
        lines += ["", "| value | means | fields |", "|---|---|---|"]
        lines += [f"| `{value.__name__}` | {_first(value)} | {_fields(value)} |" for value in inner]
    return "\n".join(lines)


def _value(*values: type[BaseModel]) -> str:
    lines = ["| value | means | fields |", "|---|---|---|"]
    shown = [*values, *(item for item in _inner(values) if item not in values)]
    lines += [f"| `{value.__name__}` | {_first(value)} | {_fields(value)} |" for value in shown]
    return "\n".join(lines)


def _words(words: type[StrEnum]) -> str:
    return " · ".join(f"`{word}`" for word in words)


def _caps() -> str:
    rows = [
        ("control frame", f"{base.MAX_FRAME:,} bytes"),
        ("nesting in a frame", str(base.MAX_DEPTH)),
        ("elements in a frame", f"{base.MAX_ELEMENTS:,}"),
        ("advert", f"{MAX_ADVERT:,} bytes, lives {ADVERT_TTL_S} s"),
        ("task", f"{task.MAX_TASK:,} bytes"),
        ("record inside its frame", f"{base.MAX_INLINE:,} bytes; a larger one is pulled as a blob"),
        (
            "campaign manifest",
            f"{manifest.MAX_MANIFEST:,} bytes, {manifest.MAX_UNPACKED:,} unpacked, {manifest.MAX_MANIFEST_TASKS:,} tasks",
        ),
        ("record", f"{record.MAX_RECORD:,} bytes, {record.MAX_SAMPLES:,} samples a list"),
        ("piece of a blob", f"{blobs.MAX_PIECE:,} bytes, in writes of {blobs.WRITE_SIZE:,}"),
        (
            "lease",
            f"{lease.LEASE_TTL_S:g} s, renewed every {lease.RENEW_EVERY_S:g} s, grace {lease.GRACE_S:g} s",
        ),
        (
            "priority",
            f"0 to 100; one more for each {lease.AGEING_S:g} s of waiting, {lease.MAX_AGEING} at most",
        ),
        (
            "preemption",
            f"across a gap of {lease.PREEMPT_GAP}, grace {lease.PREEMPT_GRACE_S:g} s, {work.MAX_PREEMPTIONS} times for a task",
        ),
        ("crashes of different models before a worker examines itself", str(lease.FAULTY_AFTER)),
    ]
    return "\n".join(["| what | cap |", "|---|---|", *(f"| {what} | {cap} |" for what, cap in rows)])


def _first(kind: type[BaseModel]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _fields(kind: type[BaseModel]) -> str:
    parts = []
    for name, field in kind.model_fields.items():
        if name == "v":
            continue
        mark = "" if field.is_required() else "?"
        parts.append(f"`{name}{mark}` {_type(field.annotation)}")
    return ", ".join(parts) or "none"


def _type(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _type(typing.get_args(kind)[0])
    if origin in (typing.Union, UnionType):
        shown = dict.fromkeys(_type(item) for item in typing.get_args(kind) if item is not type(None))
        return " or ".join(shown)
    if origin is tuple:
        return f"[{_type(typing.get_args(kind)[0])}]"
    if origin is dict:
        key, value = typing.get_args(kind)
        return f"{{{_type(key)}: {_type(value)}}}"
    if origin is typing.Literal:
        return "/".join(str(item) for item in typing.get_args(kind))
    plain = {str: "text", int: "int", float: "float", bool: "bool", bytes: "bytes"}
    return plain.get(kind) or str(getattr(kind, "__name__", kind))


def _inner(kinds: typing.Iterable[type[BaseModel]]) -> list[type[BaseModel]]:
    """The values inside `kinds`, deepest last, each once."""
    by_key: dict[type[BaseModel], None] = {}
    todo = list(kinds)
    while todo:
        for field in todo.pop(0).model_fields.values():
            for item in _models_in(field.annotation):
                if item not in by_key:
                    by_key[item] = None
                    todo.append(item)
    return list(by_key)


def _models_in(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [item for argument in typing.get_args(kind) for item in _models_in(argument)]


def diagram(table: Table[S, E]) -> str:
    """The table as a mermaid state diagram, first state first."""
    states = list(table)
    lines = ["stateDiagram-v2", f"    [*] --> {_name(states[0])}"]
    for state, edges in table.items():
        merged: dict[S, list[str]] = {}
        for event, target in edges.items():
            merged.setdefault(target, []).append(str(event))
        lines += [
            f"    {_name(state)} --> {_name(target)}: {', '.join(events)}"
            for target, events in merged.items()
        ]
        if not edges:
            lines.append(f"    {_name(state)} --> [*]")
    return "\n".join(lines)


def _name(state: StrEnum) -> str:
    return str(state).replace("-", "_")


def _drawn(table: Any) -> str:
    return f"```mermaid\n{diagram(table)}\n```"


SECTIONS: Final[dict[str, Callable[[], str]]] = {
    "work": lambda: _messages(ProtocolId.WORK),
    "index": lambda: _messages(ProtocolId.INDEX),
    "blob": lambda: _messages(ProtocolId.BLOB),
    "health": lambda: _messages(ProtocolId.HEALTH),
    "pool": lambda: _messages(ProtocolId.POOL),
    "reach": lambda: _messages(ProtocolId.REACH),
    "gate": lambda: _messages(ProtocolId.GATE),
    "manifest": lambda: _value(pool.PoolManifest),
    "advert": lambda: _value(Advert),
    "task": lambda: _value(task.Task),
    "record": lambda: _value(record.Record),
    "campaign-manifest": lambda: _value(manifest.ManifestCover, manifest.CampaignManifest),
    "reasons": lambda: _words(Reason),
    "worker-states": lambda: _words(WorkerState),
    "rights": lambda: _words(Right),
    "roles": lambda: _words(Role),
    "phases": lambda: _words(Phase),
    "outcomes": lambda: _words(RunOutcome),
    "caps": _caps,
    "lease-table": lambda: _drawn(LEASE),
    "task-table": lambda: _drawn(TASK),
    "worker-table": lambda: _drawn(WORKER),
}

if __name__ == "__main__":
    page_path = Path(protocol.__path__[0]) / "SPEC.md"
    page_path.write_text(render(page_path.read_text("utf-8")), "utf-8")

"""What a task needs of a device: clauses, all of which must be met, written as `attribute operator value`.

    ram >= 8 GiB        soc ~ "Apple M*"        label.site == lab        units has "CPU (ONNX)"        arch in x86_64, aarch64

The attributes are the advert's fields. An unknown attribute is an error with a hint, never a clause that silently matches nothing.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from protocol.errors import CampaignError
from protocol.values.advert import Advert
from protocol.wire.base import Line, Message

Value = str | int | float


class Op(StrEnum):
    """How a clause compares. `~`: a shell pattern, ignoring case; `has`: an item of a list."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    LIKE = "~"
    IN = "in"
    HAS = "has"


class ValueKind(StrEnum):
    """The kind of value that an attribute has."""

    NUMBER = "number"
    SIZE = "size"
    """A number of bytes, written with a unit."""
    TEXT = "text"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Attribute:
    """Something that a clause can name."""

    name: str
    of: ValueKind
    meaning: str
    read: Callable[[Advert], Value | tuple[str, ...] | None]
    """Reads the value from an advert; None: this node does not say."""


def _vram(advert: Advert) -> int | None:
    lines = [gpu.vram for gpu in advert.gpus if gpu.vram is not None]
    return max(lines) if lines else None if advert.gpus else 0


ATTRIBUTES: Final[dict[str, Attribute]] = {
    item.name: item
    for item in (
        Attribute("arch", ValueKind.TEXT, "processor architecture, such as x86_64", lambda a: a.arch or None),
        Attribute("cores", ValueKind.NUMBER, "physical cores", lambda a: a.cores),
        Attribute("device", ValueKind.TEXT, "the hardware's id (device_udid)", lambda a: a.device),
        Attribute(
            "features",
            ValueKind.LIST,
            "kinds of tasks that older versions cannot run, such as units-in-turns",
            lambda a: a.features or (),
        ),
        Attribute(
            "gpu",
            ValueKind.LIST,
            "names of the GPUs; for a unit on a GPU, only that of its own GPU",
            lambda a: tuple(g.name for g in a.gpus),
        ),
        Attribute(
            "monitors",
            ValueKind.LIST,
            "sensors shown live, such as power or gpu-temperature",
            lambda a: a.monitors,
        ),
        Attribute("models", ValueKind.LIST, "sha256 of cached models", lambda a: a.models),
        Attribute("name", ValueKind.TEXT, "the device's name", lambda a: a.name),
        Attribute("os", ValueKind.TEXT, "operating system and version", lambda a: a.os or None),
        Attribute("peer", ValueKind.TEXT, "the node's peer id", lambda a: a.peer),
        Attribute("pools", ValueKind.LIST, "names of the pools it works for", lambda a: a.pools),
        Attribute("ram", ValueKind.SIZE, "memory", lambda a: a.ram),
        Attribute("sandbox", ValueKind.TEXT, "full, partial or none", lambda a: a.sandbox),
        Attribute("soc", ValueKind.TEXT, "processor or system on chip", lambda a: a.soc or None),
        Attribute("threads", ValueKind.NUMBER, "logical processors", lambda a: a.threads),
        Attribute(
            "units", ValueKind.LIST, "compute units that work there", lambda a: tuple(u.unit for u in a.units)
        ),
        Attribute("version", ValueKind.TEXT, "version of sark-node", lambda a: a.version or None),
        Attribute(
            "vram",
            ValueKind.SIZE,
            "memory of the largest GPU; for a unit on a GPU, that of its own GPU",
            _vram,
        ),
    )
}
_LABEL: Final = re.compile(r"^label\.[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")
_OPS: Final[dict[ValueKind, frozenset[Op]]] = {
    ValueKind.NUMBER: frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE}),
    ValueKind.SIZE: frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE}),
    ValueKind.TEXT: frozenset({Op.EQ, Op.NE, Op.LIKE, Op.IN}),
    ValueKind.LIST: frozenset({Op.HAS, Op.LIKE}),
}


class Clause(Message):
    """One condition. A size is in bytes; `in` has several values, all others one."""

    attribute: Annotated[str, StringConstraints(max_length=80)]
    op: Annotated[Op, Field(strict=False)]
    value: (
        Line
        | Annotated[int, Field(ge=-(2**53), le=2**53)]
        | float
        | Annotated[tuple[Line, ...], Field(max_length=32)]
    )

    def __str__(self) -> str:
        attribute = attribute_of(self.attribute)
        if isinstance(self.value, tuple):
            shown = ", ".join(self.value)
        elif attribute is not None and attribute.of is ValueKind.SIZE and isinstance(self.value, int):
            shown = show_size(self.value)
        else:
            shown = str(self.value)
        return f"{self.attribute} {self.op} {shown}"


class Requirement(Message):
    """All of these clauses."""

    clauses: Annotated[tuple[Clause, ...], Field(max_length=32)] = ()


def attribute_of(name: str) -> Attribute | None:
    """The attribute called `name`, including labels; None if there is none."""
    if name in ATTRIBUTES:
        return ATTRIBUTES[name]
    if _LABEL.match(name):
        label = name.removeprefix("label.")
        return Attribute(name, ValueKind.TEXT, "a label set by the owner", lambda a: a.labels.get(label))
    return None


_CLAUSE: Final = re.compile(r"^\s*([A-Za-z_][\w.\- ]*?)\s*(==|!=|<=|>=|<|>|~|\bin\b|\bhas\b)\s*(.*?)\s*$")
_SIZE: Final = re.compile(r"^([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?B?|B)?$", re.IGNORECASE)
_FACTORS: Final = {"": 1, "b": 1} | {
    f"{letter}{binary}{byte}": (1024 if binary else 1000) ** power
    for power, letter in enumerate("kmgt", start=1)
    for binary in ("i", "")
    for byte in ("b", "")
}


def parse_size(text: str) -> int | None:
    """Bytes in `8 GiB`, `500MB`, `1024`; None if the text is not a size."""
    match = _SIZE.match(text.strip())
    if not match:
        return None
    return int(float(match[1]) * _FACTORS[(match[2] or "").lower()])


def show_size(size: int) -> str:
    """Bytes as users read them, in binary units."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount == int(amount) else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def parse_clause(text: str) -> Clause:
    """A clause as written in a campaign. Raises `CampaignError` with a hint; the caller must add file and line."""

    def wrong(what: str, hint: str) -> CampaignError:
        return CampaignError(f'{what} clause "{text}"', hint=hint)

    match = _CLAUSE.match(text)
    if not match:
        hint = "a clause is: attribute operator value, such as ram >= 8 GiB"
        raise CampaignError(f"cannot read clause {text!r}", hint=hint)
    name, op, raw = match[1], Op(match[2]), match[3]
    plain = _unquote(raw)
    attribute = attribute_of(name)
    if attribute is None:
        near = difflib.get_close_matches(name, [*ATTRIBUTES, "label.NAME"], n=1, cutoff=0.5)
        guess = f"did you mean {near[0]!r}?  " if near else ""
        raise wrong(f"unknown attribute {name!r} in", f"{guess}all attributes: sark-node info --attributes")
    if op not in _OPS[attribute.of]:
        raise wrong(
            f"{name} cannot be compared by {op} in", f"use one of: {' '.join(sorted(_OPS[attribute.of]))}"
        )
    if len(raw) > 200 or any(not " " <= char <= "~" for char in raw):
        hint = "devices describe themselves in plain ASCII, at most 200 characters"
        raise CampaignError(f'the value in clause "{text[:80]}" cannot match anything', hint=hint)
    if not raw:
        raise wrong("no value in", "write one after the operator")
    value: str | float | tuple[str, ...] = plain
    if op is Op.IN:
        value = tuple(_unquote(item) for item in raw.strip("[]").split(",") if item.strip())
    elif attribute.of is ValueKind.SIZE:
        size = parse_size(plain)
        if size is None or plain.isdigit():  # 80 of what? a user would not mean bytes
            raise wrong(f"{raw!r} is not a size in", "write it as 8 GiB or 500 MB")
        value = size
    elif attribute.of is ValueKind.NUMBER:
        try:
            number = float(plain)
        except ValueError:
            number = math.nan
        if not abs(number) <= 2**53:
            raise wrong(f"{raw!r} is not a number in", "write a plain number")
        value = int(number) if number == int(number) else number
    return Clause(attribute=name, op=op, value=value)


def _unquote(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text

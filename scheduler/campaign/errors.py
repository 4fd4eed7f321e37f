"""Pydantic's findings turned into one `CampaignError`: the first by line, in words, with a hint and how many more there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from protocol.errors import CampaignError
from swarm.base.text import did_you_mean, nearest, safe_text
from swarm.base.yaml import Document, Where

LATER: Final[dict[str, str]] = {
    "prepare": "give the steps before the runs under measure.pre",
    "concurrency": "leave it out",
}
"""Keys that a later version will read, and what to do meanwhile."""
HIDDEN: Final = frozenset({"jobs"})
"""Fields not shown to people: of the other form."""

MAX_TOLD: Final = 8
"""Others beside the first that are told with their lines."""
LOOKED_AT: Final = 40
"""Findings that are put into words; the first by line is among them, the others are only counted."""

Parts = Mapping[str, type[BaseModel]]
"""Which model stands behind each top key."""


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One thing that is wrong, and where."""

    where: Where
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class _Must:
    """A value of a wrong sort; the branches of an either-or are put together."""

    where: Where
    wanted: str
    got: str
    hint: str = ""

    def problem(self) -> FileProblem:
        shown = _told(self.where) or "a campaign"
        return FileProblem(self.where, f"{shown} must be {self.wanted}{self.got}", self.hint)


def first_of(problems: Iterable[FileProblem], document: Document, *, beyond: int = 0) -> CampaignError:
    """The first by line, saying how many others there are; `beyond`: how many are not among `problems`."""
    ordered = sorted(problems, key=lambda problem: document.line(problem.where))
    first, more = ordered[0], len(ordered) - 1 + beyond
    hint = first.hint
    if more:
        others = f"and {more:,} more error{'s' if more > 1 else ''} in this file"
        hint = f"{hint}  ({others})" if hint else others
        lines = [f"line {document.line(other.where)}: {other.what}" for other in ordered[1 : MAX_TOLD + 1]]
        hint = "\n".join([hint, *lines, *(["…"] if more > len(lines) else [])])
    error = document.error(first.where, first.what, hint)
    error.first_hint = first.hint
    error.others = tuple(
        (document.line(other.where), other.what, other.hint) for other in ordered[1:LOOKED_AT]
    )
    return error


def first_found(
    error: ValidationError, document: Document, root: type[BaseModel], parts: Parts
) -> CampaignError:
    """The first of pydantic's findings. `parts`: which model stands behind each top key of `root`."""
    items: list[Any] = sorted(
        error.errors(include_url=False),
        key=lambda item: document.line(_way(item["loc"][:-1] if item["type"] == "missing" else item["loc"])),
    )
    problems = _problems(items[:LOOKED_AT], items, root, parts) or _problems(items, items, root, parts)
    return first_of(problems, document, beyond=max(0, len(items) - LOOKED_AT))


def _problems(
    items: Sequence[Any], all_items: Sequence[Any], root: type[BaseModel], parts: Parts
) -> list[FileProblem]:
    """What to say of `items`, one for each place."""
    by_key: dict[Where, _Must | FileProblem] = {}
    for item in items:
        loc = item["loc"]
        if item["type"] == "missing" and _misspelt(loc, all_items, root, parts):
            continue  # it is there, misspelt, and that is what will be said
        if item["type"] == "too_short" and any(_inside(other["loc"], loc) for other in all_items):
            continue  # said of a list whose items are wrong, not missing
        problem = _problem(item, root, parts)
        stored = by_key.get(problem.where)
        if stored is None:
            by_key[problem.where] = problem
        elif isinstance(stored, _Must) and isinstance(problem, _Must):
            by_key[problem.where] = replace(
                stored, wanted=f"{stored.wanted} or {problem.wanted}", hint=stored.hint or problem.hint
            )
    return [item.problem() if isinstance(item, _Must) else item for item in by_key.values()]


def _misspelt(loc: Sequence[Any], items: Sequence[Any], root: type[BaseModel], parts: Parts) -> bool:
    """Whether the key that is missing stands beside its place in another spelling."""
    extra = [
        item["loc"] for item in items if item["type"] == "extra_forbidden" and item["loc"][:-1] == loc[:-1]
    ]
    known = _keys(loc, root, parts)
    return any(nearest(str(other[-1]), known) == loc[-1] for other in extra[:LOOKED_AT])


_MUST: Final[dict[str, str]] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_unicode": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping of key: value",
    "model_type": "a mapping of key: value",
    "model_attributes_type": "a mapping of key: value",
}
_HINT: Final[dict[str, str]] = {
    "string_type": "put it in quotes if it is meant as text",
    "tuple_type": "write [one, two], or one for each line after a dash",
    "dict_type": "indent its entries below it, each as key: value",
    "model_type": "indent its entries below it, each as key: value",
}
_FORMS: Final[dict[str, str]] = {
    "sha256": "the 64 hexadecimal digits of a SHA-256, in small letters",
    "campaign": "letters, digits, space and . _ -, beginning with a letter or digit, at most 64",
    "package": "the name of a Python package, such as magika",
    "units": "the name of a compute unit",
    "compute_unit": "the name of a compute unit",
    "name": "a name without / and \\",
    "device_udid": "visible ASCII characters, at most 120",
    "worker_id": "visible ASCII characters, at most 120",
}


def _problem(item: Any, root: type[BaseModel], parts: Parts) -> _Must | FileProblem:
    kind, context, given = str(item["type"]), item.get("ctx", {}), item["input"]
    where = _way(item["loc"])
    key = next((part for part in reversed(where) if isinstance(part, str)), "")
    got = f", not {safe_text(repr(given), 40)}"
    match kind:
        case "extra_forbidden":
            return FileProblem(where, *_unknown_key(key, where, root, parts))
        case "campaign":
            return FileProblem(where, context["what"], context["hint"])
        case "missing":
            return FileProblem(where[:-1], f"the key {key!r} is missing", f"add {key}: …")
        case "tuple_type" if isinstance(given, (int, float, str)):
            text = safe_text(str(given), 40)
            real = f"{text} (ONNX)" if key == "units" and text == "CPU" else text
            return _Must(where, _MUST[kind], got, f"write [{real}]")
        case _ if kind in _MUST:
            return _Must(where, _MUST[kind], got, _HINT.get(kind, ""))
        case "too_short" | "string_too_short":
            return FileProblem(where, f"{_told(where)} must not be empty", "give at least one")
        case "too_long" | "string_too_long":
            return FileProblem(
                where, f"{_told(where)} is too long: at most {context.get('max_length')} are allowed"
            )
        case "literal_error":
            choices = str(context.get("expected", ""))
            guess = did_you_mean(str(given), choices.replace("'", "").replace(" or ", ", ").split(", "))
            return _Must(where, choices, got, guess)
        case "greater_than_equal":
            hint = "a size is at least 1" if "dims" in where[:-1] else ""
            return _Must(where, f"at least {context['ge']:,}", got, hint)
        case "less_than_equal":
            return _Must(where, f"at most {context['le']:,}", got)
        case "string_pattern_mismatch":
            return _Must(where, _FORMS.get(key, "of another form"), got)
        case _:
            return FileProblem(where, f"{_told(where)} is wrong: {safe_text(str(item['msg']), 120)}")


def _unknown_key(key: str, where: Where, root: type[BaseModel], parts: Parts) -> tuple[str, str]:
    """What to say of a key nobody knows here."""
    if key in LATER:
        return f"{key} is not supported in this version", LATER[key]
    known = _keys(where, root, parts)
    guess = did_you_mean(key, known)
    homes = [name for name, part in parts.items() if key in part.model_fields and key not in HIDDEN]
    if homes and len(where) == 1:
        guess = f"did you mean {homes[0]}.{key}?"
    return f"unknown key {safe_text(key, 60)!r}", "  ".join(
        filter(None, [guess, f"keys here: {', '.join(known)}"])
    )


def _keys(where: Sequence[Any], root: type[BaseModel], parts: Parts) -> list[str]:
    """The keys that may stand beside the last one of `where`."""
    model = parts.get(str(where[0]), root) if len(where) > 1 else root
    if "variants" in where[1:-1]:
        model = parts.get("variants", model)
    return [name for name in model.model_fields if name not in HIDDEN or "model_url" in model.model_fields]


def _inside(inner: Sequence[Any], outer: Sequence[Any]) -> bool:
    return len(inner) > len(outer) and tuple(inner[: len(outer)]) == tuple(outer)


def _way(loc: Sequence[Any]) -> Where:
    """Pydantic's location less what it adds for the branches of an either-or and for keys of mappings."""
    way: list[str | int] = []
    for part in loc:
        if isinstance(part, str) and (
            part.startswith(("literal[", "constrained-", "function-")) or part in _ADDED
        ):
            break
        way.append(part)
    return tuple(way)


_ADDED: Final = frozenset({"int", "str", "[key]"})


def _told(where: Where) -> str:
    """The way for people: `models 2.path`; positions from 1."""
    text = ""
    for part in where:
        text += f" {part + 1}" if isinstance(part, int) else f".{part}" if text else part
    return safe_text(text, 80)

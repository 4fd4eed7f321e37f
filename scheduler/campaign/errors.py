"""Turns pydantic's findings into one `CampaignError`: the first by line, in words, with a hint and the number of further errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from protocol.errors import CampaignError
from swarm.base.text import did_you_mean, nearest, safe_text
from swarm.base.yaml import Document, Where

LATER: Final[dict[str, str]] = {
    "prepare": "give the steps before the runs under measure.pre",
    "concurrency": "remove it",
}
"""Keys that a later version will read, and what to use until then."""
SYNONYMS: Final = {
    "shape": "inputs",
    "shapes": "inputs",
    "iterations": "runs",
    "repeat": "runs",
    "repeats": "runs",
    "repetitions": "runs",
}
"""Other words that people use for a key, for example from other programs and `bench`."""
HIDDEN: Final = ("jobs", "unit_formats")
"""Fields of `Campaign` that are not keys of its file form."""
MAX_LISTED: Final = 8
"""Further problems listed with their lines."""
LOOKED_AT: Final = 40
"""Findings that are put into words; these include the first by line. The others are only counted."""


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One problem, and its place."""

    where: Where
    what: str
    hint: str = ""
    expected: str = ""
    """What a value of the wrong type must be; `what` then says what it is. The alternatives of a union are joined."""

    def in_words(self) -> FileProblem:
        """The same problem with the whole sentence as `what`."""
        if not self.expected:
            return self
        return replace(self, what=f"{_shown(self.where) or 'a campaign'} must be {self.expected}{self.what}")


def first_of(problems: Iterable[FileProblem], document: Document, *, beyond: int = 0) -> CampaignError:
    """The first problem by line, with the number of others. `beyond`: how many further ones are not among `problems`."""
    first, *others = sorted(problems, key=lambda problem: document.line(problem.where))
    lined = [(document.line(other.where), other.what, other.hint) for other in others]
    error = document.error(first.where, first.what, _counting(first.hint, lined, len(others) + beyond))
    error.first_hint = first.hint
    error.others = tuple(lined[: LOOKED_AT - 1])
    return error


def combine_errors(errors: Sequence[CampaignError]) -> CampaignError:
    """The first error in line order, with the number of others."""
    first, *others = sorted(errors, key=lambda error: error.line or 0)
    if not others:
        return first
    lined = [(other.line or 0, other.detail, other.hint) for other in others]
    hint = _counting(first.hint, lined, len(others))
    error = CampaignError(first.detail, file=first.file, line=first.line, hint=hint)
    error.first_hint = first.hint
    error.others = tuple(lined[: LOOKED_AT - 1])
    return error


def _counting(hint: str, others: Sequence[tuple[int, str, str]], more: int) -> str:
    """The hint of the first of several errors, with the number of others and the first of them. `others`: line, what, hint."""
    if not more:
        return hint
    number = f"and {more:,} more error{'s' if more > 1 else ''} in this file"
    lines = [f"line {line}: {what}" if line else what for line, what, _ in others[:MAX_LISTED]]
    return "\n".join(
        [f"{hint}  ({number})" if hint else number, *lines, *(["…"] if more > len(lines) else [])]
    )


def first_found(error: ValidationError, document: Document, root: type[BaseModel]) -> CampaignError:
    """The first of pydantic's findings in a file of the form `root`."""
    items: list[Any] = sorted(
        error.errors(include_url=False),
        key=lambda item: document.line(_way(item["loc"][:-1] if item["type"] == "missing" else item["loc"])),
    )
    problems = _problems(items[:LOOKED_AT], items, root) or _problems(items, items, root)
    return first_of(problems, document, beyond=max(0, len(items) - LOOKED_AT))


def _problems(items: Sequence[Any], all_items: Sequence[Any], root: type[BaseModel]) -> list[FileProblem]:
    """Problems for `items`, one for each place."""
    by_place: dict[Where, FileProblem] = {}
    for item in items:
        loc = item["loc"]
        if item["type"] == "missing" and _misspelt(loc, all_items, root):
            continue  # reported as an unknown key with a suggestion
        if item["type"] == "too_short" and any(_inside(other["loc"], loc) for other in all_items):
            continue  # a list whose items are wrong, not missing
        problem = _problem(item, root)
        first = by_place.setdefault(problem.where, problem)
        if first is not problem and first.expected and problem.expected:
            expected = f"{first.expected} or {problem.expected}"
            by_place[problem.where] = replace(first, expected=expected, hint=first.hint or problem.hint)
    return [problem.in_words() for problem in by_place.values()]


def _misspelt(loc: Sequence[Any], items: Sequence[Any], root: type[BaseModel]) -> bool:
    """Whether the missing key is present in another spelling."""
    extra = [
        item["loc"] for item in items if item["type"] == "extra_forbidden" and item["loc"][:-1] == loc[:-1]
    ]
    keys = _keys(_model_at(root, loc[:-1]))
    return any(nearest(str(other[-1]), keys) == loc[-1] for other in extra[:LOOKED_AT])


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
    "sha256": "the 64 hexadecimal digits of a SHA-256, in lower case",
    "campaign": "at most 64 letters, digits, spaces and . _ -, beginning with a letter or digit",
    "package": "the name of a Python package, such as magika",
    "units": "the name of a compute unit",
    "compute_unit": "the name of a compute unit",
    "name": "a name without / and \\",
    "device_udid": "at most 120 printable ASCII characters",
    "worker_id": "at most 120 printable ASCII characters",
}


def _problem(item: Any, root: type[BaseModel]) -> FileProblem:
    kind, context, given = str(item["type"]), item.get("ctx", {}), item["input"]
    where = _way(item["loc"])
    key = next((part for part in reversed(where) if isinstance(part, str)), "")
    got = f", not {safe_text(repr(given), 40)}"
    match kind:
        case "extra_forbidden":
            return FileProblem(where, *_unknown_key(key, where, root))
        case "campaign":
            return FileProblem(where, context["what"], context["hint"])
        case "missing":
            return FileProblem(where[:-1], f"the key {key!r} is missing", f"add {key}: …")
        case "tuple_type" if isinstance(given, (int, float, str)):
            text = safe_text(str(given), 40)
            real = f"{text} (ONNX)" if key == "units" and text == "CPU" else text
            return FileProblem(where, got, f"write [{real}]", _MUST[kind])
        case _ if kind in _MUST:
            return FileProblem(where, got, _HINT.get(kind, ""), _MUST[kind])
        case "too_short" | "string_too_short":
            return FileProblem(where, f"{_shown(where)} must not be empty", "give at least one")
        case "too_long" | "string_too_long":
            return FileProblem(
                where, f"{_shown(where)} is too long: at most {context.get('max_length')} are allowed"
            )
        case "literal_error":
            choices = str(context.get("expected", ""))
            guess = did_you_mean(str(given), choices.replace("'", "").replace(" or ", ", ").split(", "))
            return FileProblem(where, got, guess, choices)
        case "greater_than_equal":
            hint = "a size must be 0 or more" if "dims" in where[:-1] else ""
            return FileProblem(where, got, hint, f"at least {context['ge']:,}")
        case "less_than_equal":
            return FileProblem(where, got, expected=f"at most {context['le']:,}")
        case "string_pattern_mismatch":
            return FileProblem(where, got, expected=_FORMS.get(key, "in another form"))
        case _:
            return FileProblem(where, f"{_shown(where)} is wrong: {safe_text(str(item['msg']), 120)}")


def _unknown_key(key: str, where: Where, root: type[BaseModel]) -> tuple[str, str]:
    """The message for an unknown key, and a hint."""
    if key in LATER:
        return f"{key} is not supported in this version", LATER[key]
    keys = _keys(_model_at(root, where[:-1]))
    word = SYNONYMS.get(key, key)
    guess = did_you_mean(word, keys)
    if len(where) == 1:
        below = {name: _model_in(root.model_fields[name].annotation) for name in keys}
        homes = (name for name, model in below.items() if model is not None and word in model.model_fields)
        guess = next((f"did you mean {name}.{word}?" for name in homes), guess)
    hint = "  ".join(filter(None, [guess, f"keys here: {', '.join(keys)}"]))
    return f"unknown key {safe_text(key, 60)!r}", hint


def _keys(model: type[BaseModel]) -> list[str]:
    """The keys that a file may have there."""
    fields = model.model_fields
    return [name for name in fields if name not in HIDDEN or "model_url" in fields]


def _model_at(root: type[BaseModel], where: Sequence[Any]) -> type[BaseModel]:
    """The model that reads the value at `where`, or the nearest enclosing one."""
    model = root
    for part in where:
        if part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _inside(inner: Sequence[Any], outer: Sequence[Any]) -> bool:
    return len(inner) > len(outer) and tuple(inner[: len(outer)]) == tuple(outer)


def _way(loc: Sequence[Any]) -> Where:
    """Pydantic's location without the parts that it adds for union branches and for keys of mappings."""
    way: list[str | int] = []
    for part in loc:
        if isinstance(part, str) and (
            part.startswith(("literal[", "constrained-", "function-")) or part in _ADDED
        ):
            break
        way.append(part)
    return tuple(way)


_ADDED: Final = frozenset({"int", "str", "[key]"})


def _shown(where: Where) -> str:
    """The location for people: `models 2.path`; positions from 1."""
    text = ""
    for part in where:
        text += f" {part + 1}" if isinstance(part, int) else f".{part}" if text else part
    return safe_text(text, 80)

"""A strict, small subset of YAML, or JSON, as plain values with the line of each. It avoids the surprises of other readers:

* it refuses anchors, aliases, tags, merge keys, duplicate keys, second documents, and more than 256 KiB, 32 levels or 50,000 values,
  checked while reading, so that no file costs more than reading it;
* an unquoted word is `true`/`false`, `null`/`~` or a decimal number; otherwise it is text: `no`, `on`, `010`, `0x1F`, `1:30`, dates.

Whatever the bytes, the only error raised is `CampaignError`, with file, line and hint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from protocol.errors import CampaignError
from swarm.base.text import safe_text

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32
MAX_VALUES: Final = 50_000
CAMPAIGN_FILE: Final = "give the path of a campaign file; sark-node init writes one"

Where = tuple[str | int, ...]
"""The path to a value: keys and, in lists, positions starting at 0."""

_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_UNREADABLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]"
)
_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]{1,30}|[0-9]{1,30}(\.[0-9]{0,30})?)([eE][-+]?[0-9]{1,3})?")
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True, slots=True)
class Document:
    """A file as plain values (dict, list, str, int, float, bool, None), and the line on which each begins."""

    file: str
    """The file name shown in errors."""
    value: Any
    lines: dict[Where, int] = field(default_factory=dict)
    """Path → line; for an entry of a mapping, the line of its key."""

    def line(self, where: Where) -> int:
        """The line of `where`, or of its nearest enclosing value that is in the file."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def error(self, where: Where, what: str, hint: str = "") -> CampaignError:
        """An error that points at `where`."""
        return CampaignError(what, file=self.file, line=self.line(where), hint=hint)


def read_document(path: Path, hint: str = CAMPAIGN_FILE) -> Document:
    """The file at `path`. Raises `CampaignError` if it is missing, unreadable or invalid. Blocking."""
    shown = safe_text(str(path))
    try:
        if not path.is_file():
            what = "is a folder, not a file" if path.is_dir() else "no such file"
            raise CampaignError(what, file=shown, hint=hint)
        with path.open("rb") as source:
            data = source.read(MAX_BYTES + 1)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise CampaignError(
            f"cannot be read: {why}", file=shown, hint="check the path and its permissions"
        ) from exc
    return parse_document(data, shown)


def parse_document(data: bytes, file: str) -> Document:
    """The document in `data`: JSON if `file` ends in .json or the data reads as JSON, else YAML. Raises `CampaignError`."""
    text = _decode(data, file)
    if text.lstrip()[:1] in ("{", "[") or file.lower().endswith(".json"):
        try:
            return _build(_json_events(text, file), file)
        except _NotJson:
            if file.lower().endswith(".json"):
                raise
    return _build(_yaml_events(text, file), file)  # a YAML flow mapping may begin like JSON


def _error(file: str, line: int, what: str, hint: str) -> CampaignError:
    return CampaignError(what, file=file, line=line, hint=hint)


def _decode(data: bytes, file: str) -> str:
    if len(data) > MAX_BYTES:
        what = f"larger than {MAX_BYTES // 1024} KiB: this is not a campaign file"
        raise _error(file, 1, what, "a campaign names its models by path; it does not contain them")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _error(file, 1, "the text is UTF-16", "save the file as UTF-8")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        hint = "save the file as UTF-8; a model goes under models:"
        raise _error(file, line, "not a text file in UTF-8", hint) from exc
    bad = _UNREADABLE.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        raise _error(
            file, line, f"unreadable character U+{ord(bad[0]):04X}", "a campaign is plain text: remove it"
        )
    return text


# -- events of both grammars -----------------------------------------------------------------------------------------------------


class _Event(NamedTuple):
    kind: str
    """`{`, `[`, `end` or `scalar`"""
    line: int
    value: Any = None
    text: str = ""
    """The scalar's text, used if it is a key."""


class _NotJson(CampaignError):
    """The text is not JSON; it may still be YAML."""


_NOT_YAML: Final[dict[str, str]] = {
    "mapping values are not allowed": "quote a text that holds ': ', and check the indentation",
    "could not find expected ':'": "write it as key: value",
    "expected <block end>": "check the indentation: entries of one level must begin in the same column",
    "did not find expected key": "check the indentation: entries of one level must begin in the same column",
    "expected ',' or": "check the commas and the closing bracket",
    "unexpected end of stream": "close the quotes",
    "cannot start any token": "quote a text that begins with a sign such as @ or %",
}


def _yaml_events(text: str, file: str) -> Iterator[_Event]:
    documents, rows = 0, text.split("\n")
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            line = min(event.start_mark.line + 1, len(rows)) if event.start_mark is not None else 1
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                raise _error(file, line, "a second document begins here", "write one campaign per file")
            if isinstance(event, yaml.AliasEvent):
                what = f"alias *{safe_text(event.anchor or '', 40)}: aliases are not allowed"
                raise _error(file, line, what, "write the value out")
            if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                what = f"anchor &{safe_text(event.anchor, 40)}: anchors are not allowed"
                raise _error(file, line, what, "write the value out where it is needed")
            if (tag := getattr(event, "tag", None)) is not None:
                what = f"tag {safe_text(tag, 60)}: tags are not allowed"
                raise _error(file, line, what, "write the plain value; quote it if it is meant as text")
            match event:
                case yaml.MappingStartEvent():
                    yield _Event("{", line)
                case yaml.SequenceStartEvent():
                    yield _Event("[", line)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    yield _Event("end", line)
                case yaml.ScalarEvent():
                    value = event.value if event.style else word_value(event.value)
                    yield _Event("scalar", line, value, event.value)
                case _:
                    pass
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
        what = str(getattr(exc, "problem", None) or getattr(exc, "reason", None) or exc)
        line = min(mark.line + 1, len(rows)) if mark is not None else 1
        hint = next((hint for part, hint in _NOT_YAML.items() if part in what), "")
        if re.match(r"[ -]*\t", rows[line - 1]):
            hint = "indent with spaces, not with tabs"
        hint = hint or "check the indentation and the quotes on this line and the one before"
        raise _error(file, line, f"not valid YAML: {safe_text(what, 120)}", hint) from exc


def word_value(text: str) -> Any:
    """The value of an unquoted word."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not re.match(r"[-+]?0[0-9]", text) and not text.lstrip("+-").isdigit():
        number = float(text)
        return number if abs(number) != float("inf") else text
    return text


_TOKEN: Final = re.compile(
    r'[ \t\r]+|(?P<line>\n)|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<mark>[{}\[\],:])|(?P<word>[^\s{}\[\],:"]+)'
)


def _json_events(text: str, file: str) -> Iterator[_Event]:
    """The `json` module checks the text; the tokens give the lines, which `json` does not report."""
    try:
        json.loads(text)
    except json.JSONDecodeError as exc:
        hint = "check the commas, brackets and quotes here"
        raise _NotJson(f"not valid JSON: {exc.msg}", file=file, line=exc.lineno, hint=hint) from exc
    except (RecursionError, ValueError) as exc:
        raise _NotJson("not valid JSON: nested too deep, or a number too long", file=file, line=1) from exc
    line = 1
    for token in _TOKEN.finditer(text):
        match token.lastgroup:
            case "line":
                line += 1
            case "text":
                value = json.loads(token[0])
                if any("\ud800" <= char <= "\udfff" for char in value):
                    raise _error(file, line, "half of a surrogate pair in a text", "remove the \\u escape")
                yield _Event("scalar", line, value, value)
            case "word":
                yield _Event("scalar", line, json.loads(token[0], parse_constant=str), token[0])
            case "mark" if token[0] in "{[":
                yield _Event(token[0], line)
            case "mark" if token[0] in "}]":
                yield _Event("end", line)
            case _:
                pass


def _build(events: Iterator[_Event], file: str) -> Document:
    """Build the values without recursion. Refuses values that are nested too deeply, too many, or duplicate."""
    document: list[Any] = []
    lines: dict[Where, int] = {}
    stack: list[tuple[dict[str, Any] | list[Any], Where]] = []
    """The open mappings and lists, and their paths."""
    keys: list[str | None] = []
    """For each open mapping, the key of the value that comes next."""
    for number, (kind, line, value, text) in enumerate(events, 1):
        if number > MAX_VALUES:
            raise _error(
                file, line, f"more than {MAX_VALUES:,} values", "split the campaign into several files"
            )
        if kind == "end":
            stack.pop()
            keys.pop()
            continue
        into, where = stack[-1] if stack else (document, ())
        if isinstance(into, dict) and keys[-1] is None:  # a key
            where = (*where, text)
            if kind != "scalar":
                raise _error(
                    file, line, "a key must be one word, not a list or a mapping", "write it as key: value"
                )
            if text == "<<":
                raise _error(file, line, "merge key <<: merge keys are not allowed", "write the entries out")
            if not text:
                raise _error(file, line, "a key is missing before ':'", "write it as key: value")
            if text in into:
                what = f"duplicate key {safe_text(text, 60)!r}, first on line {lines[where]}"
                raise _error(file, line, what, "keep one of the two")
            keys[-1], lines[where] = text, line
            continue
        if kind != "scalar":
            if len(stack) >= MAX_DEPTH:
                raise _error(
                    file, line, f"nested deeper than {MAX_DEPTH} levels", "a campaign needs no more than 4"
                )
            value = {} if kind == "{" else []
        if isinstance(into, dict):
            key = str(keys[-1])
            into[key], keys[-1], where = value, None, (*where, key)
        else:
            where = (*where, len(into)) if stack else ()
            into.append(value)
            lines[where] = line
        if kind != "scalar":
            stack.append((value, where))
            keys.append(None)
    return Document(file, document[0] if document else None, lines)

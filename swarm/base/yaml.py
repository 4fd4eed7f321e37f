"""From the bytes of a campaign file to plain values, with the line of each: a strict and small part of YAML, or JSON.

The first step of a submit. What other readers do by surprise is refused or does not happen here:

* no anchors, aliases, tags, merge keys, duplicate keys, second documents; at most 256 KiB, 32 levels and 50,000 values, checked while
  reading, so that no file costs more than reading it;
* a plain word is `true`/`false`, `null`/`~`, a decimal number, or else text: `no`, `on`, `010`, `0x1F`, `1:30` and dates stay text.

Whatever the bytes, the only error that goes out is `CampaignError` with file, line and hint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

import yaml

from protocol.errors import CampaignError
from swarm.base.text import safe_text

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32
MAX_VALUES: Final = 50_000
CAMPAIGN_FILE: Final = "give the path of a campaign file; sark-node init writes one"

Where = tuple[str | int, ...]
"""The way to a value: keys and, in lists, positions from 0."""

_PARSER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
"""Only its parser is used (bytes to events); values are built here."""
_UNREADABLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]"
)
_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]{1,30}|[0-9]{1,30}(\.[0-9]{0,30})?)([eE][-+]?[0-9]{1,3})?")
_WORDS: Final[dict[str, bool | None]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


@dataclass(frozen=True, slots=True)
class Document:
    """A file as plain values (dict, list, str, int, float, bool, None) and the line each begins on."""

    file: str
    """As shown in errors."""
    value: Any
    lines: dict[Where, int] = field(default_factory=dict)
    """Of each entry of a mapping the line of its key; of each item of a list its own."""

    def line(self, where: Where) -> int:
        """The line of `where`, or of the nearest thing around it that is in the file."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def error(self, where: Where, what: str, hint: str = "") -> CampaignError:
        """An error that points at `where`."""
        return CampaignError(what, file=self.file, line=self.line(where), hint=hint)


def read_document(path: Path, hint: str = CAMPAIGN_FILE) -> Document:
    """The file at `path`. Raises `CampaignError` for one that is missing, unreadable or wrong. Blocking."""
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
            f"cannot be read: {why}", file=shown, hint="check the path and its rights"
        ) from exc
    return parse_document(data, shown)


def parse_document(data: bytes, file: str) -> Document:
    """The document in `data`. JSON when the name ends in .json or it reads as JSON, else YAML. Raises `CampaignError`."""
    text = _decode(data, file)
    if file.lower().endswith(".json"):
        return _Builder(file).build(_json_events(text, file))
    if text.lstrip()[:1] in ("{", "["):
        try:
            return _Builder(file).build(_json_events(text, file))
        except _NotJson:
            pass  # a flow mapping of YAML may begin like JSON
    return _Builder(file).build(_yaml_events(text, file))


def _decode(data: bytes, file: str) -> str:
    if len(data) > MAX_BYTES:
        raise CampaignError(
            f"larger than {MAX_BYTES // 1024} KiB: this is not a campaign file",
            file=file,
            line=1,
            hint="a campaign names its models by path; it does not hold them",
        )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise CampaignError("the text is UTF-16", file=file, line=1, hint="save the file as UTF-8")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise CampaignError(
            "not a text file in UTF-8",
            file=file,
            line=line,
            hint="save the file as UTF-8; a model goes under models:",
        ) from exc
    bad = _UNREADABLE.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        raise CampaignError(
            f"unreadable character U+{ord(bad[0]):04X}",
            file=file,
            line=line,
            hint="a campaign is plain text: remove it",
        )
    return text


# -- events: what both grammars have in common -----------------------------------------------------------------------------------


class _Kind(Enum):
    MAP = auto()
    LIST = auto()
    END = auto()
    KEY_OR_SCALAR = auto()


@dataclass(frozen=True, slots=True)
class _Event:
    kind: _Kind
    line: int
    value: Any = None
    text: str | None = None
    """The scalar as written, where it may be a key."""


class _NotJson(CampaignError):
    """The text is not JSON; it may still be YAML."""


_NOT_YAML: Final[dict[str, str]] = {
    "mapping values are not allowed": "quote a text that holds ': ', and check the indentation",
    "could not find expected ':'": "write it as key: value",
    "expected <block end>": "check the indentation: entries of one level begin in the same column",
    "did not find expected key": "check the indentation: entries of one level begin in the same column",
    "expected ',' or": "check the commas and the closing bracket",
    "unexpected end of stream": "close the quotes",
    "cannot start any token": "quote a text that begins with a sign such as @ or %",
}


def _yaml_events(text: str, file: str) -> Iterator[_Event]:
    documents = 0
    try:
        for event in yaml.parse(text, Loader=_PARSER):
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            if isinstance(event, yaml.AliasEvent):
                raise CampaignError(
                    f"alias *{safe_text(event.anchor or '', 40)}: aliases are not read here",
                    file=file,
                    line=line,
                    hint="write the value out",
                )
            if isinstance(event, yaml.NodeEvent):
                if event.anchor is not None:
                    raise CampaignError(
                        f"anchor &{safe_text(event.anchor, 40)}: anchors are not read here",
                        file=file,
                        line=line,
                        hint="write the value out where it is needed",
                    )
                tag = getattr(event, "tag", None)
                if tag is not None:
                    raise CampaignError(
                        f"tag {safe_text(tag, 60)}: tags are not read here",
                        file=file,
                        line=line,
                        hint="write the plain value; quote it if it is meant as text",
                    )
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        raise CampaignError(
                            "a second document begins here",
                            file=file,
                            line=line,
                            hint="one campaign for each file",
                        )
                case yaml.MappingStartEvent():
                    yield _Event(_Kind.MAP, line)
                case yaml.SequenceStartEvent():
                    yield _Event(_Kind.LIST, line)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    yield _Event(_Kind.END, line)
                case yaml.ScalarEvent():
                    plain = event.style is None or event.style == ""
                    value = meaning(event.value) if plain else event.value
                    key = "<<" if event.value == "<<" and plain else event.value
                    yield _Event(_Kind.KEY_OR_SCALAR, line, value, key)
                case _:
                    pass
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
        what = str(getattr(exc, "problem", None) or getattr(exc, "reason", None) or exc)
        rows = text.split("\n")
        line = min(mark.line + 1, len(rows)) if mark is not None else 1
        hint = next((hint for part, hint in _NOT_YAML.items() if part in what), "")
        if re.match(r"[ -]*\t", rows[line - 1]):
            hint = "indent with spaces, not with tabs"
        raise CampaignError(
            f"not valid YAML: {safe_text(what, 120)}",
            file=file,
            line=line,
            hint=hint or "check the indentation and the quotes on this line and the one before",
        ) from exc


def meaning(text: str) -> Any:
    """What a word without quotes means."""
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
    """Checked by the `json` module; walked here once more for the lines, which it does not tell."""
    try:
        json.loads(text)
    except json.JSONDecodeError as exc:
        raise _NotJson(
            f"not valid JSON: {exc.msg}",
            file=file,
            line=exc.lineno,
            hint="check the commas, brackets and quotes here",
        ) from exc
    except (RecursionError, ValueError) as exc:
        raise _NotJson("not valid JSON: nested too deep, or a number too long", file=file, line=1) from exc
    line = 1
    for token in _TOKEN.finditer(text):
        match token.lastgroup:
            case "line":
                line += 1
            case "text":
                plain = json.loads(token[0])
                if any("\ud800" <= char <= "\udfff" for char in plain):
                    raise CampaignError(
                        "half of a surrogate pair in a text",
                        file=file,
                        line=line,
                        hint="remove the \\u escape",
                    )
                yield _Event(_Kind.KEY_OR_SCALAR, line, plain, plain)
            case "word":
                value = json.loads(token[0], parse_constant=str)
                yield _Event(_Kind.KEY_OR_SCALAR, line, value, token[0])
            case "mark" if token[0] in "{[":
                yield _Event(_Kind.MAP if token[0] == "{" else _Kind.LIST, line)
            case "mark" if token[0] in "}]":
                yield _Event(_Kind.END, line)
            case _:
                pass


# -- from events to values ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Open:
    """A mapping or list that is not closed yet."""

    into: dict[str, Any] | list[Any]
    where: Where
    key: str | None = None


class _Builder:
    """Builds one document from events, without recursion; refuses what is too deep, too much or twice there."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: dict[Where, int] = {}
        self._stack: list[_Open] = []
        self._root: Any = None
        self._seen = 0

    def build(self, events: Iterator[_Event]) -> Document:
        """All of the document. Raises `CampaignError`."""
        for event in events:
            self._seen += 1
            if self._seen > MAX_VALUES:
                raise self._error(
                    event, f"more than {MAX_VALUES:,} values", "split the campaign into several files"
                )
            if event.kind is _Kind.END:
                self._stack.pop()
            elif event.kind is _Kind.KEY_OR_SCALAR:
                self._scalar(event)
            else:
                self._begin(event)
        return Document(self._file, self._root, self._lines)

    def _scalar(self, event: _Event) -> None:
        top = self._stack[-1] if self._stack else None
        if top is None or isinstance(top.into, list) or top.key is not None:
            self._put(event, event.value)
            return
        key = event.text or ""
        shown = safe_text(key, 60)
        if key == "<<":
            raise self._error(event, "merge key <<: merge keys are not read here", "write the entries out")
        if not key:
            raise self._error(event, "a key is missing before ':'", "write it as key: value")
        if key in top.into:
            first = self._lines[(*top.where, key)]
            raise self._error(event, f"duplicate key {shown!r}, first on line {first}", "keep one of the two")
        top.key = key
        self._lines[(*top.where, key)] = event.line

    def _begin(self, event: _Event) -> None:
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.into, dict) and top.key is None:
            raise self._error(
                event, "a key must be one word, not a list or a mapping", "write it as key: value"
            )
        if len(self._stack) >= MAX_DEPTH:
            raise self._error(
                event, f"nested deeper than {MAX_DEPTH} levels", "a campaign needs no more than 4"
            )
        into: dict[str, Any] | list[Any] = {} if event.kind is _Kind.MAP else []
        where = self._put(event, into)
        self._stack.append(_Open(into, where))

    def _put(self, event: _Event, value: Any) -> Where:
        """Store `value` at the open place; its way."""
        if not self._stack:
            self._root = value
            self._lines[()] = event.line
            return ()
        top = self._stack[-1]
        if isinstance(top.into, list):
            where = (*top.where, len(top.into))
            top.into.append(value)
            self._lines[where] = event.line
            return where
        assert top.key is not None
        where = (*top.where, top.key)
        top.into[top.key] = value
        top.key = None
        return where

    def _error(self, event: _Event, what: str, hint: str) -> CampaignError:
        return CampaignError(what, file=self._file, line=event.line, hint=hint)

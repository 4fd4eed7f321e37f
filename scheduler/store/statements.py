"""Statements that are compiled once for each kind of database and run for many rows: a tenth of the time of building each anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import UpdateBase

from scheduler.store.schema import Text, Word, stored_text

Convert = Callable[[Any], Any]
Compiled = tuple[str, bool, list[tuple[str, Convert | None]]]
"""The text, whether its parameters are numbered, and how each is converted."""


class RowStatement:
    """An INSERT or UPDATE that sets `columns`, and may have other parameters (`bindparam`)."""

    def __init__(self, statement: UpdateBase, columns: Sequence[str]) -> None:
        self._statement, self._columns = statement, list(columns)
        self._compiled: dict[str, Compiled] = {}
        """By the dialect's name."""

    def run(self, c: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Once for each row, all of which have every parameter. Fails as `c.execute`."""
        text, positional, parameters = self._compiled.get(c.dialect.name) or self._compile(c.dialect)
        values: list[Any] = [
            [row[name] if convert is None else convert(row[name]) for name, convert in parameters]
            for row in rows
        ]
        names = [name for name, _ in parameters]
        c.exec_driver_sql(
            text,
            [tuple(each) if positional else dict(zip(names, each, strict=True)) for each in values],
        )

    def _compile(self, dialect: sa.Dialect) -> Compiled:
        compiled = self._statement.compile(dialect=dialect, column_keys=self._columns)
        assert isinstance(compiled, SQLCompiler)
        names = (compiled.positiontup or ()) if compiled.positional else compiled.binds
        parameters: list[tuple[str, Convert | None]] = [
            (name, _converter(compiled.binds[name].type, dialect)) for name in names
        ]
        result = self._compiled[dialect.name] = (str(compiled), compiled.positional, parameters)
        return result


def _converter(kind: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> Convert | None:
    """What makes a value of this kind what the driver takes; None: it takes it as it is."""
    if type(kind) in (Text, Word):
        return stored_text  # not through the layers of `TypeDecorator`: most columns are such
    return kind.dialect_impl(dialect).bind_processor(dialect)

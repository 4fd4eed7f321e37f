"""Statements compiled once for each kind of database and passed to its driver: a tenth of the time of building each anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import UpdateBase

from scheduler.store.database import MAX_PARAMETERS, batched, columns_of
from scheduler.store.schema import Text, Word, stored_text

R = TypeVar("R")
Convert = Callable[[Any], Any]
Compiled = tuple[str, bool, list[tuple[str, Convert | None]]]
"""The text, whether its parameters are numbered, and how to convert each parameter."""


class RowStatement:
    """An INSERT or UPDATE that sets `columns`, and may have other parameters (`bindparam`)."""

    def __init__(self, statement: UpdateBase, columns: Sequence[str]) -> None:
        self._statement, self._columns = statement, list(columns)
        self._compiled: dict[str, Compiled] = {}
        """Compiled statements by dialect name."""

    def run(self, c: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run the statement once for each row, all of which have every parameter. Fails as `c.execute`."""
        text, positional, parameters = self._compiled.get(c.dialect.name) or self._compile(c.dialect)
        values: list[Any] = [
            [row[name] if convert is None else convert(row[name]) for name, convert in parameters]
            for row in rows
        ]
        names = [name for name, _ in parameters]
        with driver_cursor(c, text) as cursor:
            cursor.executemany(
                text, [tuple(each) if positional else dict(zip(names, each, strict=True)) for each in values]
            )

    def _compile(self, dialect: sa.Dialect) -> Compiled:
        compiled = self._statement.compile(dialect=dialect, column_keys=self._columns)
        assert isinstance(compiled, SQLCompiler)
        parameters: list[tuple[str, Convert | None]] = [
            (name, _converter(compiled.binds[name].type, dialect)) for name in _names(compiled)
        ]
        result = self._compiled[dialect.name] = (str(compiled), compiled.positional, parameters)
        return result


@contextmanager
def driver_cursor(c: sa.Connection, text: str) -> Iterator[Any]:
    """The driver's own cursor for the statement `text`: the library's layers would take as long as a short statement. Fails like
    `c.execute`.
    """
    cursor: Any = None
    driver_error = c.dialect.loaded_dbapi.Error
    try:
        cursor = c.connection.cursor()
        yield cursor
    except driver_error as exc:
        gone = c.dialect.is_disconnect(exc, c.connection.driver_connection, cursor)
        if gone:
            c.invalidate(exc)
        wrapped: Any = DBAPIError.instance(
            text, None, exc, driver_error, connection_invalidated=gone, dialect=c.dialect
        )
        raise wrapped from exc
    finally:
        if cursor is not None:
            with suppress(driver_error):  # its connection may be closed by now
                cursor.close()


SIZES: Final = (1, 16, MAX_PARAMETERS)
"""Numbers of keys in one statement. If there are fewer keys, the last one is repeated."""


class KeyQuery(Generic[R]):
    """A SELECT of whole rows by the values of one text column. Usually it reads a single row."""

    def __init__(self, row: type[R], key: sa.Column[Any], order: Sequence[sa.Column[Any]] = ()) -> None:
        self._row, self._columns = row, columns_of(row)
        self._select, self._key = sa.select(*self._columns).order_by(*order), key
        self._compiled: dict[tuple[str, int], tuple[str, tuple[str, ...], bool]] = {}
        """By dialect name and number of keys: the text, its parameters, and whether they are numbered."""
        self._readers: dict[str, list[tuple[int, Convert]]] = {}

    def run(self, c: sa.Connection, keys: Sequence[str]) -> list[R]:
        """The rows of these keys; `order` holds within each batch of `MAX_PARAMETERS` keys. Fails like `c.execute`."""
        return [row for portion in batched(keys) for row in self._portion(c, portion)]

    def _portion(self, c: sa.Connection, keys: Sequence[str]) -> list[R]:
        size = next(size for size in SIZES if size >= len(keys))
        text, names, positional = self._compiled.get((c.dialect.name, size)) or self._compile(c.dialect, size)
        given = [stored_text(key) for key in keys]
        values = (*given, *repeat(given[-1], size - len(given)))
        parameters: Any = values if positional else dict(zip(names, values, strict=True))
        with driver_cursor(c, text) as cursor:
            cursor.execute(text, parameters)
            found = [list(values) for values in cursor]
            readers = self._readers.get(c.dialect.name)
            if readers is None:
                kinds = zip(self._columns, cursor.description, strict=True)
                made = (_reader(column.type, c.dialect, described[1]) for column, described in kinds)
                readers = [(at, reader) for at, reader in enumerate(made) if reader is not None]
                self._readers[c.dialect.name] = readers
        for row in found:
            for at, read in readers:
                row[at] = read(row[at])
        return [self._row(*row) for row in found]

    def _compile(self, dialect: sa.Dialect, size: int) -> tuple[str, tuple[str, ...], bool]:
        keys = [sa.bindparam(f"key_{number}", type_=sa.Text()) for number in range(size)]
        compiled = self._select.where(self._key.in_(keys)).compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)
        result = str(compiled), tuple(_names(compiled)), compiled.positional
        self._compiled[dialect.name, size] = result
        return result


def _names(compiled: SQLCompiler) -> Sequence[str]:
    """The parameter names, in the order of the text where parameters are numbered."""
    return (compiled.positiontup or ()) if compiled.positional else list(compiled.binds)


def _converter(kind: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> Convert | None:
    """Converts a value of this kind for the driver; None: no conversion needed."""
    if type(kind) in (Text, Word):
        return stored_text  # most columns are text: avoid the layers of `TypeDecorator`
    return kind.dialect_impl(dialect).bind_processor(dialect)


def _reader(kind: sa.types.TypeEngine[Any], dialect: sa.Dialect, stored_as: Any) -> Convert | None:
    """Converts the driver's value to this kind; None: no conversion needed. `stored_as`: the driver's word for the value's type."""
    if type(kind) is Text:
        return None
    return kind.dialect_impl(dialect).result_processor(dialect, stored_as)

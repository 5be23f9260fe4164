"""Tables for people: any column sorts, text is searched, some columns filter, and pages follow one another by cursor.

A cursor holds the sorted column's value and the key of the last row that was seen, so a page costs no more than the first
(keyset pagination) and rows added meanwhile move nothing. Rows without a value come last in either direction.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Label, Select, SQLColumnExpression, and_, false, func, or_
from sqlalchemy.orm import Session

from pitchpipe.errors import InvalidInput

Row = dict[str, Any]
_ESCAPE = "\\"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a table shows, before it is sorted, searched and cut into pages."""

    query: Select[Any]
    """FROM and WHERE; its columns are those below."""
    columns: Mapping[str, SQLColumnExpression[Any]]
    key: SQLColumnExpression[Any]
    """Text or number, different in every row."""
    searched: tuple[str, ...] = ()
    """Names of columns of text that a search looks into."""
    filters: tuple[str, ...] = ()
    """Names of columns of text that can be asked for by their exact value."""
    sort: str
    """The first order: a column's name, with a minus for descending."""
    finish: Callable[[Row], Row] = field(default=lambda row: row)
    """What is computed of a row after it was read."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What somebody wants to see of a listing."""

    sort: str = ""
    search: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    cursor: str | None = None
    limit: int = 50


def read(session: Session, listing: Listing, asked: Asked) -> tuple[list[Row], str | None]:
    """Up to `limit` rows, and the cursor of the next page if there is one. Raises InvalidInput for what is not offered."""
    sort = asked.sort or listing.sort
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    if name not in listing.columns:
        raise InvalidInput(f"no column to sort by is called {name[:64]!r}; there are {', '.join(listing.columns)}")
    by = listing.columns[name]
    columns: dict[str, Label[Any]] = {label: column.label(label) for label, column in listing.columns.items()}
    key: Label[Any] = listing.key.label("listing_key")
    query = listing.query.with_only_columns(key, *columns.values(), maintain_column_froms=True)
    query = query.where(*_conditions(listing, asked))
    if asked.cursor is not None:
        value, last = _parsed(asked.cursor, sort)
        for column, given in ((columns[name], value), (key, last)):
            kind = getattr(column.type, "impl_instance", column.type)  # what a type of ours is stored as
            if given is not None and isinstance(given, str) is not (kind.python_type is str):
                raise InvalidInput("the cursor is not one of this table's")
        query = query.where(_after(by, listing.key, descending, value, last))
    order = by.desc() if descending else by.asc()
    rows = session.execute(
        query.order_by(order.nulls_last(), listing.key.desc() if descending else listing.key.asc()).limit(
            asked.limit + 1
        )
    ).all()
    more, rows = len(rows) > asked.limit, rows[: asked.limit]
    following = None
    if more:
        last = rows[-1]._mapping
        following = _cursor(sort, last[name], last["listing_key"])
    return [listing.finish({label: row._mapping[label] for label in listing.columns}) for row in rows], following


def _conditions(listing: Listing, asked: Asked) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if asked.search:
        escaped = asked.search.lower().replace("\x00", "")
        for special in (_ESCAPE, "%", "_"):
            escaped = escaped.replace(special, _ESCAPE + special)
        pattern = f"%{escaped}%"
        found = (func.lower(listing.columns[name]).like(pattern, escape=_ESCAPE) for name in listing.searched)
        conditions.append(or_(false(), *found))
    for name, value in asked.where.items():
        if name not in listing.filters:
            raise InvalidInput(f"rows are not chosen by {name[:64]!r}")
        conditions.append(listing.columns[name] == value)
    return conditions


def _after(
    by: SQLColumnExpression[Any], key: SQLColumnExpression[Any], descending: bool, value: Any, last: Any
) -> ColumnElement[bool]:
    beyond = key < last if descending else key > last
    if value is None:
        return and_(by.is_(None), beyond)
    further = by < value if descending else by > value
    return or_(further, and_(by == value, beyond), by.is_(None))


def _cursor(sort: str, value: Any, key: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps([sort, value, key]).encode()).decode().rstrip("=")


def _parsed(cursor: str, sort: str) -> tuple[Any, Any]:
    try:
        made_for, value, key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError) as error:
        raise InvalidInput("the cursor is not one of this table's") from error
    scalars = (str, int, float)
    if made_for != sort or not isinstance(key, scalars) or not (value is None or isinstance(value, scalars)):
        raise InvalidInput("the cursor is of another order of this table")
    return value, key

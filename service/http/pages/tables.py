"""Tables of pages: which columns a listing shows and how, and the links that sort, search, page and download it.

Their state is in the page's address: `TABLE.sort`, `TABLE.search`, `TABLE.cursor`, and `TABLE.COLUMN` for a filter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from pitchpipe.errors import InvalidInput
from service.http.pages.rendering import SHOWN
from service.store import listing
from service.store.listing import Asked, Listing, Row

PAGE_ROWS = 50
_MAX_CHARS = 512


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    """Of the listing's column."""
    title: str
    shown: str = "text"
    """How a value is shown: a key of SHOWN."""
    link: str = ""
    """An address with {columns} of the row, for values that lead somewhere."""
    help: str = ""

    @property
    def is_number(self) -> bool:
        return self.shown not in ("text", "words", "when", "digest")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A table of a page."""

    id: str
    title: str
    listing: Listing
    columns: tuple[Column, ...]
    choices: Mapping[str, tuple[str, ...]]
    """Filters: the column's name and the values to choose from."""
    empty: str = "Nothing yet."
    rows: int = PAGE_ROWS


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a page is: its path, and the query of its address."""

    path: str
    query: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A column's heading, which sorts by it."""

    column: Column
    href: str
    order: str
    """`ascending`, `descending` or `none`, as assistive technology is told."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value as it is shown."""

    column: Column
    text: str
    href: str | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table, ready for the template."""

    spec: Spec
    asked: Asked
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Row, tuple[Cell, ...]], ...]
    first: str | None
    """Address of the first page, where this is another one."""
    following: str | None
    csv: str
    kept: tuple[tuple[str, str], ...]
    """What of the address a search keeps: other tables' state, this one's order."""


def asked(spec: Spec, place: Place) -> Asked:
    """What the page's address wants of the table. Raises InvalidInput where it is too long."""
    prefix = f"{spec.id}."
    given = {name.removeprefix(prefix): value for name, value in place.query.items() if name.startswith(prefix)}
    if any(len(value) > _MAX_CHARS for value in given.values()):
        raise InvalidInput(f"the address says more about the table than {_MAX_CHARS} characters")
    sort, search, cursor = (given.pop(name, "") for name in ("sort", "search", "cursor"))
    return Asked(
        sort=sort,
        search=search,
        where={name: value for name, value in given.items() if value},
        cursor=cursor or None,
        limit=spec.rows,
    )


def rows_shown(session: Any, spec: Spec, place: Place) -> Table:
    """The rows that the page's address asks for, shown."""
    wanted = asked(spec, place)
    found, cursor = listing.read(session, spec.listing, wanted)
    sort = wanted.sort or spec.listing.sort
    return Table(
        spec=spec,
        asked=wanted,
        headings=tuple(_heading(spec, column, sort, place) for column in spec.columns),
        rows=tuple((row, tuple(_cell(column, row) for column in spec.columns)) for row in found),
        first=_address(spec, place, cursor="") if wanted.cursor else None,
        following=_address(spec, place, cursor=cursor) if cursor else None,
        csv=_address(spec, place, cursor="", csv=spec.id),
        kept=tuple(
            (name, value)
            for name, value in place.query.items()
            if not name.startswith(f"{spec.id}.") or name == f"{spec.id}.sort"
        ),
    )


def _heading(spec: Spec, column: Column, sort: str, place: Place) -> Heading:
    name = "rank" if column.name == "value_secs" else column.name
    order = {name: "ascending", f"-{name}": "descending"}.get(sort, "none")
    # Numbers and times are most wanted largest first.
    first = name if column.shown in ("text", "words", "digest") else f"-{name}"
    wanted = first if order == "none" else (name if order == "descending" else f"-{name}")
    return Heading(column=column, href=_address(spec, place, sort=wanted, cursor=""), order=order)


def _cell(column: Column, row: Row) -> Cell:
    value = row[column.name]
    href = column.link.format_map(_Quoted(row)) if column.link and value is not None else None
    return Cell(column=column, text=SHOWN[column.shown](value), href=href)


class _Quoted(dict[str, Any]):
    """A row whose values are read as parts of an address."""

    def __getitem__(self, name: str) -> str:
        return quote(str(super().__getitem__(name)), safe="")


def _address(spec: Spec, place: Place, csv: str = "", **changes: str) -> str:
    """The page's address with changes of this table's state; what is empty is left out."""
    query = dict(place.query)
    query.update({f"{spec.id}.{name}": value for name, value in changes.items()})
    if csv:
        query["csv"] = csv
    kept = {name: value for name, value in query.items() if value}
    return f"{place.path}?{urlencode(kept)}" if kept else place.path

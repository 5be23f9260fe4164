"""Lists, newest first, a page at a time. A cursor is the identifier of the last row seen."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from pitchpipe.errors import InvalidInput
from pitchpipe.wire.ids import check_id

Row = TypeVar("Row")


def page(
    session: Session,
    query: Select[Row],
    key: InstrumentedAttribute[str],
    prefix: str,
    cursor: str | None,
    limit: int,
) -> tuple[list[Row], str | None]:
    """Up to `limit` rows after `cursor`, and the cursor of the next page if there is one.

    Identifiers sort by creation time, so rows added meanwhile never move a later page.
    """
    if limit < 1:
        raise InvalidInput("a page needs a limit of at least 1")
    if cursor is not None:
        query = query.where(key < check_id(cursor, prefix))
    rows: list[Any] = list(session.scalars(query.order_by(key.desc()).limit(limit + 1)))
    more = len(rows) > limit
    rows = rows[:limit]
    return rows, (str(getattr(rows[-1], key.key)) if more else None)

"""A page of a report as text, Markdown and HTML. Names in it are others': HTML and Markdown are escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pitchpipe.errors import InvalidInput

WIDEST = 48
"""Characters of a cell in the text; the other forms have them all."""
_STYLE = """
.pitchpipe { font: 14px/1.45 system-ui, sans-serif; color-scheme: light dark; max-width: 62rem; }
.pitchpipe table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
.pitchpipe th, .pitchpipe td { padding: .15rem .8rem .15rem 0; text-align: right; border-bottom: 1px solid #8884;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.pitchpipe th:first-child, .pitchpipe td:first-child, .pitchpipe .facts td { text-align: left; }
.pitchpipe svg { display: block; max-width: 100%; height: auto; margin-bottom: 1.5rem; }
"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of one length. The first column is text; the others are numbers where there are headings."""

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is shown, in its order."""

    title: str
    notes: Sequence[str]
    tables: Sequence[Table]
    plots: Sequence[str]
    """SVG, escaped already."""


def text(page: Page) -> str:
    """For a terminal of any width."""
    return "\n".join([page.title, *page.notes, *(line for table in page.tables for line in _text_table(table))])


def _text_table(table: Table) -> Iterator[str]:
    shown = [table.headings, *table.rows] if table.headings else table.rows
    rows = [[_cut(cell) if table.headings else cell for cell in row] for row in shown]
    yield ""
    if not rows:
        yield f"{table.title}: none"
        return
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if at and table.headings else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _cut(cell: str) -> str:
    return cell if len(cell) <= WIDEST else cell[: WIDEST - 1] + "…"


def markdown(page: Page) -> str:
    """GitHub's tables; no plots."""
    parts = [f"# {_plain(page.title)}", *map(_plain, page.notes)]
    for table in page.tables:
        parts.append(f"## {table.title}")
        rows = [[_plain(cell) for cell in row] for row in table.rows]
        width = len(table.headings or (rows[0] if rows else ()))
        headings = [_plain(one) for one in table.headings] or [""] * width
        rule = ["---", *(["---:"] if table.headings else ["---"]) * (width - 1)]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in [headings, rule, *rows]))
    return "\n\n".join(parts) + "\n"


def _plain(cell: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(cell.split()))


def html_fragment(page: Page) -> str:
    """For a notebook."""
    return f'<style>{_STYLE}</style><div class="pitchpipe">{"".join(_html(page))}</div>'


def html_document(page: Page) -> str:
    """One file. Its policy lets it load nothing and run nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    title = html.escape(page.title)
    body = f"<body>{html_fragment(page)}</body>"
    return f'<!doctype html><html lang="en"><head>{head}<title>{title}</title></head>{body}</html>\n'


def write_html(page: Page, path: Path) -> None:
    """Writes `html_document`. Raises InvalidInput where that cannot be."""
    try:
        path.write_text(html_document(page), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from error


def _html(page: Page) -> Iterator[str]:
    yield f"<h1>{html.escape(page.title)}</h1>"
    for note in page.notes:
        yield f"<p>{html.escape(note)}</p>"
    for at, table in enumerate(page.tables):
        yield f"<h2>{html.escape(table.title)}</h2>"
        yield "<table>" if table.headings else '<table class="facts">'
        if table.headings:
            yield f"<thead><tr>{_cells('th', table.headings)}</tr></thead>"
        yield "<tbody>" + "".join(f"<tr>{_cells('td', row)}</tr>" for row in table.rows) + "</tbody></table>"
        if at == 0:
            yield from page.plots


def _cells(tag: str, row: Sequence[str]) -> str:
    return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)

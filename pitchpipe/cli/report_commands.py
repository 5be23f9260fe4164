"""Reports of jobs: one as text, HTML, Markdown or JSON, or two side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pitchpipe.cli.options import HERE, JobId, Token, Url, client_of
from pitchpipe.client import Client
from pitchpipe.tuning import rendering
from pitchpipe.tuning.job import history
from pitchpipe.tuning.rendering import Page
from pitchpipe.tuning.report import Report, compare, report_of

Html = Annotated[Path | None, typer.Option("--html", help="write one file with its plots, which loads nothing")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object")]
Markdown = Annotated[bool, typer.Option("--markdown", help="print Markdown")]


def add_commands(app: typer.Typer) -> None:
    """Attaches every command of this file."""
    app.command("report")(show_report)
    app.command("compare")(show_comparison)


def show_report(
    job: JobId,
    url: Url = HERE,
    token: Token = "",
    html: Html = None,
    as_json: Json = False,
    markdown: Markdown = False,
) -> None:
    """What a job has brought: the whole model, and each task's share, gain, trials and distance from its bound."""
    with client_of(url, token) as client:
        report = _report(client, job)
    _show(report.page(), report.to_json(), html, as_json=as_json, markdown=markdown)


def show_comparison(
    first: JobId,
    second: JobId,
    url: Url = HERE,
    token: Token = "",
    html: Html = None,
    as_json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Two jobs side by side, task by task: before and after an upgrade, one device and another, two budgets."""
    with client_of(url, token) as client:
        reports = [_report(client, job) for job in (first, second)]
    told = json.dumps([report.model_dump(mode="json") for report in reports])
    _show(compare(*reports), told, html, as_json=as_json, markdown=markdown)


def _report(client: Client, job: str) -> Report:
    view = client.job(job)
    return report_of(view, history(client, view))


def _show(page: Page, told: str, html: Path | None, *, as_json: bool, markdown: bool) -> None:
    if html is not None:
        rendering.write_html(page, html)
    if as_json:
        print(told)
    elif markdown:
        print(rendering.markdown(page), end="")
    elif html is None:
        print(rendering.text(page))

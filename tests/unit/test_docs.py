"""The documentation names everything there is: settings, routes, commands, exit codes; and its links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from pitchpipe import errors
from pitchpipe.cli.main import app as commands
from service.blobs import Blobs
from service.db import Database
from service.http.app import create_app
from service.settings import Settings
from service.wake import Wake

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs/operations.md").read_text()
HTTP = (ROOT / "docs/http.md").read_text()
PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('docs') / 'empty.db'}")
    document = create_app(Settings(), database, Blobs("memory:///"), Wake()).openapi()
    database.close()
    return {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}


def leaves(command: object, path: str) -> Iterator[str]:
    groups = getattr(command, "commands", None)
    if groups is None:
        yield path
    else:
        for name, inner in groups.items():
            yield from leaves(inner, f"{path} {name}")


def first_cells(page: str, pattern: str) -> set[str]:
    """First cells of table rows that look like `pattern`."""
    return {cell for cell in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE) if re.fullmatch(pattern, cell)}


def test_every_setting_is_in_the_operations_page_and_nothing_else() -> None:
    server = OPERATIONS[OPERATIONS.index("## Settings") : OPERATIONS.index("Of clients and workers")]
    settings = {f"PITCHPIPE_{name.upper()}" for name in Settings.model_fields}
    assert first_cells(server, "PITCHPIPE_.*") == settings


def test_every_environment_variable_that_the_code_reads_is_documented() -> None:
    code = "".join(
        path.read_text()
        for part in ("pitchpipe", "tuner", "service", "workers")
        for path in (ROOT / part).rglob("*.py")
    )
    assert set(re.findall(r"\bPITCHPIPE_[A-Z_]*[A-Z]", code)) <= set(
        re.findall(r"\bPITCHPIPE_[A-Z_]*[A-Z]", OPERATIONS)
    )


def test_every_plain_default_is_the_documented_one() -> None:
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, (int, float)):
            row = next(line for line in OPERATIONS.splitlines() if line.startswith(f"| `PITCHPIPE_{name.upper()}` |"))
            amount, _, unit = row.split("|")[2].strip().partition(" ")
            assert float(amount) * {"": 1, "MiB": 1 << 20}[unit] == field.default, name


def test_every_route_is_in_the_http_page_and_nothing_else(routes: set[str]) -> None:
    assert first_cells(HTTP, "(GET|POST|PUT|PATCH|DELETE) .*") == routes


def test_every_command_is_in_the_operations_page_and_nothing_else() -> None:
    assert first_cells(OPERATIONS, "pitchpipe .*") >= set(leaves(typer.main.get_command(commands), "pitchpipe"))
    commanded = OPERATIONS[OPERATIONS.index("## Commands") : OPERATIONS.index("## Exit codes")]
    assert first_cells(commanded, "pitchpipe .*") == set(leaves(typer.main.get_command(commands), "pitchpipe"))


def test_every_exit_code_is_explained() -> None:
    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    explained = re.findall(r"^\| (\d+) \|", OPERATIONS[OPERATIONS.index("## Exit codes") :], re.MULTILINE)
    assert {str(code) for code in codes | {0, 130}} == set(explained)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_files_that_the_documentation_names_are_there(page: Path) -> None:
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
    named = re.findall(rf"\b(?:{folders})/[\w/.-]+\.(?:py|md|service|lock)\b", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_folder_is_in_the_table_of_the_architecture_in_the_order_of_the_tree() -> None:
    told = re.findall(r"^\| `([^`]+/)` \|", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    parts = ("pitchpipe", "tuner", "service", "workers")
    folders = [
        str(file.parent.relative_to(ROOT)) + "/" for part in parts for file in (ROOT / part).rglob("__init__.py")
    ]
    order = sorted(folders, key=lambda folder: (parts.index(folder.split("/")[0]), folder))
    assert told == [*order, "migrations/"]


def test_the_guide_runs_tests_and_targets_of_make_that_are_there() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert (
        set(re.findall(r"`make ([a-z-]+)", guide)) | set(re.findall(r"^make ([a-z-]+)", guide, re.MULTILINE)) <= targets
    )
    for argument in re.findall(r"make test T=(?:'([^']+)'|(\S+))", guide):
        for path in "".join(argument).split(" -k ")[0].split():
            file, _, name = path.partition("::")
            assert (ROOT / file).exists(), path
            assert not name or f"def {name}(" in (ROOT / file).read_text(), path


def test_every_target_that_is_called_by_hand_is_explained_by_make_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:"))
    told = set(re.findall(r"^#   make ([a-z-]+)", makefile, re.MULTILINE)) | {"setup", "bench-setup"}
    assert set(phony.split()[1:]) == told


def test_every_command_that_a_page_names_is_one() -> None:
    known = set(leaves(typer.main.get_command(commands), "pitchpipe"))
    groups = {leaf.rpartition(" ")[0] for leaf in known}
    for page in PAGES:
        for first, second in re.findall(r"`(?:\.venv/bin/)?(pitchpipe [a-z-]+\b)( [a-z-]+\b)?", page.read_text()):
            named = first in known or (first in groups and (not second or first + second in known))
            assert named or first.startswith("pitchpipe -"), f"{page}: {first}{second}"

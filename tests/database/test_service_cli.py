"""The service's commands on a SQLite file: data on stdout, notes on stderr, errors as errors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from pitchpipe.errors import InvalidInput, NotFound, SchemaMismatch, Unauthorized
from pitchpipe.wire.job import Scope
from service.cli import add_commands
from service.db import Database
from service.settings import Settings
from service.store import tokens


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    add_commands(made)
    return made


def run(app: typer.Typer, *arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_made_token_is_all_of_stdout_and_works_until_it_is_revoked(app: typer.Typer, sqlite_url: str) -> None:
    made = run(
        app, "tokens", "create", "--project", "p", "--scope", "worker", "--label", "rack 3", "--database", sqlite_url
    )
    token = made.stdout.strip()
    database = Database(sqlite_url)
    with database.reading() as session:
        principal = tokens.authenticate(session, token)
    assert isinstance(principal, tokens.Principal)
    assert (principal.project_name, principal.scope) == ("p", Scope.WORKER)
    assert principal.token_id in made.stderr
    assert token not in made.stderr
    listed = json.loads(run(app, "tokens", "list", "--json", "--database", sqlite_url).stdout)
    assert [(view["id"], view["label"]) for view in listed] == [(principal.token_id, "rack 3")]
    run(app, "tokens", "revoke", principal.token_id, "--database", sqlite_url)
    with database.reading() as session, pytest.raises(Unauthorized):
        tokens.authenticate(session, token)
    assert "revoked" in run(app, "tokens", "list", "--database", sqlite_url).stdout
    database.close()


def test_the_first_operator_is_made_in_the_database_itself_and_has_no_project(
    app: typer.Typer, sqlite_url: str
) -> None:
    made = run(app, "tokens", "create", "--scope", "operator", "--label", "on call", "--database", sqlite_url)
    assert "scope operator of all projects' tokens" in made.stderr
    database = Database(sqlite_url)
    with database.reading() as session:
        operator = tokens.authenticate(session, made.stdout.strip())
        assert tokens.list_(session)[0][0].project is None
    database.close()
    assert isinstance(operator, tokens.Operator)
    line = next(line for line in run(app, "tokens", "list", "--database", sqlite_url).stdout.splitlines())
    assert line.split() == [operator.token_id, "-", "operator", "valid", "on", "call"]
    with pytest.raises(InvalidInput, match="no project"):
        run(app, "tokens", "create", "--scope", "operator", "--project", "p", "--database", sqlite_url)
    made = run(app, "tokens", "create", "--database", sqlite_url)
    assert "project default" in made.stderr


def test_a_bad_project_name_and_an_unknown_token_are_told(app: typer.Typer, sqlite_url: str) -> None:
    with pytest.raises(InvalidInput, match="project"):
        run(app, "tokens", "create", "--project", "No Spaces", "--database", sqlite_url)
    with pytest.raises(NotFound, match="tok_x"):
        run(app, "tokens", "revoke", "tok_x", "--database", sqlite_url)
    assert run(app, "tokens", "create", "--scope", "god", "--database", sqlite_url).exit_code == 2


def test_a_database_is_checked_upgraded_and_checked_again(app: typer.Typer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    with pytest.raises(SchemaMismatch, match="db upgrade"):
        run(app, "db", "check", "--database", url)
    with pytest.raises(SchemaMismatch, match="db upgrade"):
        run(app, "tokens", "create", "--database", url)
    run(app, "db", "upgrade", "--database", url)
    assert "ready" in run(app, "db", "check", "--database", url).stderr


def test_a_setting_that_is_not_valid_is_named(
    app: typer.Typer, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PITCHPIPE_MAX_REQUESTS", "none")
    with pytest.raises(InvalidInput, match="max_requests"):
        run(app, "server", "--database", sqlite_url)


def test_settings_come_from_the_environment_and_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PITCHPIPE_LEASE_TTL_SECS", "7")
    monkeypatch.setenv("PITCHPIPE_BOOTSTRAP_TOKEN", "x" * 32)
    settings = Settings()
    assert settings.lease_ttl_secs == 7
    assert "x" * 32 not in repr(settings)
    with pytest.raises(ValueError, match="frozen"):
        settings.lease_ttl_secs = 8.0  # type: ignore[misc]


def test_without_the_extra_the_commands_are_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pitchpipe\[server\]"):
        add_commands(typer.Typer())


def test_a_coordinator_of_its_own_is_refused_on_sqlite(app: typer.Typer, sqlite_url: str) -> None:
    with pytest.raises(InvalidInput, match="--with-coordinator"):
        run(app, "coordinator", "--database", sqlite_url)

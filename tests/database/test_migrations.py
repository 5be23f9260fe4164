"""The schema: migrations make exactly what tables.py declares, on both databases, and refuse what they do not know."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError

import migrations
from migrations import schema
from pitchpipe.errors import Overloaded, SchemaMismatch, Unauthorized
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Scope, TokenRequest
from pitchpipe.wire.lease import Purpose
from service.db import Database
from service.store import cost_models, jobs, records, tokens
from service.tables import Base
from tests.postgres import PostgresServer
from tests.scene import DEVICE, TARGET, WORKLOAD, Scene, best, candidates, record


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'deep' / 'er' / 'empty.db'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        with server.fresh("template1") as url:
            yield url


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    opened = Database(empty_url)
    yield opened
    opened.close()


def test_the_schema_from_migrations_is_the_one_declared(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_columns_keys_and_indexes_are_the_ones_declared_with_their_conditions(empty: Database) -> None:
    empty.migrate()
    migrated = _definitions(empty)
    with empty.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
    assert len(migrated) > 150
    assert _definitions(empty) == migrated


def test_migrating_twice_is_migrating_once(empty: Database) -> None:
    empty.migrate()
    empty.migrate()
    empty.check()


def test_processes_that_start_together_migrate_once(empty_url: str) -> None:
    databases = [Database(empty_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Database.migrate, databases))
    for database in databases:
        database.check()
        database.close()


def test_a_database_without_a_schema_is_refused_with_the_command_to_run(empty: Database) -> None:
    with pytest.raises(SchemaMismatch, match="pitchpipe db upgrade"):
        empty.check()


def test_a_database_newer_than_the_code_is_refused_and_left_alone(database: Database) -> None:
    with database.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for refuse in (database.check, database.migrate):
        with pytest.raises(SchemaMismatch, match=r"9999.*newer pitchpipe"):
            refuse()
    with database.reading() as session:
        assert session.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"


def test_a_migration_that_fails_leaves_nothing_behind(empty: Database) -> None:
    with empty.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE workers (mine INTEGER)")
    with pytest.raises(Exception, match="workers"):
        empty.migrate()
    assert inspect(empty.engine).get_table_names() == ["workers"]


def test_the_first_revision_can_be_undone_and_done_again(empty: Database) -> None:
    empty.migrate()
    for _ in range(2):
        config = schema.config()
        with empty.migrating() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "base")
        assert set(inspect(empty.engine).get_table_names()) <= {"alembic_version"}
        empty.migrate()
    empty.check()


def test_an_effort_goes_down_to_workload_and_target_and_up_again_to_each_best_with_its_driver(empty: Database) -> None:
    empty.migrate()
    scene = Scene(empty)
    device = DEVICE.model_copy(update={"driver": "7.1"})
    found = record(candidates(0, 1)[0], device=device)
    with empty.transaction() as session:
        records.add(session, scene.project, [found])
        records.set_best(session, scene.project, WORKLOAD.digest, TARGET, best(found), effort=64.0)
    scene.issue(candidates(0, 1), Purpose.REPLAY)
    config = schema.config()
    with empty.migrating() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0008")
        assert connection.execute(text("SELECT workload, effort FROM settled")).all() == [(WORKLOAD.digest, 64.0)]
        assert connection.execute(text("SELECT state FROM candidates")).scalars().all() == ["cancelled"]
    empty.migrate()
    with empty.reading() as session:
        rows = session.execute(text("SELECT effort, owed, driver FROM best")).all()
    assert rows == [(64.0, 0.0, "7.1")]


def test_tokens_keep_project_and_scope_going_up_and_operators_are_forgotten_going_down(empty: Database) -> None:
    config = schema.config()
    with empty.migrating() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0009")
        connection.execute(text("INSERT INTO projects (id, name, created_at) VALUES ('prj_1', 'vision', 1)"))
        for scope, revoked in (("admin", "NULL"), ("worker", "2.5")):
            connection.execute(
                text(
                    "INSERT INTO tokens (id, project, scope, label, digest, created_at, revoked_at) "
                    f"VALUES ('tok_{scope}', 'prj_1', '{scope}', 'rack 4', '{sha256(scope.encode())}', 1, {revoked})"
                )
            )
        before = connection.execute(text("SELECT * FROM tokens ORDER BY id")).mappings().all()
    empty.migrate()
    with empty.transaction() as session:
        assert session.execute(text("SELECT * FROM tokens ORDER BY id")).mappings().all() == before
        admin = tokens.authenticate(session, "admin")
        assert isinstance(admin, tokens.Principal)
        assert (admin.project_name, admin.scope) == ("vision", Scope.ADMIN)
        with pytest.raises(Unauthorized):
            tokens.authenticate(session, "worker")
        tokens.create(session, TokenRequest(scope=Scope.OPERATOR))
    with empty.migrating() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0009")
        assert connection.execute(text("SELECT * FROM tokens ORDER BY id")).mappings().all() == before
    with pytest.raises(IntegrityError), empty.transaction() as session:
        session.execute(text("UPDATE tokens SET project = NULL"))
    with empty.transaction() as session:  # The check has gone with the rest.
        session.execute(text("UPDATE tokens SET scope = 'operator' WHERE id = 'tok_admin'"))


def test_the_newest_cost_model_of_each_kind_of_target_serves_on(empty: Database) -> None:
    config = schema.config()
    with empty.migrating() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0012")
        connection.execute(text("INSERT INTO projects (id, name, created_at) VALUES ('prj_1', 'vision', 1)"))
        for version, kind in ((1, "llvm"), (2, "llvm"), (1, "cuda")):
            connection.execute(
                text(
                    "INSERT INTO cost_models (id, project, target_kind, version, digest, metrics, samples, created_at) "
                    f"VALUES ('cm_{kind}{version}', 'prj_1', '{kind}', {version}, 'd', '{{}}', 9, 1)"
                )
            )
    empty.migrate()
    with empty.reading() as session:
        views = cost_models.list_(session, "prj_1", None, None, 10)[0]
        assert {view.id: view.state.value for view in views} == {
            "cm_llvm1": "replaced",
            "cm_llvm2": "serving",
            "cm_cuda1": "serving",
        }
        assert [change.version for change in cost_models.get(session, "prj_1", "cm_llvm1").changes] == [2]
    with empty.migrating() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0012")
        assert connection.execute(text("SELECT count(*) FROM cost_models")).scalar_one() == 3


def test_a_job_that_goes_down_and_up_again_has_lost_its_trace_and_nothing_else(empty: Database) -> None:
    empty.migrate()
    scene = Scene(empty)
    with empty.transaction() as session:
        session.execute(text("UPDATE jobs SET traceparent = 'a trace'"))
        before = jobs.get(session, scene.project, scene.job)
        assert jobs.traceparent(session, scene.job) == "a trace"
    config = schema.config()
    with empty.migrating() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0014")
    empty.migrate()
    with empty.reading() as session:
        assert jobs.get(session, scene.project, scene.job) == before
        assert jobs.traceparent(session, scene.job) is None


def test_migrations_are_found_from_any_folder(tmp_path: Path) -> None:
    root = Path(migrations.__file__).parents[1]
    code = f"from service.db import Database; d = Database('sqlite:///{tmp_path / 'x.db'}'); d.migrate(); d.check()"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(root)}, check=True, timeout=300)


def test_a_database_that_is_away_is_an_overload_and_not_a_crash(tmp_path: Path) -> None:
    away = Database(f"postgresql://nobody@/nothing?host={tmp_path}")
    for ask in (away.check, away.migrate):
        with pytest.raises(Overloaded, match="did not answer"):
            ask()
    with pytest.raises(Overloaded), away.transaction() as session:
        session.execute(text("SELECT 1"))


_SQLITE = """
    SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL
    UNION ALL
    SELECT t.name || '.' || c.name, c.type || ' ' || c."notnull" || ' ' || c.pk
    FROM sqlite_master t JOIN pragma_table_info(t.name) c WHERE t.type = 'table'
    UNION ALL
    SELECT t.name || '.' || f."from" || ' -> ' || f."table", f.seq || ' ' || f."to"
    FROM sqlite_master t JOIN pragma_foreign_key_list(t.name) f WHERE t.type = 'table'
    UNION ALL
    SELECT t.name || ' ' || i.origin || ' ' || group_concat(x.name), i."unique"
    FROM sqlite_master t JOIN pragma_index_list(t.name) i JOIN pragma_index_info(i.name) x WHERE t.type = 'table'
    GROUP BY t.name, i.name
"""
_POSTGRESQL = """
    SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL
    SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL
    SELECT table_name || '.' || column_name, concat_ws(' ', data_type, character_maximum_length, is_nullable)
    FROM information_schema.columns WHERE table_schema = 'public'
"""


def _definitions(database: Database) -> dict[str, object]:
    """What the database itself says of its columns, keys and indexes, conditions included."""
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(_SQLITE if database.is_sqlite else _POSTGRESQL).all()
    return {name: definition for name, definition in rows if "alembic_version" not in name}

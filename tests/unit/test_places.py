from __future__ import annotations

from pathlib import Path

import pytest

from pitchpipe.places import default_blobs, default_database, own_database
from service.blobs import Blobs
from service.settings import Settings


def test_the_server_and_the_commands_have_one_default_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PITCHPIPE_DATABASE_URL", "PITCHPIPE_BLOB_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "of a user"))
    assert Settings().database_url == default_database()
    assert Settings().blob_url == default_blobs()
    Blobs(default_blobs()).put(b"x")
    assert (tmp_path / "of a user" / "pitchpipe" / "blobs" / "sha256").is_dir()


def test_the_commands_database_is_that_of_the_environment_where_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PITCHPIPE_DATABASE_URL", raising=False)
    assert own_database() == default_database()
    monkeypatch.setenv("PITCHPIPE_DATABASE_URL", "sqlite:////srv/tuned.db")
    assert own_database() == "sqlite:////srv/tuned.db"

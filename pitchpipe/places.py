"""Where the service keeps what it knows when it is not told: one place for the server, the commands and torch.compile."""

from __future__ import annotations

import os

from platformdirs import user_data_path


def default_database() -> str:
    """URL of a SQLite file in the user's data folder."""
    return f"sqlite:///{user_data_path('pitchpipe') / 'pitchpipe.db'}"


def own_database() -> str:
    """URL of the database that commands and torch.compile use on this machine: PITCHPIPE_DATABASE_URL, else the default."""
    return os.environ.get("PITCHPIPE_DATABASE_URL") or default_database()


def default_blobs() -> str:
    """URL of a folder beside the default database."""
    return (user_data_path("pitchpipe") / "blobs").as_uri()

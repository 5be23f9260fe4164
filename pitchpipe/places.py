"""Where the service keeps what it knows when it is not told: one place for the server, the commands and torch.compile."""

from __future__ import annotations

from platformdirs import user_data_path


def default_database() -> str:
    """URL of a SQLite file in the user's data folder."""
    return f"sqlite:///{user_data_path('pitchpipe') / 'pitchpipe.db'}"


def default_blobs() -> str:
    """URL of a folder beside the default database."""
    return (user_data_path("pitchpipe") / "blobs").as_uri()

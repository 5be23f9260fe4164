"""Answers of look-ups kept on disk with their tags: a deployment that starts again is told "unchanged", and has what it was
told before where the service is away.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from pitchpipe.wire.ids import json_digest
from pitchpipe.wire.record import LookupRequest, LookupResponse

_FOLDER = "lookups"


class KeptAnswer:
    """The answer to one request to one service, in a file of its own: a line with its tag, then the answer.

    Any number of processes may read and write it; a reader sees one writer's whole file or none. What cannot be read or
    written costs a longer answer and no more, so neither raises.
    """

    def __init__(self, folder: Path, url: str, request: LookupRequest) -> None:
        name = json_digest([url, request.model_dump(mode="json", by_alias=True)])
        self._path = folder / _FOLDER / f"{name}.json"

    def read(self) -> tuple[str, LookupResponse] | None:
        """The tag and the answer, or None where there is none, or a damaged one."""
        try:
            tag, _, body = self._path.read_text().partition("\n")
            return (tag, LookupResponse.model_validate_json(body, extra="ignore")) if tag.isascii() and tag else None
        except (OSError, UnicodeDecodeError, ValidationError):
            return None

    def write(self, tag: str, answer: LookupResponse) -> None:
        """Replaces what is kept."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, draft = tempfile.mkstemp(dir=self._path.parent)
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(f"{tag}\n{answer.model_dump_json(by_alias=True)}")
                Path(draft).replace(self._path)
            except OSError:
                Path(draft).unlink(missing_ok=True)
                raise

"""Files that can run code when they are read, converted where their owner says so: .pt2 archives and TVMScript."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pitchpipe.errors import InvalidModel
from pitchpipe.wire.job import ModelFormat
from tuner.ingest import ingest_bytes

if TYPE_CHECKING:
    import numpy as np


def convert_trusted(path: Path, model_format: ModelFormat) -> tuple[bytes, dict[str, np.ndarray]]:
    """The `relax` format of a trusted file and its weights by name (TVMScript has none). Raises InvalidModel."""
    if model_format is ModelFormat.PT2:
        from tuner.ingest.torch_export import from_pt2

        return from_pt2(path, trusted=True)
    if model_format is ModelFormat.TVMSCRIPT:
        return ingest_bytes(path.read_bytes(), model_format, trusted=True), {}
    raise InvalidModel(f"a {model_format} file needs no trust")

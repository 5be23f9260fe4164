"""Files that are never sent: those that can run code when they are read, and those that hold weights beside the graph.

Converted where they lie. PyTorch's archives and TVMScript need their owner's word that they are his; StableHLO and TFLite
are only data, and are parsed in the disposable child like an upload.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pitchpipe.errors import InvalidInput, InvalidModel
from pitchpipe.frontends import FRONTENDS
from pitchpipe.wire.job import ModelFormat
from tuner.ingest import convert, ingest_bytes

if TYPE_CHECKING:
    import numpy as np


def convert_local(
    source: Path | bytes,
    model_format: ModelFormat,
    example_inputs: Sequence[Any] | None = None,
    *,
    trusted: bool = False,
) -> tuple[bytes, dict[str, np.ndarray]]:
    """The `relax` format of a file and its weights by name (TVMScript has none).

    TorchScript needs `example_inputs`, as it does not tell their shapes. Raises InvalidInput, for a file that can run code
    and is not `trusted` too.
    """
    frontend = FRONTENDS[model_format]
    if frontend.runs_code and not trusted:
        raise InvalidInput(f"opening a {model_format} file can run code: trust it explicitly to go on")
    if frontend.opened_in_process:
        if not isinstance(source, Path):
            raise InvalidInput(f"a {model_format} model is read from a file")
        converted: tuple[bytes, dict[str, np.ndarray]] = resolve_name(frontend.reader)(source, example_inputs)
        return converted
    if not frontend.is_local:
        raise InvalidModel(f"a {model_format} model is not converted here")
    data = source.read_bytes() if isinstance(source, Path) else source
    if frontend.holds_weights:
        return convert(data, model_format)
    return ingest_bytes(data, model_format, trusted=True), {}

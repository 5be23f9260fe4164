"""Files that are never sent: those that can run code when they are read, and those that hold weights beside the graph.

Converted where they lie. PyTorch's archives and TVMScript need their owner's word that they are his; StableHLO and TFLite
are only data, and are parsed in the disposable child like an upload.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pitchpipe.errors import InvalidInput, InvalidModel
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
    if model_format.runs_code and not trusted:
        raise InvalidInput(f"opening a {model_format} file can run code: trust it explicitly to go on")
    if isinstance(source, Path) and model_format is ModelFormat.PT2:
        from tuner.ingest.torch_export import from_pt2

        return from_pt2(source)
    if isinstance(source, Path) and model_format is ModelFormat.TORCHSCRIPT:
        from tuner.ingest.torch_export import from_torchscript

        return from_torchscript(source, example_inputs)
    data = source.read_bytes() if isinstance(source, Path) else source
    if model_format is ModelFormat.TVMSCRIPT:
        return ingest_bytes(data, model_format, trusted=True), {}
    if model_format in (ModelFormat.STABLEHLO, ModelFormat.TFLITE):
        return convert(data, model_format)
    raise InvalidModel(f"a {model_format} model is not converted here")

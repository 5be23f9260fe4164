"""What models can be written in: one table of frontends.

Readers and frameworks are named, not imported: they need a compiler, or a library of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from pitchpipe.wire.job import ModelFormat


@dataclass(frozen=True, kw_only=True)
class Frontend:
    """How files of one format become Relax."""

    format: ModelFormat
    suffixes: tuple[str, ...]
    """Of files; none for what only comes over HTTP or from an option."""
    reader: str
    """Module and function. (bytes, limits) -> IngestedModel, or with `holds_weights` -> (relax, weights), in the child with
    limits; with `opened_in_process` (path, example inputs or None) -> (relax, weights by name)."""
    runs_code: bool = False
    """Whether opening such a file can run code of whoever made it: then only its owner opens it, and says so."""
    holds_weights: bool = False
    """Whether the graph cannot be told from the weights without reading all: then it is converted where it lies."""
    opened_in_process: bool = False
    """Whether the library that opens it needs more than the child with limits has."""
    library: str = ""
    """What the reader imports that not every installation has, and the extra of pyproject.toml that brings it."""
    extra: str = ""
    framework: str = ""
    """Module and function that make a runner of the framework that the file came from, of a ModelFile
    (pitchpipe/model/reference). Empty where the format tells no framework."""

    @property
    def is_local(self) -> bool:
        """Whether such a file is converted to the `relax` format on its owner's machine and never sent."""
        return self.runs_code or self.holds_weights


_READERS, _RUNNERS = "tuner.ingest", "pitchpipe.model.reference"
FRONTENDS: dict[ModelFormat, Frontend] = {
    each.format: each
    for each in (
        Frontend(
            format=ModelFormat.ONNX,
            suffixes=(".onnx",),
            reader=f"{_READERS}.onnx_reader:read_onnx",
            framework=f"{_RUNNERS}.onnx_runner:from_file",
        ),
        Frontend(format=ModelFormat.RELAX, suffixes=(".json",), reader=f"{_READERS}.relax_reader:read_relax"),
        Frontend(
            format=ModelFormat.TVMSCRIPT,
            suffixes=(".py",),
            reader=f"{_READERS}.relax_reader:read_tvmscript",
            runs_code=True,
        ),
        Frontend(
            format=ModelFormat.METASCHEDULE, suffixes=(), reader=f"{_READERS}.metaschedule_reader:read_metaschedule"
        ),
        Frontend(
            format=ModelFormat.PT2,
            suffixes=(".pt2",),
            reader=f"{_READERS}.torch_export:from_pt2",
            runs_code=True,
            opened_in_process=True,
            library="torch",
            extra="torch",
            framework=f"{_RUNNERS}.torch_runner:from_pt2",
        ),
        Frontend(
            format=ModelFormat.TORCHSCRIPT,
            suffixes=(".pt", ".torchscript"),
            reader=f"{_READERS}.torch_export:from_torchscript",
            runs_code=True,
            opened_in_process=True,
            library="torch",
            extra="torch",
            framework=f"{_RUNNERS}.torch_runner:from_torchscript",
        ),
        Frontend(
            format=ModelFormat.STABLEHLO,
            suffixes=(".mlir", ".stablehlo"),
            reader=f"{_READERS}.stablehlo_reader:read_stablehlo",
            holds_weights=True,
            library="jaxlib",
            extra="jax",
            framework=f"{_RUNNERS}.jax_runner:from_file",
        ),
        Frontend(
            format=ModelFormat.TFLITE,
            suffixes=(".tflite",),
            reader=f"{_READERS}.tflite_reader:read_tflite",
            holds_weights=True,
            library="tflite",
            extra="tflite",
            framework=f"{_RUNNERS}.tflite_runner:from_file",
        ),
    )
}
SUFFIXES = {suffix: each.format for each in FRONTENDS.values() for suffix in each.suffixes}

"""What a model came from, and how its framework is asked what the outputs are.

Modules and functions are run where they are, on copies. Files are run in a child with limits on time and memory
(child.py), and for them `bytes` of a file or its path is all that has to travel to another process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pitchpipe.arrays import save_arrays
from pitchpipe.model.reference.expected import INPUT_SETS, CannotRun, Expected, expect
from pitchpipe.wire.job import ModelFormat

FILE_SECS = 600.0
"""Longest run of a file's framework: its import, and about seven runs of the model."""
MEMORY_BYTES = 64 << 30
"""Address space of the child, most of which frameworks reserve and never touch ..."""
MEMORY_PER_BYTE = 16
"""... and for each byte of the file."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model as its framework knows it."""

    origin: Any = None
    """What the user gave: a module, a function, a path, bytes. Nothing changes it."""
    trust: bool = False
    """Whether a file that can run code may be opened."""

    def expected(self, weights: Mapping[str, Any], seed: int = 0, most: int = INPUT_SETS) -> Expected:
        """At most `most` input sets and the framework's outputs on them.

        `weights` are the model's by name, for a file that they were taken out of. Raises CannotRun.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoSource(Source):
    """Nothing to compare with."""

    reason: str = "what it was made from is not here"

    def expected(self, weights: Mapping[str, Any], seed: int = 0, most: int = INPUT_SETS) -> Expected:  # noqa: ARG002
        raise CannotRun(self.reason)


@dataclass(frozen=True, kw_only=True)
class ModuleSource(Source):
    """A torch.nn.Module or TorchScript, run in eager in this process."""

    examples: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Example arguments by name."""

    def expected(self, weights: Mapping[str, Any], seed: int = 0, most: int = INPUT_SETS) -> Expected:  # noqa: ARG002
        try:
            from pitchpipe.model.reference.torch_runner import TorchRunner
        except ImportError as error:
            raise CannotRun(f"{error.name} is not installed") from error
        return expect(TorchRunner(self.origin, self.examples, self.keywords), seed, most)

    def unlike_its_export(self) -> bool:
        """Whether the program that torch.export makes of the module computes something else in PyTorch itself.

        False where it makes none of it, as of TorchScript. Raises CannotRun.
        """
        import torch

        from pitchpipe.model.reference.torch_runner import TorchRunner

        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own deprecations
            try:
                program = torch.export.export(self.origin, self.examples, dict(self.keywords))
            except Exception:  # noqa: BLE001 - torch.export raises many kinds
                return False
            runner = TorchRunner(program.module(), self.examples, self.keywords)
        expected = self.expected({})
        return expected.agreement([runner(inputs) for inputs in expected.inputs]).difference is not None


@dataclass(frozen=True, kw_only=True)
class FunctionSource(Source):
    """A jitted or exported function of JAX, run in this process."""

    examples: tuple[Any, ...] | None

    def expected(self, weights: Mapping[str, Any], seed: int = 0, most: int = INPUT_SETS) -> Expected:  # noqa: ARG002
        try:
            from pitchpipe.model.reference.jax_runner import FunctionRunner
        except ImportError as error:
            raise CannotRun(f"{error.name} is not installed") from error
        return expect(FunctionRunner(self.origin, self.examples), seed, most)


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    """A file, or the bytes of one, run in a child."""

    format: ModelFormat
    examples: tuple[Any, ...] = ()
    """Arrays, for TorchScript, which does not tell the shapes of its inputs, and ONNX, which may leave them open."""
    specs: tuple[tuple[tuple[int, ...], str], ...] = field(default=())
    """Shape and type of each input, for StableHLO."""

    def expected(self, weights: Mapping[str, Any], seed: int = 0, most: int = INPUT_SETS) -> Expected:
        with tempfile.TemporaryDirectory(prefix="pitchpipe-source-") as scratch:
            self.ask(Path(scratch) / "asked", weights, most, seed)
            return run_asked(Path(scratch) / "asked")

    def ask(self, folder: Path, weights: Mapping[str, Any], most: int, seed: int = 0) -> None:
        """Makes the folder and leaves in it all that `run_asked` needs, in this process or another."""
        folder.mkdir()
        if isinstance(self.origin, bytes):
            path = folder / f"model.{self.format}"
            path.write_bytes(self.origin)
        else:
            path = Path(self.origin).absolute()
        asked = {"path": str(path), "format": self.format.value, "specs": self.specs, "seed": seed, "most": most}
        (folder / "asked.json").write_text(json.dumps(asked))
        save_arrays(folder / "weights.npz", weights if self.format is ModelFormat.ONNX else {})
        save_arrays(folder / "examples.npz", {str(at): array for at, array in enumerate(_arrays(self.examples))})


def run_asked(folder: Path) -> Expected:
    """Runs the framework of a file in a child. Raises CannotRun."""
    path = Path(json.loads((folder / "asked.json").read_text())["path"])
    try:
        memory_bytes = MEMORY_BYTES + MEMORY_PER_BYTE * path.stat().st_size
    except OSError as error:
        raise CannotRun(f"{path.name} cannot be read: {error.strerror}") from error
    command = [
        sys.executable,
        "-m",
        "pitchpipe.model.reference.child",
        str(folder),
        str(os.getpid()),
        str(memory_bytes),
    ]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=FILE_SECS, check=False)
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"the framework of {path.name} took longer than {FILE_SECS:.0f} s") from error
    if (folder / "cannot").exists():
        raise CannotRun((folder / "cannot").read_text())
    try:
        return Expected.read(folder / "expected.npz")
    except (OSError, ValueError, KeyError) as error:
        words = ended.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise CannotRun(f"the framework's process ended with {ended.returncode}: {words[-1]}") from error


def _arrays(examples: Sequence[Any]) -> list[Any]:
    """NumPy's of examples that may be tensors."""
    import numpy as np

    return [np.asarray(one.detach().cpu()) if hasattr(one, "detach") else np.asarray(one) for one in examples]

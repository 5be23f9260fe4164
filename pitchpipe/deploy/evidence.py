"""What a built library is compared with in its proof run: the framework's inputs and outputs, and the model's weights.

Files of NumPy's carry them to another process, never pickles. Another process may also be left the source itself: a file's
framework is run where the file is needed, a module's only where the module is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pitchpipe.arrays import load_arrays, save_arrays
from pitchpipe.model.comparison import Agreement, less_precise
from pitchpipe.model.local import LocalModel
from pitchpipe.model.reference import CannotRun, Expected, FileSource
from pitchpipe.model.reference.source import run_asked
from pitchpipe.wire.comparison import Comparison, not_compared

_WEIGHTS, _EXPECTED, _SPARE, _ASKED, _WHY = "weights.npz", "expected.npz", "spare.npz", "asked", "why"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A framework's outputs, and the weights with which it gives them."""

    expected: Expected
    weights: Mapping[str, Any]
    """By parameter name."""

    def write(self, folder: Path) -> None:
        """Into files of the folder, which is there."""
        self.expected.write(folder / _EXPECTED)
        save_arrays(folder / _WEIGHTS, self.weights)

    @classmethod
    def read(cls, folder: Path) -> Evidence:
        """What `write` wrote. Raises OSError, ValueError or KeyError for anything else."""
        return cls(expected=Expected.read(folder / _EXPECTED), weights=load_arrays(folder / _WEIGHTS))


def gather(model: LocalModel, more: Mapping[str, Any], spare: Expected | None = None) -> Evidence | Comparison:
    """Asks the model's framework, or says why it could not be asked. `more` are weights that the model's file lacks.

    `spare` is what it said elsewhere of the same model and weights, for where it is not here.
    """
    try:
        expected = model.source.expected(more)
    except CannotRun as error:
        if spare is None:
            return not_compared(str(error))
        expected = spare
    return Evidence(expected=expected, weights=_weights(model, more, expected))


def leave(folder: Path, model: LocalModel, more: Mapping[str, Any], spare: Expected | None, most: int) -> None:
    """Leaves in the folder what `collect` needs to do the same in another process.

    A module or function is run here and now, on at most `most` input sets; a file's framework is not.
    """
    if spare is not None:
        spare.write(folder / _SPARE)
    weights = _weights(model, more, spare)
    if isinstance(model.source, FileSource):
        model.source.ask(folder / _ASKED, more, most)
    else:
        try:
            expected = model.source.expected(more, most=most)
            expected.write(folder / _EXPECTED)
            weights = _weights(model, more, expected)
        except CannotRun as error:
            (folder / _WHY).write_text(str(error))
    save_arrays(folder / _WEIGHTS, weights)


def collect(folder: Path) -> Evidence | Comparison:
    """The evidence that was left in the folder, or why there is none."""
    try:
        weights = load_arrays(folder / _WEIGHTS)
        if (folder / _EXPECTED).exists():
            return Evidence(expected=Expected.read(folder / _EXPECTED), weights=weights)
        try:
            if not (folder / _ASKED).exists():
                raise CannotRun((folder / _WHY).read_text())
            expected = run_asked(folder / _ASKED)
        except CannotRun as error:
            if not (folder / _SPARE).exists():
                return not_compared(str(error))
            expected = Expected.read(folder / _SPARE)
    except (OSError, ValueError, KeyError) as error:
        return not_compared(f"what its framework computes was not passed on: {error}")
    return Evidence(expected=expected, weights={**weights, **expected.weights})


def compared(model: Any, evidence: Evidence) -> Agreement | Comparison:
    """Runs a CompiledModel that has the evidence's weights; how it agrees, or why that cannot be said."""
    expected = evidence.expected
    ours = [(spec.dtype, spec.shape) for spec in model.inputs]
    if any([(str(array.dtype), array.shape) for array in inputs] != ours for inputs in expected.inputs):
        return not_compared(f"{expected.reference} takes other inputs than the graph")
    found = []
    for inputs in expected.inputs:
        result = model(*inputs)
        found.append(list(result) if isinstance(result, tuple) else [result])
    computed = model.manifest.computed
    least = expected.computed if computed is None else less_precise(expected.computed, computed)
    return replace(expected, computed=least).agreement(found)


def _weights(model: LocalModel, more: Mapping[str, Any], expected: Expected | None) -> dict[str, Any]:
    """The framework ran with the model's own, whatever replaces them later."""
    return {**more, **model.weights, **(expected.weights if expected is not None else {})}

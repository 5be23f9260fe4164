"""Input sets of a model and its framework's outputs on them, for whoever compares: another process, later, elsewhere.

An input set counts only where the framework is sure of its own answer. Inputs that differ from it by rounding alone must
give the same outputs within the tolerance; an argmax of equal values, or noise that is drawn at run time, does not. Such a
set, and one for which the framework raises, is drawn again once and then left out.

A network that is quantised between its operators is unsure in a way of its own: an element that rounding moves across the
middle of two steps is a whole step off, and moves others. ONNX Runtime differs from itself at another level of optimisation
by up to 0.08 for BERT and ViT, and as far for weights that differ by rounding. So what rounding makes of the outputs is
measured there, and allowed. So is, of a model of half precision, how far its outputs are from those of the same operators in
float32: PyTorch's own are 0.03 off in float16 and 0.2 in bfloat16 for four layers of Mamba, whose recurrence carries every
rounding on. Inputs that are whole numbers, such as tokens, cannot tell, since no rounding changes them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pitchpipe.arrays import load_arrays, save_arrays
from pitchpipe.model.comparison import Agreement, agreement, difference, drawn_like, input_sets, largest_error
from pitchpipe.wire.comparison import MAX_REASON, Comparison
from pitchpipe.wire.ids import canonical_json

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger("pitchpipe")
ATTEMPTS = 2
"""Times that an input set is drawn before it is left out."""
INPUT_SETS = 3
"""The examples, inputs like them, and edge values."""
FEWEST = 2
"""Input sets; a comparison on fewer says so."""
NUDGES = 3
"""Runs of a quantised model with weights that differ by rounding, for each input set."""
UNSURE = 0.2
"""Largest error that rounding may make of the outputs of a model that is quantised or of half precision; an input set with
a larger one is left out."""
AS_FAR = 3.0
"""Times the largest of these errors an output of ours may be off: a few random changes stand for all of their size, and
ours is off on its own account."""
SLOW_SECS = 20.0
"""A framework that takes longer for one run (onnx.reference, of a large network) runs FEWEST sets, each once unless the
model is quantised."""


class CannotRun(Exception):
    """The source cannot be run here; the message says why, and the model is not compared."""


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model as a file, for the framework that it came from."""

    path: Path
    weights: Mapping[str, np.ndarray]
    """By name, those that were taken out of the file."""
    examples: Sequence[np.ndarray]
    """Of the inputs, in order, where the user gave some."""
    specs: Sequence[tuple[Sequence[int], str]]
    """Shape and type of each input, where the file was read before."""


class Runner(Protocol):
    """A framework with a model of its own, ready to run."""

    @property
    def name(self) -> str:
        """Framework and version."""

    @property
    def examples(self) -> Sequence[np.ndarray]:
        """An array for each tensor that the model takes: its shape and type, and values that say what may be drawn."""

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """Drawn by the runner, of a model whose weights are not there."""

    @property
    def steps(self) -> tuple[float, ...]:
        """See Expected.steps; empty where nothing is quantised."""

    @property
    def computed(self) -> str | None:
        """See Expected.computed; known once the model has run."""

    @property
    def rounded(self) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]] | None:
        """The same model with weights that differ by rounding, others at each call; None where nothing is quantised."""

    @property
    def widened(self) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]] | None:
        """The same model with float32 in place of half precision; None where it has none, or its framework cannot tell.
        Known once the model has run."""

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All tensors that the model gives. Raises whatever the framework does."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the framework computes."""

    reference: str
    """Framework and version."""
    inputs: tuple[tuple[np.ndarray, ...], ...]
    """By input set, then in order."""
    outputs: tuple[tuple[np.ndarray, ...], ...]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    """To be used in place of the model's, where it has none of these names."""
    steps: tuple[float, ...] = ()
    """What each output may be off, absolutely: of a quantised one the step of its grid (`comparison.difference`)."""
    computed: str | None = None
    """NumPy's name of the least precise floating-point type among all that was computed, where the framework tells."""
    magnified: float = 0.0
    """The error that rounding explains, of a model that is quantised or of half precision (`comparison.difference`)."""
    note: str | None = None
    """Why there are fewer input sets than there should be."""

    def first(self) -> Expected:
        """Of the first input set alone."""
        return replace(self, inputs=self.inputs[:1], outputs=self.outputs[:1])

    def agreement(self, found: Sequence[Sequence[Any]]) -> Agreement:
        """Of outputs of ours, by input set."""
        return agreement(found, self.outputs, steps=self.steps, computed=self.computed, magnified=self.magnified)

    def comparison(self, found: Agreement) -> Comparison:
        """What to tell of outputs that agree."""
        return Comparison(
            reference=self.reference[:100],
            input_sets=len(self.inputs),
            error=found.error,
            tolerance=found.tolerance,
            reason=self.note[:MAX_REASON] if self.note else None,
        )

    def write(self, path: Path) -> None:
        """Into one file."""
        import numpy as np

        told = np.frombuffer(
            canonical_json(
                {
                    "reference": self.reference,
                    "note": self.note,
                    "steps": self.steps,
                    "computed": self.computed,
                    "magnified": self.magnified,
                }
            ),
            np.uint8,
        )
        arrays: dict[str, Any] = {"told": told}
        for kind, sets in (("i", self.inputs), ("o", self.outputs)):
            arrays |= {f"{kind} {at} {nth}": one for at, given in enumerate(sets) for nth, one in enumerate(given)}
        save_arrays(path, arrays | {f"w {name}": values for name, values in self.weights.items()})

    @classmethod
    def read(cls, path: Path) -> Expected:
        """What `write` wrote. Raises OSError, ValueError or KeyError for anything else."""
        import json

        arrays = load_arrays(path)
        told = json.loads(arrays.pop("told").tobytes())
        sets: dict[str, dict[int, list[Any]]] = {"i": {}, "o": {}}
        weights = {}
        for key, array in arrays.items():
            kind, _, rest = key.partition(" ")
            if kind == "w":
                weights[rest] = array
            else:
                sets[kind].setdefault(int(rest.partition(" ")[0]), []).append(array)
        return cls(
            reference=told["reference"],
            note=told["note"],
            steps=tuple(told.get("steps", ())),
            computed=told.get("computed"),
            magnified=told.get("magnified", 0.0),
            inputs=tuple(tuple(sets["i"].get(at, ())) for at in sorted(sets["o"])),
            outputs=tuple(tuple(found) for _, found in sorted(sets["o"].items())),
            weights=weights,
        )


def expect(runner: Runner, seed: int = 0, most: int = INPUT_SETS) -> Expected:
    """Runs the framework on at most `most` input sets. Raises CannotRun when it answers on none of them."""
    import numpy as np

    rng = np.random.default_rng([seed, 1])
    kept: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
    lost = ""
    slow, own = False, 0.0
    for inputs in input_sets(runner.examples, seed):
        for attempt in range(ATTEMPTS):
            if len(kept) >= most or (slow and len(kept) >= FEWEST):
                break
            given = inputs if attempt == 0 else [drawn_like(one, rng) for one in runner.examples]
            started = time.monotonic()
            try:
                outputs = runner([one.copy() for one in given])
                slow = slow or time.monotonic() - started > SLOW_SECS
                if not outputs:
                    raise CannotRun(f"{runner.name} gives no tensor")
                moved = 0.0 if slow and runner.rounded is None else _moved(runner, given, outputs, rng)
                moved = max(moved, _narrowed(runner, given, outputs))
                if moved <= UNSURE:
                    own = max(own, moved)
                    kept.append((given, outputs))
                    break
                lost = f"{runner.name} gives other outputs where inputs, or what it computes, differ by rounding alone"
            except CannotRun:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a framework raises
                lost = f"{runner.name} fails: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if not kept:
        raise CannotRun(lost)
    note = f"only {len(kept)} input set: {lost}" if len(kept) < FEWEST else None
    return Expected(
        reference=runner.name,
        inputs=tuple(tuple(inputs) for inputs, _ in kept),
        outputs=tuple(tuple(outputs) for _, outputs in kept),
        weights=dict(runner.weights),
        steps=runner.steps,
        computed=runner.computed,
        magnified=AS_FAR * own,
        note=note,
    )


def _moved(
    runner: Runner, given: Sequence[np.ndarray], outputs: Sequence[np.ndarray], rng: np.random.Generator
) -> float:
    """The error that rounding makes, of a quantised model. Of others 0, or infinity where it makes more than is allowed."""
    if runner.rounded is None:
        again = runner(rounded(given, rng))
        same = difference(again, outputs, steps=runner.steps, computed=runner.computed) is None
        return 0.0 if same else float("inf")
    return max(largest_error(runner.rounded(rounded(given, rng)), outputs, steps=runner.steps) for _ in range(NUDGES))


def _narrowed(runner: Runner, given: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
    """How far half precision takes the outputs from those of float32; 0 where that cannot be told."""
    if runner.widened is None:
        return 0.0
    import numpy as np

    try:
        wide = runner.widened([one.copy() for one in given])
    except Exception as error:  # noqa: BLE001 - whatever a framework raises for types that a model does not expect
        log.info("%s does not compute the model in float32: %s", runner.name, error)
        return 0.0
    if len(wide) != len(outputs):
        return 0.0
    with np.errstate(over="ignore"):  # what half precision cannot hold is infinite there
        return largest_error([a.astype(r.dtype) for a, r in zip(wide, outputs, strict=True)], outputs)


def rounded(arrays: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Every floating-point element multiplied by one plus or minus two units in the last place."""
    import numpy as np

    found = []
    for array in arrays:
        if array.dtype.kind in "biu" or array.dtype.kind == "c":
            found.append(array.copy())
            continue
        unit = 2.0 ** -{"float64": 51, "float32": 22, "float16": 9, "bfloat16": 6}.get(str(array.dtype), 22)
        factor = 1.0 + unit * rng.choice(np.array([-1.0, 1.0]), array.shape)
        found.append(np.asarray(array.astype(np.float64) * factor).astype(array.dtype))
    return found

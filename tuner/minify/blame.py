"""Which step of ours makes a part wrong: the import, a rewrite by its name, or the making of code.

The module that each step of `prepare` gets is run naively, operator by operator, and compared with what the framework
computes. A search by halves finds a step whose module is right before it and wrong after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pitchpipe.arrays import load_arrays, save_arrays
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tuner.deploy.finish import finish
from tuner.graph.prepare import MAIN, prepare
from tuner.ingest import parse_container
from tuner.minify import Part
from tuner.minify.attempts import Say, in_fork, run_naively
from tuner.minify.reduction import bisected
from tuner.tvm_compat import load_ir, save_ir, to_tvm_target

IMPORT = "the import"
CODE = "the compiler"
"""Every module on the way is right when it is run naively."""


@dataclass(frozen=True, kw_only=True)
class Blame:
    """The step at fault, and the modules that show it."""

    cause: str
    module: str
    """TVM JSON of a module that is wrong when it is run naively; of the last that is right where code is at fault."""
    before: str | None
    """Of the one that the step got, which is right; none where the import is at fault."""
    weights: Mapping[str, np.ndarray]
    """What the modules take behind their inputs, in order."""


def blame(part: Part, target: Target) -> Blame | None:
    """Of a part that is wrong; None when it cannot be said, as a module does not run naively."""
    with TemporaryDirectory(prefix="pitchpipe-minify-") as folder:
        ended = in_fork(lambda say: _search(part, target, Path(folder), say))
        if ended.result is None:
            return None
        wrong, right = ((Path(folder) / f"{name}.json").read_text() for name in ("wrong", "right"))
        weights = load_arrays(Path(folder) / "weights.npz")
    cause = ended.result
    return Blame(cause=cause, module=wrong, before=None if cause == IMPORT else right, weights=weights)


def _search(part: Part, target: Target, folder: Path, say: Say) -> str:
    """The step at fault. Writes the modules before and behind it and the weights that they take into the folder."""
    say("import")
    data, weights = part.convert()
    model = parse_container(data)
    bound = [np.asarray(weights[spec.name]) for spec in model.params]
    # As text, as a step may change the module that it gets.
    steps: list[tuple[str, str]] = []
    prepared = prepare(load_ir(model.ir), target, watch=lambda name, module: steps.append((name, save_ir(module))))
    with to_tvm_target(target):
        steps.append(("finish", save_ir(prepared)))
        finished = finish(prepared, target)
    steps.append(("expand_intrinsics", save_ir(finished)))
    steps.append(("", save_ir(kind_of(target).before_codegen(finished))))
    modules = [model.ir, *(module for _, module in steps[1:])]

    def wrong(index: int) -> bool:
        say(f"step {index}")
        return part.difference(run_naively(load_ir(modules[index]), part.inputs, bound)) is not None

    at, cause = _first_wrong(len(modules), wrong), CODE
    if at is not None:
        cause = IMPORT if at == 0 else f"rewrite {steps[at - 1][0]}"
    at = len(modules) - 1 if at is None else at
    (folder / "wrong.json").write_text(modules[at])
    (folder / "right.json").write_text(modules[max(0, at - 1)])
    save_arrays(folder / "weights.npz", dict(zip((spec.name for spec in model.params), bound, strict=True)))
    return cause


def _first_wrong(count: int, wrong: Callable[[int], bool]) -> int | None:
    """An index that is wrong where the one before is not, 0 if that is; None when the last is not."""
    if wrong(0):
        return 0
    if not wrong(count - 1):
        return None
    return bisected(0, count - 1, wrong)


def readable(text: str, most: int = 60) -> Sequence[str]:
    """The lines of a module's main in TVMScript, for a comment; none of one that is longer than `most`."""
    lines = [line.removeprefix("# ") for line in str(load_ir(text)[MAIN].script()).strip().split("\n")]
    return lines if len(lines) <= most else ()

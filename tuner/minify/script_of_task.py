"""The standalone program of a task: a workload, and what a trace makes of it, run on the same inputs.

It needs TVM and NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pitchpipe.wire.finding import Finding, FindingKind
from pitchpipe.wire.target import Target
from tuner.lowering.fastmath import expand_intrinsics
from tuner.measure.properties import WorkloadProperties
from tuner.minify.literals import IMPORTS, PREAMBLE, Literals, comments
from tuner.minify.script import CRASH
from tuner.tvm_compat import save_ir, tvm

NAME = "minified"

_RUN = '''

def run(text):
    """What a tensor program writes, given INPUTS."""
    function = tvm.compile(tvm.ir.load_json(text), target=tvm.target.Target(TARGET))["main"]
    given, arguments, written = iter(INPUTS), [], []
    for index, (shape, dtype) in enumerate(PARAMETERS):
        if index in OUTPUTS:
            arguments.append(tvm.runtime.tensor(np.zeros(shape, dtype)))
            written.append(arguments[-1])
        else:
            arguments.append(tvm.runtime.tensor(next(given)))
    function(*arguments)
    return [each.numpy() for each in written]
'''
_COMPARE = """

def main():
    expected, found = run(WORKLOAD), run(SCHEDULED)
    wrong = False
    for at, (a, r) in enumerate(zip(found, expected, strict=True)):
        finite = np.isfinite(r)
        allowed = RELATIVE * (np.abs(r) + np.sqrt(np.square(r[finite].astype(np.float64)).mean() if finite.any() else 0.0))
        differs = ~((np.abs(a.astype(np.float64) - r) <= allowed) | (a == r) | ((a != a) & (r != r)))
        print(f"output {at}: {int(differs.sum())} of {r.size} elements differ")
        wrong |= bool(differs.any())
    return 1 if wrong else 0
"""


def write_task_script(
    folder: Path,
    finding: Finding,
    workload: Any,
    scheduled: Any,
    properties: WorkloadProperties,
    inputs: Sequence[np.ndarray],
    target: Target,
    timeout_secs: float,
) -> Path:
    """Writes the script and what is beside it into the folder; its path. `workload` and `scheduled` are modules."""
    folder.mkdir(parents=True, exist_ok=True)
    literals = Literals(folder, NAME)
    told = [finding.sentence(), f"Seen with TVM {tvm.__version__}. Exits 1 where it shows that, else 0."]
    relative = (
        16 * (2.0**-properties.bits + 2.0**-properties.reduction_bits * properties.reduction**0.5)
        if properties.floats
        else 0.0
    )
    small = any(array.dtype.kind == "V" for array in inputs)
    blocks = [
        comments(told),
        IMPORTS,
        ("import ml_dtypes\n" if small else "") + "import tvm\n",
        PREAMBLE,
        f"TARGET = {target.attributes()!r}",
        f"PARAMETERS = {[(list(each.shape), each.dtype) for each in properties.params]!r}",
        f"OUTPUTS = {list(properties.outputs)!r}",
        f"RELATIVE = {relative!r}",
        f"INPUTS = {literals.list('input', inputs)}",
        f"WORKLOAD = {literals.text('workload', save_ir(workload))}",
        comments(str(scheduled["main"].script()).split("\n")),
        f"SCHEDULED = {literals.text('scheduled', save_ir(expand_intrinsics(scheduled)))}",
        _RUN,
    ]
    if finding.kind is FindingKind.WRONG:
        blocks.append(_COMPARE)
    else:
        blocks.append("\ndef attempt():\n    run(SCHEDULED)\n\n" + CRASH.format(timeout=math.ceil(timeout_secs)))
    blocks.append('\nif __name__ == "__main__":\n    sys.exit(main())\n')
    path = folder / f"{NAME}.py"
    path.write_text("\n".join(blocks))
    literals.store()
    return path

"""The standalone program that shows what was found: one file of Python, with large tensors and modules beside it.

It needs TVM, NumPy and the framework: what pitchpipe made of the part is in it as a module of Relax. With the argument
`now`, or where there is no such module to show, it asks the pitchpipe that is installed. It exits 1 where it shows the
fault, else 0. Nothing of a model's text becomes code: names are literals, tensors and modules are data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pitchpipe.model.comparison import CANCELLED, NO_SIZE, TOLERANCE
from pitchpipe.wire.finding import WALL_SECS, Finding, FindingKind
from tuner.minify import Part
from tuner.minify.blame import Blame, readable
from tuner.minify.literals import IMPORTS, PREAMBLE, Literals, comments
from tuner.minify.torch_code import NoText
from tuner.tvm_compat import tvm

NAME = "minified"
_COMPARE = f'''
TOLERANCE = {dict(TOLERANCE)!r}


def difference(found, expected, sizes):
    """The first output whose error is beyond the tolerance, and its error; None when there is none.

    The error is max |a - r| / max(|r| + s, {CANCELLED} S), with s the root mean square of r, and S that of the largest
    tensor of which r is computed.
    """
    for at, (a, r, size) in enumerate(zip(found, expected, sizes, strict=True)):
        if a.shape != r.shape or a.dtype != r.dtype:
            return f"output {{at}} is {{a.dtype}}{{list(a.shape)}}, not {{r.dtype}}{{list(r.shape)}}"
        if r.dtype.kind in "biu":
            if (a != r).any():
                return f"output {{at}} differs in {{int((a != r).sum())}} of {{r.size}} elements"
            continue
        limit, a, r = TOLERANCE.get(r.dtype.name, 0.0), a.astype(np.float64), r.astype(np.float64)
        finite = np.isfinite(r)
        if not np.array_equal(a[~finite], r[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
            return f"output {{at}} has infinities, or values that are not numbers, in other places"
        if finite.any():
            s = float(np.sqrt(np.square(r[finite]).mean()))
            scale = np.maximum(np.abs(r[finite]) + s, {CANCELLED} * max(s, size) or {NO_SIZE})
            error = float((np.abs(a[finite] - r[finite]) / scale).max())
            if error > limit:
                return f"output {{at}} differs: its largest relative error is {{error:.2g}}, where {{limit:.0e}} is allowed"
    return None
'''

_NAIVE = '''
def run(text, inputs, weights):
    """What a Relax module computes as it stands: each operator a loop of its own."""
    relax, transform = tvm.relax, tvm.relax.transform
    steps = [transform.DecomposeOpsForInference(), relax.backend.DispatchSortScan(), transform.LegalizeOps()]
    module = tvm.transform.Sequential(steps)(tvm.ir.load_json(text))
    with tvm.transform.PassContext(opt_level=0):
        machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    bound = [tvm.runtime.tensor(np.asarray(array, order="C")) for array in weights.values()]
    if bound and any(variable.name_hint == "main_transform_params" for variable in module.functions):
        bound = list(machine["main_transform_params"](bound))
    found = machine["main"](*(tvm.runtime.tensor(np.asarray(array, order="C")) for array in inputs), *bound)
    return [found.numpy()] if hasattr(found, "numpy") else [each.numpy() for each in found]
'''

_RELAX = '''
def ours(inputs, weights):
    """What pitchpipe makes of it."""
    import tempfile

    import pitchpipe

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "part.json").write_text(MODEL)
        found = pitchpipe.load(Path(folder) / "part.json", weights=weights)(*inputs)
    return list(found) if isinstance(found, tuple) else [found]
'''

CRASH = '''
def main():
    """Tries it in a child, as it may end the process."""
    if "--child" in sys.argv:
        signal.alarm({timeout})
        attempt()
        return 0
    command = [sys.executable, __file__, "--child", *sys.argv[1:]]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == -signal.SIGALRM:
        print("it was still going after {timeout} s")
    elif ended.returncode:
        words = ended.stderr.strip().splitlines() or [""]
        print(f"it ended with {{ended.returncode}}: {{words[-1]}}")
    else:
        print("it built and ran")
    return 1 if ended.returncode else 0
'''

_WRONG = """
def main():
    expected = {expected}
    found = {found}
    for name, arrays in (("{reference}", expected), ("ours", found)):
        for array in arrays:
            print(f"{{name}}: {{array.dtype}}{{list(array.shape)}} {{np.array2string(array, threshold=16)}}")
    told = difference(found, expected, SIZES)
    print(told or "the outputs agree")
    return 1 if told else 0
"""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a script shows."""

    finding: Finding
    part: Part
    blame: Blame | None = None
    """Of a part that is wrong, or that crashes when its module is run naively (its `module` is then that one)."""
    model: str | None = None
    """The part in the `relax` format, for a script that has pitchpipe make it again."""
    timeout_secs: float = WALL_SECS
    """Of one that crashes."""


def write_script(folder: Path, evidence: Evidence, name: str = NAME) -> Path:
    """Writes `name`.py into the folder, and beside it what is too large to stand in it; the script's path."""
    folder.mkdir(parents=True, exist_ok=True)
    literals = Literals(folder, name)
    path = folder / f"{name}.py"
    path.write_text(_Writer(evidence, literals).text())
    literals.store()
    return path


class _Writer:
    """Puts the parts of a script together."""

    def __init__(self, evidence: Evidence, literals: Literals) -> None:
        self.evidence = evidence
        self.literals = literals

    def text(self) -> str:
        finding, part, blame = self.evidence.finding, self.evidence.part, self.evidence.blame
        code = self._framework()
        crash = finding.kind is not FindingKind.WRONG
        self._again = code is not None or self.evidence.model is not None
        blocks = [self._head(), self._data()]
        if code is not None:
            blocks.append(code)
        elif self.evidence.model is not None:
            blocks += [f"MODEL = {self.literals.text('model', self.evidence.model)}\n", _RELAX]
        if blame is not None:
            blocks.append(self._modules(blame, code is None and not crash))
            blocks.append(_NAIVE)
        run, recorded = "ours(INPUTS, WEIGHTS)", "run(MODULE, INPUTS, MODULE_WEIGHTS)"
        if blame is not None:
            run = f'{run} if "now" in sys.argv else {recorded}' if self._again else recorded
        if crash:
            blocks.append(f"\ndef attempt():\n    {run}\n")
            blocks.append(CRASH.format(timeout=math.ceil(self.evidence.timeout_secs)))
        else:
            sizes = [max((_size(array) for array in arrays), default=0.0) for arrays in part.operands]
            blocks.append(f"\nSIZES = {sizes!r}\n" + _COMPARE)
            reference = finding.reference or "the framework"
            expected = "reference(INPUTS, WEIGHTS)"
            if code is None:
                before = blame is not None and blame.before is not None
                expected, reference = (
                    ("run(BEFORE, INPUTS, MODULE_WEIGHTS)", "before") if before else ("EXPECTED", "recorded")
                )
                if not before:
                    blocks.append(f"\nEXPECTED = {self.literals.list('expected', part.expected or ())}\n")
            blocks.append(_WRONG.format(expected=expected, found=run, reference=reference))
        blocks.append('\nif __name__ == "__main__":\n    sys.exit(main())\n')
        return "\n".join(blocks)

    def _framework(self) -> str | None:
        try:
            return self.evidence.part.code() if self.evidence.part.code is not None else None
        except NoText:
            return None

    def _head(self) -> str:
        finding = self.evidence.finding
        told = [finding.sentence(), f"Operators of this part: {', '.join(finding.nodes)}."]
        told.append(f"Seen with TVM {tvm.__version__}. Exits 1 where it shows that, else 0.")
        if self.evidence.blame is not None and self._again:
            told.append(
                "With the argument `now` the pitchpipe that is installed makes the part, not the module in this file."
            )
        imports = IMPORTS
        if self.evidence.blame is not None:
            imports += "import tvm\n"
        if any(array.dtype.kind == "V" for array in (*self.evidence.part.inputs, *self.evidence.part.weights.values())):
            imports += "import ml_dtypes\n"
        return f"{comments(told)}\n{imports}\n{PREAMBLE}"

    def _data(self) -> str:
        found = f"INPUTS = {self.literals.list('input', self.evidence.part.inputs)}\n"
        found += f"WEIGHTS = {self.literals.arrays('weight', self.evidence.part.weights)}\n"
        if self.evidence.blame is not None:
            found += f"MODULE_WEIGHTS = {self.literals.arrays('bound', self.evidence.blame.weights)}\n"
        return found

    def _modules(self, blame: Blame, with_before: bool) -> str:
        found = ""
        for line in readable(blame.module):
            found += f"# {line}".rstrip() + "\n"
        found += f"MODULE = {self.literals.text('module', blame.module)}\n"
        if with_before and blame.before is not None:
            found += f"BEFORE = {self.literals.text('before', blame.before)}\n"
        return found


def _size(array: np.ndarray) -> float:
    wide = array.astype(np.float64)
    usable = wide[np.isfinite(wide)]
    return float(np.sqrt(np.square(usable).mean())) if usable.size else 0.0

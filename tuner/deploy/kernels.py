"""The kernels of a model for a CPU, compiled to object code side by side.

LLVM compiles a module on one core, and a model has a hundred functions that know nothing of one another. So they are
divided among forks of this process, each of which answers with object code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import PitchpipeError
from pitchpipe.processes.cores import usable_cores
from tuner.deploy.forks import Lost, in_forks
from tuner.measure.build import generate
from tuner.tvm_compat import IRModule, object_code, tirx, tvm_ffi

PARTS = 4
"""Of each core's work, so that all cores end at about the same time. A fork and a module of LLVM's cost 30 ms."""
COMPILE_SECS = 600.0
"""Longest compilation of a part."""
_COMPILED, _REFUSED = b"c", b"r"


@dataclass(frozen=True, kw_only=True)
class ObjectFile:
    """Functions in relocatable object code, in the format of this machine."""

    names: tuple[str, ...]
    code: bytes


def compile_kernels(
    functions: Mapping[str, Any], target: Any, ready: Mapping[str, tuple[Any, bytes]]
) -> Sequence[ObjectFile]:
    """Object code of scheduled functions (PrimFunc by name) for a CPU, TVM's target.

    ready: functions with object code, which is used where the function of that name is the same.
    Forks; at most one thread of the process calls it. Raises PitchpipeError for what the compiler refuses or dies of.
    """
    found = [
        ObjectFile(names=(name,), code=code)
        for name, (function, code) in ready.items()
        if name in functions and tvm_ffi.structural_equal(_bare(functions[name]), _bare(function))
    ]
    absent = sorted(functions.keys() - {name for each in found for name in each.names})
    count = min(len(absent), PARTS * usable_cores())
    parts = [absent[at::count] for at in range(count)]

    def compiled(at: int) -> bytes:
        try:
            return _COMPILED + object_code(generate(IRModule({name: functions[name] for name in parts[at]}), target)[1])
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met
            return _REFUSED + (str(error).strip() or type(error).__name__).splitlines()[-1].encode()

    answers = in_forks(compiled, count, processes=usable_cores(), limit_secs=COMPILE_SECS)
    for names, answer in zip(parts, answers, strict=True):
        if isinstance(answer, Lost):
            raise PitchpipeError(f"the compiler refused the model: {answer.reason}")
        if answer[:1] == _REFUSED:
            raise PitchpipeError(f"the compiler refused the model: {answer[1:].decode()}")
        found.append(ObjectFile(names=tuple(names), code=answer[1:]))
    return found


def _bare(function: Any) -> Any:
    """Without attributes, which say how a function is called and found, and not what it computes."""
    return tirx.PrimFunc(function.params, function.body, function.ret_type)

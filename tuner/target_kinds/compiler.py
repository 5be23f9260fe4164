"""What TVM says of this machine, asked of a child: whoever asks may have threads, or may be about to fork."""

from __future__ import annotations

from functools import cache

from pitchpipe.errors import MeasurementFailed
from pitchpipe.processes.launch import run
from pitchpipe.target_kind import kinds
from pitchpipe.wire._base import Wire
from pitchpipe.wire.target import Toolchain

_ASK_SECS = 180.0


class Compiler(Wire):
    """TVM as it is installed here."""

    mcpu: str
    """LLVM's name of this machine's CPU."""
    toolchains: dict[str, Toolchain]
    """Kind of target -> what makes code for it."""


@cache
def compiler_here() -> Compiler:
    """Asked once per process. Raises MeasurementFailed when TVM does not start."""
    try:
        asked = run(f"{__name__}:tell", timeout_secs=_ASK_SECS)
        if asked.returncode != 0:
            last = asked.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise MeasurementFailed(f"TVM does not start here: {last[-1]}")
        return Compiler.model_validate_json(asked.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError) as error:
        raise MeasurementFailed(f"TVM does not answer here: {error}") from error


def tell() -> None:
    """The child: prints a Compiler."""
    from tuner.tvm_compat import toolchain, tvm

    mcpu = str(tvm.target.codegen.llvm_get_system_cpu())
    found = Compiler(mcpu=mcpu, toolchains={kind.name: toolchain(kind.name) for kind in kinds()})
    print(found.model_dump_json(by_alias=True), flush=True)

"""What TVM says of this machine, asked of a child: whoever asks may have threads, or may be about to fork."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from pitchpipe.errors import MeasurementFailed
from pitchpipe.wire._base import Wire
from pitchpipe.wire.target import Toolchain

_ASK_SECS = 180.0
_QUESTION = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pitchpipe.target_kind import kinds
from tuner.tvm_compat import toolchain, tvm
print(json.dumps({
    "mcpu": str(tvm.target.codegen.llvm_get_system_cpu()),
    "toolchains": {kind.name: toolchain(kind.name).model_dump() for kind in kinds()},
}))
"""


class Compiler(Wire):
    """TVM as it is installed here."""

    mcpu: str
    """LLVM's name of this machine's CPU."""
    toolchains: dict[str, Toolchain]
    """Kind of target -> what makes code for it."""


@cache
def compiler_here() -> Compiler:
    """Asked once per process. Raises MeasurementFailed when TVM does not start."""
    root = str(Path(__file__).resolve().parents[2])
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-c", _QUESTION, root], capture_output=True, text=True, timeout=_ASK_SECS, check=True
        )
        return Compiler.model_validate_json(answer.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines() or ["no message"]
        raise MeasurementFailed(f"TVM does not start here: {last[-1]}") from error
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        raise MeasurementFailed(f"TVM does not answer here: {error}") from error

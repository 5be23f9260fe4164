"""For tests of the torch.compile backend that are about its results: what children do is done in this process.

Children are tested by test_torch_beside.py and test_torch_tuned.py, and with the SDK, which has them in common with this.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pitchpipe.deploy import building
from pitchpipe.processes.plugins import step
from tests.builds import Kept, keeping
from tuner.deploy import build as deploy
from tuner.ingest import parse_container

_BUILT_HERE: Kept = {}


def steps_here(patch: pytest.MonkeyPatch) -> None:
    """Steps run in this process, which imports TVM once, in place of children; libraries are neither optimised by LLVM nor
    tried first."""
    from pitchpipe.torch_backend import cutting
    from tests.compiler.programs import leave_unoptimised

    def run_here(name: str, data: bytes, **arguments: Any) -> Any:
        of_child = ("timeout_secs", "meanwhile")
        return step(name)(data, {}, **{key: value for key, value in arguments.items() if key not in of_child})

    patch.setattr(cutting, "run_step", run_here)
    patch.setattr(building, "run_step", keeping(run_here, _BUILT_HERE))
    patch.setattr(deploy, "ingest", lambda data, _format: parse_container(data))
    leave_unoptimised(patch)
    patch.setattr(building, "prove", lambda *_args, **_options: SimpleNamespace(ok=True, wrong=None))


def never_slow(patch: pytest.MonkeyPatch) -> None:
    """A compiled side never loses for being slow, and is timed as briefly as can be."""
    from pitchpipe.torch_backend import paired_benchmark

    patch.setattr(paired_benchmark, "MARGIN", float("inf"))
    patch.setattr(paired_benchmark, "BUDGET_SECS", 0.0)

"""Spares stock MetaSchedule's processes what they do not use. Python imports this file at the start of each of them, since
the folder is on their PYTHONPATH.

MetaSchedule imports the tensor intrinsics of every vendor in each of its processes, the pool that builds a batch included,
and TVM's parser walks all loaded modules for each intrinsic; torch, which TVM imports where it is installed, doubles their
number. Together that took 18 to 36 s a process here, of the 30 s that a build may take: builds ran out of time for it.
Here torch is hidden, and the package of intrinsics imports no vendor by itself. A script imports those its target needs,
and calls `show_torch` if it needs torch.
"""

import importlib.abc
import importlib.util
import sys
import types
from pathlib import Path

_INTRINSICS = "tvm.s_tir.tensor_intrin"


def _spare() -> None:
    found = importlib.util.find_spec("tvm")
    if found is None or found.origin is None:
        return
    package = types.ModuleType(_INTRINSICS)
    package.__path__ = [str(Path(found.origin).parent / "s_tir" / "tensor_intrin")]
    sys.modules[_INTRINSICS] = package
    sys.meta_path.insert(0, _WithoutTorch())


class _WithoutTorch(importlib.abc.MetaPathFinder):
    """torch is not installed. None in sys.modules says so as well, but SciPy looks there and takes it for the module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def show_torch() -> None:
    """For a script that needs torch itself, once TVM is imported."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WithoutTorch)]


_spare()

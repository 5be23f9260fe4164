"""TVM's tensor intrinsics, registered without what makes that slow: 17 s for those of every vendor."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tuner.tvm_compat import tvm


@contextmanager
def _stacks_without_source() -> Iterator[None]:
    """TVM's parser calls `inspect.stack` for each function that it parses, for its frames, and for a line of source that
    tells whether it lies in a class. To find that line Python looks through every module that is imported, for each frame
    of the stack: where PyTorch is imported that takes ten times as long as the parsing. No intrinsic lies in a class."""

    def stack(context: int = 1) -> list[inspect.FrameInfo]:
        del context
        frames = traceback.walk_stack(sys._getframe(1))
        return [
            inspect.FrameInfo(frame, frame.f_code.co_filename, line, frame.f_code.co_name, None, None)
            for frame, line in frames
        ]

    whole, inspect.stack = inspect.stack, stack
    try:
        yield
    finally:
        inspect.stack = whole


@_stacks_without_source()
def load_intrinsics_of(processor: str) -> None:
    """Registers TVM's tensor intrinsics for `x86` or `arm_cpu`."""
    importlib.import_module(f"tvm.s_tir.tensor_intrin.{processor}")


_WMMA, _MMA = "wmma_{}_16x16x16_{}", "mma_{}_m16n8k8_{}"
CUDA_INTRINSICS = (
    *(_WMMA.format("fill", kind) for kind in ("f16", "f32", "s32")),
    *(_WMMA.format("load", f"{kind}_{part}_shared_dyn") for kind in ("f16", "s8") for part in ("a", "b", "b_trans")),
    *(_WMMA.format("sync", f"{kind}{end}") for kind in ("f16f16f16", "f16f16f32", "s8s8s32") for end in ("", "_trans")),
    _WMMA.format("load", "f16_a_shared"),
    *(_WMMA.format("store", f"{kind}_shared_dyn") for kind in ("f16", "f32", "s32")),
    *(_MMA.format("init", kind) for kind in ("f16", "f32")),
    *(_MMA.format("load", f"f16_{part}_shared_dyn") for part in "AB"),
    *(_MMA.format("sync", kind) for kind in ("f16f16f16", "f16f16f32")),
    *(_MMA.format("store", f"{kind}_global") for kind in ("f16", "f32")),
)
"""What MetaSchedule's rules for CUDA name (ScheduleRule::DefaultCUDATensorCore), and one of tuner/space/gpu/attention.py;
TVM defines 91."""


@_stacks_without_source()
def load_cuda_intrinsics() -> None:
    """Imports TVM's module of CUDA intrinsics, but parses only those of CUDA_INTRINSICS: that takes the time."""
    name = "tvm.s_tir.tensor_intrin.cuda"
    if name in sys.modules:
        return
    script = importlib.import_module("tvm.script").tirx
    parse, register = script.prim_func, tvm.s_tir.TensorIntrin.register
    defined: dict[str, tuple[Any, ...]] = {}

    def parse_later(**options: Any) -> Any:
        return lambda function: lambda: parse(**options)(function)

    def register_later(name: str, *functions: Any) -> None:
        defined[name] = functions

    script.prim_func, tvm.s_tir.TensorIntrin.register = parse_later, staticmethod(register_later)
    try:
        importlib.import_module(name)
    finally:
        script.prim_func, tvm.s_tir.TensorIntrin.register = parse, staticmethod(register)
    for name in CUDA_INTRINSICS:
        description, implementation = defined[name]
        parsed = description()
        register(name, parsed, parsed if implementation is description else implementation())
    _register_bfloat16(sys.modules["tvm.s_tir.tensor_intrin.cuda"], register)


def _register_bfloat16(defining: Any, register: Any) -> None:
    """The same products of bfloat16, of which TVM defines none: operands from shared memory, sums in single precision."""
    made = defining.get_wmma_load_intrin(16, 16, 16, "bfloat16", "shared", False, False)
    register("wmma_load_16x16x16_bf16_a_shared", *made)
    for turned in (False, True):
        end = "_trans" if turned else ""
        for is_b, part in ((False, "a"), (True, f"b{end}")):
            if is_b or not turned:
                made = defining.get_wmma_load_intrin(16, 16, 16, "bfloat16", "shared.dyn", is_b, turned)
                register(f"wmma_load_16x16x16_bf16_{part}_shared_dyn", *made)
        made = defining.get_wmma_sync_intrin(16, 16, 16, "bfloat16", "float32", turned)
        register(f"wmma_sync_16x16x16_bf16bf16f32{end}", *made)

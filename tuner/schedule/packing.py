"""Weight packing: the block that rewrites a weight for its schedule, separated from the scheduled function.

A trace may rewrite a constant input: the scheduled function then contains a block with the annotation
`meta_schedule.layout_rewrite_preproc`, which copies the weight into another layout or transforms it
(tuner/schedule/winograd.py). A deployment runs that block once, when weights are bound. So the block becomes a `Packing`
here, and the main function takes the packed weight: the main function alone is timed, both together are checked.

A block that only copies is run by NumPy where its index map allows it: to compile it would take LLVM as long as to compile
the kernel. A block that computes is compiled, so that its values equal those of a deployment to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.schedule.tensor_type import TensorType
from tuner.tvm_compat import IRModule, structural_walk, tirx, tvm, uses

PREPROC = "meta_schedule.layout_rewrite_preproc"
"""Annotation of a block that transforms a weight for the kernel. It runs once, when weights are bound
(tuner/deploy/finish.py)."""
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
}


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The packing of one parameter."""

    param: int
    """Its position among the parameters of main."""
    statement: Any
    """The statement of the root block with the rewriting block: that block and the loops around it."""
    buffer: Any
    """The buffer that the block writes: the packed weight."""
    packed: TensorType
    function: Any
    """TIR of function(weight, packed)."""
    positions: tuple[NDArray[np.int64], ...] | None
    """For each axis of the weight: what each index along it adds to the flat index in the packed weight. None where the
    index map is no such sum, or where the block computes."""

    @property
    def symbol(self) -> str:
        """Name of the function when it is compiled."""
        return f"prepack_{self.param}"

    def pack(self, weight: Any, packed: Any) -> None:
        """`pack` by its positions. Only where they are known."""
        assert self.positions is not None
        pack(self.positions, weight, packed)


def pack(positions: Sequence[NDArray[np.int64]], weight: Any, packed: Any) -> None:
    """Copies `weight` into `packed`, both tensors of TVM on the host, by `Packing.positions`."""
    values = weight.numpy()
    result = np.empty([int(extent) for extent in packed.shape], values.dtype)
    result.reshape(-1)[sum(np.ix_(*positions))] = values
    packed.copyfrom(result)


def packings_of(mod: Any) -> list[Packing]:
    """The packings of all layout-rewriting blocks of function main."""
    function = mod["main"]
    block_type, realize_type = tvm.s_tir.SBlock, tvm.s_tir.SBlockRealize
    body = function.body.block.body if isinstance(function.body, realize_type) else function.body
    found = []
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        for block in _rewriting_blocks(statement, block_type):
            weight, packed = block.reads[0].source, block.writes[0].source
            index = next(i for i, param in enumerate(function.params) if param.same_as(weight))
            root = realize_type([], True, block_type([], [], [], "root", statement))
            copy = tirx.PrimFunc([weight, packed], root)
            packing = Packing(
                param=index,
                statement=statement,
                buffer=packed,
                packed=TensorType.of(packed),
                function=copy.with_attrs({"tirx.noalias": True, "s_tir": True}),
                positions=_positions(block, TensorType.of(weight), TensorType.of(packed)),
            )
            found.append(packing)
    return found


def without_packings(mod: Any, packings: Sequence[Packing] | None = None) -> Any:
    """The module without its layout-rewriting blocks, whose parameters are the packed weights.

    This is the function that SplitLayoutRewritePreproc leaves to a deployment. packings: those of `packings_of(mod)`.
    """
    packings = packings_of(mod) if packings is None else packings
    if not packings:
        return mod
    function, root = mod["main"], mod["main"].body.block
    params = list(function.params)
    for packing in packings:
        params[packing.param] = packing.buffer
    kept = [statement for statement in root.body.seq if not any(statement.same_as(p.statement) for p in packings)]
    body = kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)
    allocated = [b for b in root.alloc_buffers if not any(b.same_as(p.buffer) for p in packings)]
    block = tvm.s_tir.SBlock([], [], [], "root", body, None, allocated, [], root.annotations)
    stripped = tirx.PrimFunc(params, tvm.s_tir.SBlockRealize([], True, block), function.ret_type)
    return IRModule({"main": stripped.with_attrs(dict(function.attrs or {}))})


def _rewriting_blocks(statement: Any, block_type: Any) -> list[Any]:
    found: list[Any] = []

    def visit(block: Any) -> None:
        if PREPROC in block.annotations:
            found.append(block)

    structural_walk(statement, (block_type, visit))
    return found


def _positions(block: Any, weight: TensorType, packed: TensorType) -> tuple[NDArray[np.int64], ...] | None:
    """`Packing.positions` of a block that reads the weight in order and writes at indices of one axis each."""
    axes = [axis.var for axis in block.iter_vars]
    store = block.body
    if not isinstance(store, tirx.BufferStore) or type(store.value).__name__ != "TensorLoad":
        return None
    read = store.value.indices
    if len(read) != len(axes) or not all(index.same_as(axis) for index, axis in zip(read, axes, strict=True)):
        return None
    if tuple(int(axis.dom.extent) for axis in block.iter_vars) != weight.shape:
        return None
    strides = np.cumprod([1, *packed.shape[:0:-1]])[::-1]
    positions = [np.zeros(extent, dtype=np.int64) for extent in weight.shape]
    for index, stride in zip(store.indices, strides, strict=True):
        used = [i for i, axis in enumerate(axes) if uses(index, axis)]
        if len(used) > 1:
            return None
        if used:
            (i,) = used
            values = _evaluate(index, axes[i], np.arange(weight.shape[i], dtype=np.int64))
            if values is None:
                return None
            positions[i] += values * int(stride)
    return tuple(positions)


def _evaluate(expression: Any, variable: Any, values: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The expression at each value of its one variable; None where it has other operators than those of _ARITHMETIC."""
    if expression.same_as(variable):
        return values
    kind = type(expression).__name__
    if kind == "IntImm":
        return np.full_like(values, int(expression))
    if kind not in _ARITHMETIC:
        return None
    sides = [_evaluate(side, variable, values) for side in (expression.a, expression.b)]
    if sides[0] is None or sides[1] is None:
        return None
    result: NDArray[np.int64] = _ARITHMETIC[kind](*sides)
    return result

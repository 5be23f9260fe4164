"""Graph preparation: from an ingested Relax module to calls of fused tensor functions.

`prepare` (before tuning) works in this order, one pass a file of this folder:

1. Indices are wrapped and kept within bounds (guard_indices.py). Attention is written out (decompose_attention.py),
   constants are folded (fold_constants.py) and the graph is simplified (simplify/).
2. Batch norms become arithmetic on their parameters (fold_batch_norm.py). Stock FoldBatchnormToConv2D wants constants;
   weights here are arguments.
3. For a CPU, products get the shape in which they are read (PRODUCTS): weights meet (reassociate.py), heads are split in
   the weights (fold_head_split.py), products that share an input become one (merge_matmuls.py), and permutations around
   products are orders of indices (fold_transposes.py).
4. Convolutions go to channels last (NHWC with HWIO weights), the layout whose inner loops vectorise; transposed ones
   are written out (conv_transpose.py); what that moved in vain is simplified away, and slices become views
   (slice_views.py).
5. Everything that depends on parameters only is lifted into `main_transform_params`: it runs once, when weights are
   bound.
6. Operators become tensor functions, which are fused; reshapes that stand alone become views; buffers that hold weights
   are marked, so that a schedule may change their layout.

What comes after schedules were put in is tuner/deploy/finish.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pitchpipe.errors import UnsupportedOperator
from pitchpipe.wire.target import Target
from tuner.graph import conv_transpose
from tuner.graph.decompose_attention import write_out_attention
from tuner.graph.fold_batch_norm import fold_batch_norm
from tuner.graph.fold_head_split import split_heads
from tuner.graph.fold_transposes import absorb_input_layout, absorb_permutations, patches_as_products
from tuner.graph.guard_indices import guard_indices
from tuner.graph.merge_matmuls import join_siblings
from tuner.graph.reassociate import gather_weights
from tuner.graph.scatters import write_out_scatters
from tuner.graph.simplify import simplify
from tuner.graph.slice_views import inner_outputs, view_slices
from tuner.tvm_compat import IRModule, PrimFunc, relax, tirx, to_tvm_target, tvm, tvm_ffi

MAIN = "main"
TRANSFORM = "main_transform_params"
LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
    **conv_transpose.LAYOUTS,
}

KEPT_ATTRIBUTES = frozenset({"tirx.noalias", "layout_free_buffers", "s_tir", "tirx.is_scheduled"})
"""Attributes of a tensor function that its schedule depends on."""


Rewrite = Callable[[Any], Any]
"""Module -> module, main of canonical bindings rewritten."""

ALWAYS: Sequence[Rewrite] = (write_out_scatters, guard_indices, write_out_attention, simplify)
"""The first rewrites, without which others do not find what they look for, or programs read foreign memory."""
PRODUCTS: Sequence[Rewrite] = (
    gather_weights,
    patches_as_products,
    split_heads,
    join_siblings,
    absorb_permutations,
)
"""Rewrites for a CPU that come before layouts, in this order."""
LAYOUT: Sequence[Rewrite] = (simplify, absorb_input_layout, view_slices)
"""Those that come after."""


def prepare(
    mod: Any,
    target: Target,
    *,
    without: Collection[Rewrite] = (),
    watch: Callable[[str, Any], None] = lambda _name, _mod: None,
) -> Any:
    """A module of main(*inputs, *transformed), main_transform_params(params) -> transformed, and tensor functions.

    Depends on nothing but its arguments. `mod` is an ingested module: one function main with `num_input`. `without` are
    rewrites to leave out, for who wants to know what they buy; `watch` is told of every step its name and the module that it
    gets, for who wants to know which one is at fault. Raises UnsupportedOperator when an operator has no implementation.
    """
    transform = relax.transform
    clean = tvm.transform.Sequential(
        [transform.CanonicalizeBindings(), transform.EliminateCommonSubexpr(), transform.DeadCodeElimination([MAIN])]
    )
    on_cpu = target.kind == "llvm"
    rewrites: list[Rewrite] = [
        *(rewrite for rewrite in ALWAYS if on_cpu or rewrite is not write_out_scatters),
        fold_batch_norm,
        transform.DecomposeOpsForInference(),
        *(PRODUCTS if on_cpu else ()),
        transform.ConvertLayout(LAYOUTS),
        conv_transpose.write_out_transposed,
        *(LAYOUT if on_cpu else (simplify,)),
    ]
    lower: list[Rewrite] = [
        transform.LiftTransformParams(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.CanonicalizeBindings(),  # items of tuples that legalising writes down, which FuseOps takes for calls
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        inner_outputs,
        transform.RewriteDataflowReshape(),
        transform.DeadCodeElimination([MAIN, TRANSFORM]),
        transform.AttachAttrLayoutFreeBuffers(),
    ]
    with to_tvm_target(target), tvm.transform.PassContext(opt_level=3):
        for index, rewrite in enumerate(rewrites):
            if index < len(ALWAYS) or rewrite not in without:
                mod = clean(mod)
                watch(_name(rewrite), mod)
                mod = rewrite(mod)
        mod = clean(mod)
        for step in lower:
            watch(_name(step), mod)
            mod = step(mod)
    _check_lowered(mod)
    return _normalise(mod)


def _name(step: Any) -> str:
    return str(step.info.name if hasattr(step, "info") else getattr(step, "__name__", step))


def call_counts(prepared: Any) -> dict[str, int]:
    """Name of a tensor function -> times that one run of main calls it, in the order of first calls."""
    counts: dict[str, int] = {}

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", None) == "relax.call_tir":
            name = expr.args[0].name_hint
            counts[name] = counts.get(name, 0) + 1

    relax.analysis.post_order_visit(prepared[MAIN].body, visit)
    return counts


def workload_module(function: Any) -> Any:
    """The workload of a tensor function of a prepared module: a module that holds it alone, as main."""
    return IRModule({MAIN: function.with_attr("global_symbol", MAIN)})


def _normalise(mod: Any) -> Any:
    """Every tensor function with its blocks numbered and without the attributes that do not matter to a schedule.

    Traces find blocks by name, so equal digests, which are blind to names, must mean equal block names.
    """
    for variable, function in list(mod.functions.items()):
        if isinstance(function, PrimFunc):
            mod.update_func(variable, normalised(function))
    return mod


def normalised(function: Any) -> Any:
    """A tensor function as `prepare` leaves it: blocks numbered, and no attribute but KEPT_ATTRIBUTES."""
    attributes = {key: value for key, value in (function.attrs or {}).items() if key in KEPT_ATTRIBUTES}
    if not attributes.get("layout_free_buffers"):
        attributes.pop("layout_free_buffers", None)
    count = 0

    def rename(block: Any) -> Any:
        nonlocal count
        if block.name_hint == "root":
            return block
        count += 1
        return tvm.s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            f"stage{count - 1}",
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    body = tvm_ffi.structural_map(function.body, (tvm.s_tir.SBlock, rename))
    if body.block.name_hint != "root":  # A function that is one opaque stage (a sort, a scan) has no root around it.
        root = tvm.s_tir.SBlock([], [], [], "root", body)
        body = tvm.s_tir.SBlockRealize([], True, root)
    return tirx.PrimFunc(function.params, body, function.ret_type).with_attrs(attributes)


def _check_lowered(mod: Any) -> None:
    """Raises InvalidModel naming an operator of main that has no implementation as a tensor function."""
    allowed = {"relax.call_tir", "relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset"}

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            name = getattr(expr.op, "name", None) or str(expr.op)
            if name not in allowed:
                raise UnsupportedOperator(f"operator {name} has no implementation for this target")

    relax.analysis.post_order_visit(mod[MAIN].body, visit)

"""Graph preparation: from an ingested Relax module to calls of fused tensor functions.

`prepare` (before tuning) works in this order, one pass a file of this folder:

1. Scatters (scatters.py, for a GPU atomic_scatters.py and gathered_scatters.py) and sorts (sorts.py, for a GPU
   scans.py) are decomposed; for a GPU scans are as well, and whole numbers of few bits are reduced in 32
   (wide_reductions.py). For every target, indices are wrapped and clamped (guard_indices.py), attention
   (decompose_attention.py) and norms of float64 (double_norms.py) are decomposed, constants are folded
   (fold_constants.py) and the graph is simplified (simplify/).
2. Casts around a softmax of half precision are removed (half_precision.py). Batch norms are folded into convolutions
   (fold_batch_norm.py). TVM's FoldBatchnormToConv2D needs weights that are constants; here they are arguments.
3. Products are brought into the layouts in which they are read. Splits become slices (split_slices.py,
   constant_takes.py), which are taken before what computes the elements that they drop (hoist_slices.py,
   crop_convolutions.py), and projections are brought into a form in which they can be merged (shared_weights.py,
   split_projections.py, even_biases.py). What follows convolutions of bytes is computed where it lies
   (sink_channels.py), and on a CPU taps that read padding are dropped (taps_of_padding.py). Sums with weights are
   reassociated (reassociate.py), patch embeddings become products (patch_embedding.py), the head split is folded into
   weights (fold_head_split.py), and matmuls that share an input are merged (merge_matmuls.py). For a GPU, attention
   becomes one tensor function (group_attention.py), and slices that it alone needed whole are taken earlier. Transposes
   are folded into products (fold_transposes.py), of which those with one column and few terms become sums
   (vector_products.py).
4. Convolutions get the layout channels last (channels_last.py), in which the inner loop is vectorised; transposed
   convolutions are decomposed (conv_transpose.py), and functions of single elements are computed where their operand lies
   (sink_transposes.py). The graph is simplified again, to remove permutations that cancel, and
   contiguous slices become views (slice_views.py). For a CPU, columns of products with weights fill vectors
   (target_kinds/cpu/even_columns.py). Resizes go along one axis after another (resizes.py). For a CPU, maxima
   over windows are taken of columns and then of rows (separable_pools.py). For a GPU, sums are made in the layout of their
   operands (align_layouts.py), no reshape is left between operators that one kernel can compute (sink_reshapes.py,
   lift_reshapes.py), large norms of groups become three tensor functions (split_norms.py), and other norms one with what
   is around them (group_rows.py).
5. Whatever depends on parameters only is lifted into `main_transform_params`, which runs once, when weights are bound.
6. Half precision is computed in float32 (half_precision.py). Operators are lowered to tensor functions (max pools by
   max_pools.py, norms of images by image_norms.py), which are fused, look-ups too for a GPU (gathers.py),
   interpolations on a CPU only with what is element-wise (resamplings.py), a long epilogue in parts (long_epilogues.py);
   reshapes that were not fused become views; buffers that hold weights are marked, so that a schedule may change their
   layout. Weights of products in TF32 are rounded (tf32_weights.py).

Which passes a kind of target gets is in its folder (tuner/target_kinds/*/rewrites.py); tuner/deploy/finish.py does the
rest, once schedules were applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import UnsupportedOperator
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tuner.graph.channels_last import channels_last
from tuner.graph.constant_takes import constant_takes
from tuner.graph.conv_transpose import decompose_conv_transpose
from tuner.graph.crop_convolutions import crop_convolutions
from tuner.graph.decompose_attention import decompose_attention
from tuner.graph.double_norms import decompose_double_norms
from tuner.graph.fold_batch_norm import fold_batch_norm
from tuner.graph.guard_indices import guard_indices
from tuner.graph.half_precision import compute_in_float32, fold_casts
from tuner.graph.hoist_slices import hoist_slices
from tuner.graph.legalise import legalise
from tuner.graph.lift_params import lift_params
from tuner.graph.long_epilogues import end_long_epilogues
from tuner.graph.precision import PRECISION, marked, take_precision
from tuner.graph.shared_weights import shared_weights
from tuner.graph.simplify import simplify
from tuner.graph.sink_channels import sink_channels
from tuner.graph.sink_transposes import sink_transposes
from tuner.graph.slice_views import bind_outputs_in_dataflow
from tuner.graph.split_projections import split_projections
from tuner.graph.split_slices import split_slices
from tuner.graph.tf32_weights import nearest_weights
from tuner.tvm_compat import IRModule, PrimFunc, relax, tirx, to_tvm_target, tvm, tvm_ffi

MAIN = "main"
TRANSFORM = "main_transform_params"
KEPT_ATTRIBUTES = frozenset({PRECISION, "tirx.noalias", "layout_free_buffers", "s_tir", "tirx.is_scheduled"})
"""Attributes of a tensor function that its schedule depends on."""


Rewrite = Callable[[Any], Any]
"""A pass: module -> module with main rewritten, whose bindings are canonical."""

ALWAYS: Sequence[Rewrite] = (guard_indices, decompose_attention, decompose_double_norms, simplify)
"""The first passes for every kind of target: others build on them, and without them programs read out of bounds."""
PARTS: Sequence[Rewrite] = (
    *(split_slices, constant_takes, hoist_slices, crop_convolutions, shared_weights),
    *(simplify, split_projections, simplify, sink_channels),
)
"""The first passes over products for every kind of target: nothing is computed that is dropped, or cut apart afterwards."""


@dataclass(frozen=True, kw_only=True)
class Rewrites:
    """The passes that depend on the kind of target (`TargetKind.rewrites`), each in its order."""

    always: Sequence[Rewrite]
    """The first ones, which cannot be left out; ALWAYS among them."""
    products: Sequence[Rewrite]
    """Before the conversion of layouts."""
    layout: Sequence[Rewrite]
    """After it."""
    fusion: Sequence[Rewrite] = ()
    """When operators are tensor functions with TVM's patterns, before they are fused."""
    fused: Sequence[Rewrite] = ()
    """When they are fused."""


def prepare(
    mod: Any,
    target: Target,
    *,
    without: Collection[Rewrite] = (),
    watch: Callable[[str, Any], None] = lambda _name, _mod: None,
) -> Any:
    """A module of main(*inputs, *transformed), main_transform_params(params) -> transformed, and tensor functions.

    The result depends on the arguments alone. Raises UnsupportedOperator when an operator has no implementation.

    mod: an ingested module, which is one function main with the attribute `num_input`.
    without: passes to leave out, to measure what they gain.
    watch: called before every step with its name and the module that it gets, to find the step that is at fault.
    """
    transform = relax.transform
    clean = tvm.transform.Sequential(
        [transform.CanonicalizeBindings(), transform.EliminateCommonSubexpr(), transform.DeadCodeElimination([MAIN])]
    )
    of_kind: Rewrites = kind_of(target).rewrites()
    mod, tf32 = take_precision(mod)
    rewrites: list[Rewrite] = [
        *of_kind.always,
        fold_casts,
        fold_batch_norm,
        transform.DecomposeOpsForInference(),
        *of_kind.products,
        channels_last,
        sink_transposes,
        decompose_conv_transpose,
        *of_kind.layout,
    ]
    lower: list[Rewrite] = [
        compute_in_float32,
        lift_params,
        relax.backend.DispatchSortScan(),
        legalise,
        transform.CanonicalizeBindings(),  # items of tuples that legalising writes down, which FuseOps takes for calls
        transform.DeadCodeElimination([MAIN, TRANSFORM]),  # casts that nothing reads, which would count as readers
        transform.AnnotateTIROpPattern(),
        *of_kind.fusion,
        end_long_epilogues,
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        bind_outputs_in_dataflow,
        transform.RewriteDataflowReshape(),
        transform.DeadCodeElimination([MAIN, TRANSFORM]),
        *of_kind.fused,
        transform.AttachAttrLayoutFreeBuffers(),
    ]
    with to_tvm_target(target), tvm.transform.PassContext(opt_level=3):
        for index, rewrite in enumerate(rewrites):
            if index < len(of_kind.always) or rewrite not in without:
                mod = clean(mod)
                watch(_name(rewrite), mod)
                mod = rewrite(mod)
        mod = clean(mod)
        for step in lower:
            watch(_name(step), mod)
            mod = step(mod)
    _check_lowered(mod)
    mod = _normalise(mod, tf32 if kind_of(target).multiplies_tf32 else frozenset())
    return nearest_weights(mod)


def _name(step: Any) -> str:
    return str(step.info.name if hasattr(step, "info") else getattr(step, "__name__", step))


def calls(prepared: Any) -> list[str]:
    """Names of the tensor functions that one run of main calls, in the order of the calls."""
    names: list[str] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", None) == "relax.call_tir":
            names.append(expr.args[0].name_hint)

    relax.analysis.post_order_visit(prepared[MAIN].body, visit)
    return names


def call_counts(prepared: Any) -> dict[str, int]:
    """Name of a tensor function -> how often one run of main calls it, in the order of first calls."""
    return dict(Counter(calls(prepared)))


def workload_module(function: Any) -> Any:
    """The workload of a tensor function of a prepared module: a module with that function alone, named main."""
    return IRModule({MAIN: function.with_attr("global_symbol", MAIN)})


def _normalise(mod: Any, tf32: frozenset[str]) -> Any:
    """The module with every tensor function normalised, and marked where it may be computed by TF32 (precision.py).

    Digests ignore names, but traces find blocks by name: functions of equal digests must have equal block names.
    """
    for variable, function in list(mod.functions.items()):
        if isinstance(function, PrimFunc):
            mod.update_func(variable, marked(variable.name_hint, normalised(function), tf32))
    return mod


def normalised(function: Any) -> Any:
    """The tensor function with its blocks named stage0, stage1, ..., and without attributes other than KEPT_ATTRIBUTES."""
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
    if body.block.name_hint != "root":  # A function of one opaque block (a sort, a scan) has no root block around it.
        root = tvm.s_tir.SBlock([], [], [], "root", body)
        body = tvm.s_tir.SBlockRealize([], True, root)
    return tirx.PrimFunc(function.params, body, function.ret_type).with_attrs(attributes)


def _check_lowered(mod: Any) -> None:
    """Raises UnsupportedOperator, which names it, when an operator of main was not lowered to a tensor function."""
    allowed = {"relax.call_tir", "relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset"}
    left: list[str] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            name = getattr(expr.op, "name", None) or str(expr.op)
            if name not in allowed:
                left.append(name)

    relax.analysis.post_order_visit(mod[MAIN].body, visit)  # what is raised in there leaves TVM as another error
    if left:
        raise UnsupportedOperator(f"operator {left[0]} has no implementation for this target")

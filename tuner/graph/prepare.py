"""Graph preparation: from an ingested Relax module to calls of fused tensor functions, and on to something to build.

`prepare` (before tuning) works in this order:

1. Indices are wrapped and kept within bounds (tuner/graph/guard_indices.py). Attention is written out
(tuner/graph/decompose_attention.py),
   constants are folded and the graph simplified (tuner/simplify).
2. Batch norms become arithmetic on their parameters (tuner/graph/fold_batch_norm.py). Stock FoldBatchnormToConv2D wants
constants;
   weights here are arguments.
3. For a CPU, products get the shape in which they are read (PRODUCTS): weights meet (tuner/graph/reassociate.py), heads
are split
   in the weights (tuner/graph/fold_head_split.py), products that share an input become one
   (tuner/graph/merge_matmuls.py), and permutations around products are orders of indices
   (tuner/graph/fold_transposes.py).
4. Convolutions go to channels last (NHWC with HWIO weights), the layout whose inner loops vectorise; transposed ones
   are written out (tuner/graph/conv_transpose.py); what that moved in vain is
   simplified away, and slices become views (tuner/graph/slice_views.py).
5. Everything that depends on parameters only is lifted into `main_transform_params`: it runs once, when weights are
   bound.
6. Operators become tensor functions, which are fused; reshapes that stand alone become views; buffers that hold weights
   are marked, so that a schedule may change their layout.

`finish` (after schedules were put in) moves the layout changes that schedules made of weights into
`main_transform_params` as well. It lifts a second time, so what the first lifting made is set aside and called first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pitchpipe.errors import UnsupportedOperator
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.graph import conv_transpose as transposed
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
from tuner.schedule.trace import apply_trace
from tuner.space.default import fixed_trace
from tuner.tvm_compat import IRModule, PrimFunc, dlight, ir, relax, save_ir, tirx, to_tvm_target, tvm, tvm_ffi
from tuner.workload.digest import workload_digest

MAIN = "main"
TRANSFORM = "main_transform_params"
TARGET_ATTRIBUTE = "pitchpipe.target"
"""Module attribute of a prepared module: the key of the target that it was prepared for."""
LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
    **transposed.LAYOUTS,
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
        transposed.write_out_transposed,
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
    return _normalise(mod).with_attr(TARGET_ATTRIBUTE, target.key)


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
            mod.update_func(variable, _normalised(function))
    return mod


def _normalised(function: Any) -> Any:
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


def finish(prepared: Any) -> Any:
    """A module ready for tvm.compile: main(*inputs, *transformed) and main_transform_params(params) -> transformed.

    `prepared` is what `prepare` made, any of its tensor functions replaced by a scheduled one with the same arguments.
    Where a schedule changed the layout of a weight, the change is made in main_transform_params. What that function calls
    gets the default schedule; on a GPU, where nothing runs unscheduled, so does what is left of main.
    """
    target = Target.parse(str(prepared.attrs[TARGET_ATTRIBUTE]))
    transform = relax.transform
    functions = {}
    for variable, function in prepared.functions.items():
        # Tensor functions are private, so that passes may rename them and drop those left without a caller.
        private = function.without_attr("global_symbol") if isinstance(function, PrimFunc) else function
        functions[variable] = private
    first = functions.pop(prepared.get_global_var(TRANSFORM))
    second_lift = [transform.SplitLayoutRewritePreproc(), transform.LiftTransformParams()]
    mod = tvm.transform.Sequential(second_lift)(IRModule(functions))
    mod = transform.DeadCodeElimination([MAIN, TRANSFORM])(_chain(mod, first, functions))
    _schedule_rest(mod, target)
    return mod


def _schedule_rest(mod: Any, target: Target) -> None:
    in_main = call_counts(mod)
    for variable, function in list(mod.functions.items()):
        left_as_it_is = variable.name_hint in in_main and target.kind == "llvm"
        if not isinstance(function, PrimFunc) or left_as_it_is or _has_threads(function):
            continue
        scheduled = _default_schedule(_normalised(function), target)
        mod.update_func(variable, scheduled.without_attr("global_symbol"))


def _default_schedule(function: Any, target: Target) -> Any:
    module = workload_module(function)
    if target.kind == "llvm":
        workload = Workload(digest=workload_digest(module), ir=save_ir(module))
        return apply_trace(module, fixed_trace(workload, target)).mod[MAIN]
    with to_tvm_target(target):
        return dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)[MAIN]


def _has_threads(function: Any) -> bool:
    """Whether a GPU schedule was applied to a tensor function."""
    found = False

    def visit(loop: Any) -> None:
        nonlocal found
        found = found or loop.thread_binding is not None

    tvm_ffi.structural_walk(function.body, (tirx.For, visit))
    return found


def _chain(mod: Any, first: Any, functions: Mapping[Any, Any]) -> Any:
    """The module whose main_transform_params does what `first` does, then what it did.

    `first` calls tensor functions of `functions`, from before the second lifting, which may have changed them.
    """
    originals = {variable.name_hint: function for variable, function in functions.items()}
    second = mod[TRANSFORM]
    builder = relax.BlockBuilder(IRModule({v: f for v, f in mod.functions.items() if v.name_hint != TRANSFORM}))
    renamed: dict[str, Any] = {}

    def rename(variable: Any) -> Any:
        name = variable.name_hint
        if name not in renamed:
            renamed[name] = builder.add_func(originals[name], f"bind_{name}")
        return renamed[name]

    first = tvm_ffi.structural_map(first, (ir.GlobalVar, rename))
    callees = [builder.add_func(_private(first), "bind_params"), builder.add_func(_private(second), "lay_out_params")]
    params = relax.Var(first.params[0].name, first.params[0].ty)
    with builder.function(TRANSFORM, [params]):
        value = params
        for callee in callees:
            value = builder.emit(relax.Call(callee, [value]))
        builder.emit_func_output(value)
    return builder.get()


def _private(function: Any) -> Any:
    return function.without_attr("global_symbol").without_attr("num_input")


def _check_lowered(mod: Any) -> None:
    """Raises InvalidModel naming an operator of main that has no implementation as a tensor function."""
    allowed = {"relax.call_tir", "relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset"}

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            name = getattr(expr.op, "name", None) or str(expr.op)
            if name not in allowed:
                raise UnsupportedOperator(f"operator {name} has no implementation for this target")

    relax.analysis.post_order_visit(mod[MAIN].body, visit)

"""Tasks: the distinct tensor programs of a prepared model, with how often they run and what they cost."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pitchpipe.errors import InvalidModel
from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Signature, Task, TaskKind, TensorShape, Workload
from tuner.graph.prepare import MAIN, call_counts, prepare, workload_module
from tuner.ingest import parse_container
from tuner.ingest.imported import ImportedWorkload, parse_imported
from tuner.schedule.recurrence import find_recurrence
from tuner.tvm_compat import ir, load_ir, save_ir, tirx, tvm, tvm_ffi
from tuner.workload.compulsory import compulsory_bytes, flops_type, least_flops
from tuner.workload.digest import workload_digest

SMALL_CONTRACTION_FLOPS = 1e5
"""A matrix product or convolution below this takes some microseconds whatever its schedule is."""

SMALL_REDUCTION_FLOPS = 2e5
"""The same for chains of reductions (softmax, layer norm), which reach a tenth of a contraction's speed."""

MOST_THREADS = 8
"""Of one split."""


def split_ingested(ingested: bytes, model_format: ModelFormat, targets: Sequence[Target]) -> list[Task]:
    """The tasks of an uploaded model for every target, from what `ingest_bytes` gave. Raises InvalidModel."""
    if model_format is ModelFormat.METASCHEDULE:
        imported = parse_imported(ingested)
        return [task for target in targets for task in _imported_tasks(imported, target)]
    model = parse_container(ingested)
    return [task for target in targets for task in split(prepare(load_ir(model.ir), target), target)]


def _imported_tasks(imported: Sequence[ImportedWorkload], target: Target) -> list[Task]:
    """A task for every workload with traces for this kind of target: they are its seeds, whatever is spent besides."""
    tasks: dict[str, Task] = {}
    for workload in imported:
        if seeds := workload.traces.get(target.kind):
            function = load_ir(workload.ir)[MAIN]
            digest = workload_digest(workload_module(function))
            task = _task("imported", function, digest, 1, target)
            tasks.setdefault(digest, task.model_copy(update={"kind": TaskKind.TUNED, "fixed": None, "seeds": seeds}))
    if not tasks:
        raise InvalidModel(f"no imported trace is for a target of kind {target.kind}")
    return list(tasks.values())


def split(prepared: Any, target: Target) -> list[Task]:
    """The tasks of a prepared module, in the order in which main first calls them; equal workloads are one task.

    What only main_transform_params calls is no task: it runs once, when weights are bound.
    """
    counts, weights = call_counts(prepared), Counter[str]()
    first: dict[str, tuple[str, Any]] = {}
    for variable, function, digest in workload_functions(prepared):
        weights[digest] += counts[variable.name_hint]
        first.setdefault(digest, (variable.name_hint, function))
    kind_of(target).load_intrinsics()  # before there are threads: it changes modules of TVM's while it imports
    # Choosing default schedules takes up to half a second each for a GPU, nearly all of it outside the interpreter's lock.
    with ThreadPoolExecutor(min(usable_cores(), MOST_THREADS)) as threads:
        return list(threads.map(lambda digest: _task(*first[digest], digest, weights[digest], target), first))


def workload_functions(prepared: Any) -> list[tuple[Any, Any, str]]:
    """(GlobalVar, PrimFunc, workload digest) of every tensor function that main calls, in the order of first calls.

    A trace of the workload applies to workload_module(PrimFunc).
    """
    found = []
    for name in call_counts(prepared):
        variable = prepared.get_global_var(name)
        function = prepared[variable]
        found.append((variable, function, workload_digest(workload_module(function))))
    return found


def _task(name: str, function: Any, digest: str, weight: int, target: Target) -> Task:
    module = workload_module(function)
    signed = signature(name, function)
    operators = signed.operators
    stages = [block for block in _blocks(module[MAIN].body) if block.iter_vars]
    workload, of_kind = Workload(digest=digest, ir=save_ir(module)), kind_of(target)
    return Task(
        workload=workload,
        target=target,
        name=f"{operators} {'x'.join(map(str, signed.arguments[-1].shape))}"[:512],
        kind=_kind(stages, signed.flops, find_recurrence(function) is not None),
        weight=weight,
        flops=signed.flops,
        least_flops=least_flops(function),
        flops_type=flops_type(function),
        bytes=compulsory_bytes(function),
        group=f"{operators} {','.join(_iterators(block) for block in stages)}",
        baseline=of_kind.baseline_trace(workload, target),
        fixed=of_kind.default_trace(workload, target),
        signature=signed,
    )


def signature(name: str, function: Any) -> Signature:
    """What a tensor function of that name computes. Its anchor is the stage with the most iterations, reductions first."""
    module = workload_module(function)
    stages = [block for block in _blocks(module[MAIN].body) if block.iter_vars]
    arguments = [TensorShape(shape=tuple(_shape(param.ty)), dtype=str(param.ty.dtype)) for param in function.params]
    loops, does, extents = "", "nothing", list[int]()
    if stages:
        anchor = max(stages, key=lambda block: ("R" in _iterators(block), math.prod(_extents(block))))
        loops, extents = _iterators(anchor), _extents(anchor)
        does = "elements" if "R" not in loops else "products" if _multiplies_two_tensors(anchor) else "reduction"
    return Signature(
        operators=_operators(name)[:512],
        anchor=f"{loops[:64]} {does}",
        extents=tuple(extents[:64]),
        arguments=tuple(arguments)[:256],
        flops=float(tvm.s_tir.analysis.estimate_tir_flops(module)),
    )


def _kind(stages: Sequence[Any], flops: float, recurrent: bool) -> TaskKind:
    """TUNED for contractions, recurrent layers among them, and for chains of reductions, that are not small; FIXED for the
    rest.

    Element-wise work, data movement and single reductions (pooling, means) are bound by memory: a default schedule that
    uses all cores and vectors leaves nothing to find.
    """
    reductions = [block for block in stages if "R" in _iterators(block)]
    if recurrent or any(_multiplies_two_tensors(block) for block in reductions):
        return TaskKind.TUNED if flops >= SMALL_CONTRACTION_FLOPS else TaskKind.FIXED
    return TaskKind.TUNED if len(reductions) >= 2 and flops >= SMALL_REDUCTION_FLOPS else TaskKind.FIXED


def _blocks(body: Any) -> list[Any]:
    """Every block below `body`, inner ones first."""
    found: list[Any] = []
    tvm_ffi.structural_walk(body, (tvm.s_tir.SBlock, found.append))
    return found


def _iterators(block: Any) -> str:
    """One letter per iterator of a block: S spatial, R reduction, O other."""
    letters = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
    return "".join(letters.get(variable.iter_type, "O") for variable in block.iter_vars)


def _multiplies_two_tensors(block: Any) -> bool:
    found = False

    def visit(product: Any) -> None:
        nonlocal found
        left, right = (_loaded(operand) for operand in (product.a, product.b))
        found = found or (left is not None and right is not None and not left.same_as(right))

    tvm_ffi.structural_walk(block.body, (tirx.Mul, visit))
    return found


def _loaded(expr: Any) -> Any:
    """The buffer that an expression loads from, through casts; None if it is no load."""
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr.source if isinstance(expr, ir.TensorLoad) else None


def _extents(block: Any) -> list[int]:
    return [int(variable.dom.extent) for variable in block.iter_vars]


def _shape(ty: Any) -> list[int]:
    return [int(extent) for extent in ty.shape]


def _operators(name: str) -> str:
    """Operator names of a function's name: `fused_conv2d1_add3_relu11` is conv2d_add_relu."""
    return "_".join(part for part in map(_without_number, name.removeprefix("fused_").split("_")) if part)


def _without_number(part: str) -> str:
    return re.sub(r"\d+$", "", part)

"""Grouped convolutions as batches of products.

The channels c of a grouped convolution's result are one axis, and of its data only their group depends on them:
data[.., c // J * K + k] for groups of J columns and K channels. So the axis is one of data, weights and results, as a
batch's is, and neighbours along it share their data, as columns do. Divided into c // J and c % J it is an axis of each
kind, and what schedules batches of products on matrix units takes the convolution for one.
"""

from __future__ import annotations

from typing import Any

from tuner.graph.one_function import with_short_indices
from tuner.tvm_compat import IRModule, PrimFunc, Schedule, dividing, structural_walk, tirx, tvm, tvm_ffi


def batch_groups(mod: Any) -> Any:
    """The module of fused tensor functions with that axis divided."""
    for variable, function in list(mod.functions.items()):
        if isinstance(function, PrimFunc) and (divided := _divided(function)) is not None:
            mod.update_func(variable, divided)
    return mod


def _divided(function: Any) -> Any | None:
    """The function with its grouped convolutions divided, and with them the stages that follow; None where it has none.

    A stage of c would be computed wrongly where a padded product writes: TVM 0.27 keeps c below its end, not c % J below J.
    """
    every: list[Any] = []
    structural_walk(function.body, (tvm.s_tir.SBlock, every.append))
    if not any(_is_convolution(block) for block in every):
        return None
    schedule = Schedule(IRModule({"main": function}), error_render_level="none")
    blocks = schedule.get_child_blocks(schedule.get_sblock("root", "main"))
    products = [block for block in blocks if _is_convolution(schedule.get(block))]
    for product in products:
        if not schedule.get_consumers(product):
            schedule.cache_write(product, 0, "global")
    stages = list(products)
    for stage in stages:
        definition, readers = schedule.get(stage), schedule.get_consumers(stage)
        if (found := _grouped(definition)) is None:
            continue
        axis, dimension, columns = found
        schedule.transform_block_layout(stage, dividing(["int64"] * len(definition.iter_vars), axis, columns))
        if readers:
            schedule.transform_layout(
                stage, ("write", 0), dividing(["int64"] * len(definition.writes[0].region), dimension, columns)
            )
            stages += [reader for reader in readers if reader not in stages]
    made = schedule.mod["main"]
    body = tvm_ffi.structural_map(made.body, (tvm.s_tir.SBlock, with_short_indices))
    return tirx.PrimFunc(made.params, body, made.ret_type, attrs=function.attrs)


def _is_convolution(definition: Any) -> bool:
    """Whether it is a product in groups of its columns; heads of attention that share keys are groups of another axis."""
    if definition.init is None or len(definition.reads) != 2 or (found := _grouped(definition)) is None:
        return False
    return found[1] == len(definition.writes[0].region) - 1


def _grouped(definition: Any) -> tuple[int, int, int] | None:
    """The place of the axis c by whose quotient c // J a stage reads, the dimension that c is of its result, and J; None
    where there is no such axis, or more than one."""
    written = [dim.min for dim in definition.writes[0].region]
    found: set[tuple[int, int, int]] = set()
    for place, axis in enumerate(definition.iter_vars):
        dimension = next((at for at, index in enumerate(written) if index.same_as(axis.var)), None)

        def look(quotient: Any, place: int = place, axis: Any = axis, dimension: int | None = dimension) -> None:
            if dimension is not None and quotient.a.same_as(axis.var) and isinstance(quotient.b, tirx.IntImm):
                columns = int(quotient.b)
                if columns > 1 and int(axis.dom.extent) % columns == 0:
                    found.add((place, dimension, columns))

        for read in definition.reads:
            for dim in read.region:
                structural_walk(dim.min, (tirx.FloorDiv, look))
    return found.pop() if len(found) == 1 else None

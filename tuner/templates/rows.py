"""A workload read as a chain of stages that share rows: softmax, norms, attention.

Every stage but the last reduces: a sum, a maximum or a minimum along a row, or a product of what a row holds with an operand
that has columns of its own. What is element-wise in between is a part of the expressions, by TVM's own inlining. Axes that
all stages have and none reduces are the rows; of these, axes that an operand with columns has too are batches (the heads of
an attention). A block that holds whole rows of one batch can compute the chain without writing anything in between.

Axes of different stages are one axis where one stage reads what another wrote. A stage that has two axes where the one that
it reads has one, their product in row-major order, as batches and heads of a masked softmax between two products, has that
one as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tuner.templates.contraction import (
    MAX_BATCH,
    MAX_ELEMENTS,
    OPERANDS,
    Axis,
    NotRecognised,
    is_zero,
    reduces,
    store_of,
    substituted,
)
from tuner.tvm_compat import Schedule, inline_into_producer, ir, joining, structural_walk, tirx, uses

LARGEST = 3.4028234663852886e38
"""The largest number of float32."""
WEAKEST = {"max": -math.inf, "min": math.inf}
"""What changes no result of a reduction of this kind."""
MAX_STAGES = 8
MAX_COLUMNS = 1 << 14
"""Of a stage: a block holds all of them."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a stage computes of a row."""

    kind: Literal["sum", "max", "min", "product", "write"]
    columns: tuple[Axis, ...]
    """Of the tile in which it computes: those along which it reduces; those of the result of a product or a write."""
    summed: tuple[Axis, ...]
    """Of a product: k."""
    value: Any
    """Expression of a row and a column; of a product, A as an expression of a row and k."""
    other: Any
    """Of a product: B, an expression of k and a column."""
    start: float
    """Of a reduction: what it begins with, an infinity where TVM begins with the largest finite number."""
    buffer: Any
    indices: tuple[Any, ...]
    """Of the element that is written."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A workload that is such a chain."""

    params: tuple[Any, ...]
    constant: frozenset[int]
    """Places of those that hold weights, which no kernel of a run writes."""
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    tf32: bool

    def extent(self, axes: Literal["batch", "rows"]) -> int:
        return math.prod(axis.extent for axis in getattr(self, axes))

    @property
    def weights(self) -> list[Any]:
        """Parameters that hold weights."""
        return [self.params[at] for at in sorted(self.constant)]

    @property
    def multiplies(self) -> bool:
        """Whether a stage is a product."""
        return any(stage.kind == "product" for stage in self.stages)


def find_rows(mod: Any) -> Rows:
    """The chain of a workload's module. Raises NotRecognised, which says what else it is."""
    schedule = Schedule(mod, debug_mask=0, error_render_level="none")
    try:
        blocks = _isolated(schedule)
    except NotRecognised:
        raise
    except Exception as error:  # TVM raises whatever its C++ side met
        raise NotRecognised("what is computed around the reductions cannot be inlined") from error
    return _Reader(mod["main"], [schedule.get(block) for block in blocks]).rows()


def _isolated(schedule: Any) -> list[Any]:
    """The reductions in their order, and the block that writes the result, everything else inlined into these."""

    def children() -> list[Any]:
        return list(schedule.get_child_blocks(schedule.get_sblock("root")))

    found = children()
    reductions = [block for block in found if reduces(schedule.get(block))]
    if not 1 <= len(reductions) < MAX_STAGES:
        raise NotRecognised(f"{len(reductions)} stages of the workload reduce")
    for block in found:
        while (pair := _as_one(schedule, block)) is not None:
            _make_one(schedule, block, *pair)
    for block in found:
        if schedule.get_consumers(block) and not reduces(schedule.get(block)):
            schedule.compute_inline(block)
    last = reductions[-1]
    after = schedule.get_consumers(last)
    if len(after) <= 1 and len(children()) == len(reductions) + len(after):
        copied = schedule.cache_write(last, 0, "local")
        if after and not _reads_another(schedule, after[0], reductions[:-1]):
            inline_into_producer(schedule, after[0])
        elif after:
            schedule.compute_inline(copied)
    blocks = children()
    if len(blocks) != len(reductions) + 1:
        raise NotRecognised("the workload has more than one result")
    return blocks


def _as_one(schedule: Any, block: Any) -> tuple[int, int] | None:
    """(the place of the first of two neighbouring axes of a block, the extent of the second) that are one axis of what
    another stage wrote; None where there are no such two."""
    definition = schedule.get(block)
    axes = [axis.var for axis in definition.iter_vars]
    made = [schedule.get(one).writes[0].source for one in schedule.get_producers(block)]
    loads: list[Any] = []
    structural_walk(definition.body, (ir.TensorLoad, loads.append))
    for load in loads:
        for index in load.indices if any(load.source.same_as(one) for one in made) else ():
            match index:
                case tirx.Add(a=tirx.Mul(a=tirx.Var() as first, b=tirx.IntImm() as count), b=tirx.Var() as second):
                    at = next((at for at, axis in enumerate(axes[:-1]) if axis.same_as(first)), None)
                    if at is None or not axes[at + 1].same_as(second):
                        continue
                    if int(definition.iter_vars[at + 1].dom.extent) == int(count):
                        return at, int(count)
    return None


def _make_one(schedule: Any, block: Any, at: int, count: int) -> None:
    """Makes two neighbouring axes of a block one, and those of the intermediate that it writes."""
    definition = schedule.get(block)
    first, second = (definition.iter_vars[place].var for place in (at, at + 1))
    indices = [dim.min for dim in definition.writes[0].region]
    schedule.transform_block_layout(block, joining([axis.var.ty.dtype for axis in definition.iter_vars], at, count))
    places = [place for place, index in enumerate(indices) if index.same_as(first)]
    neighbours = len(places) == 1 and places[0] + 1 < len(indices) and indices[places[0] + 1].same_as(second)
    if neighbours and schedule.get_consumers(block):
        schedule.transform_layout(block, ("write", 0), joining([index.ty.dtype for index in indices], places[0], count))


def _reads_another(schedule: Any, block: Any, reductions: Sequence[Any]) -> bool:
    """Whether a block reads the result of one of these, or more elements than it has rows: it has columns of its own."""
    producers = [schedule.get(one).name_hint for one in schedule.get_producers(block)]
    if {schedule.get(one).name_hint for one in reductions} & set(producers):
        return True
    spatial = math.prod(int(axis.dom.extent) for axis in schedule.get(block).iter_vars)
    (producer,) = schedule.get_producers(block)
    own = [axis for axis in schedule.get(producer).iter_vars if int(axis.iter_type) != tirx.IterVar.CommReduce]
    return spatial != math.prod(int(axis.dom.extent) for axis in own)


class _Reader:
    """Reads the blocks."""

    def __init__(self, function: Any, blocks: Sequence[Any]) -> None:
        self._function, self._blocks = function, blocks
        self._axes: list[tuple[Any, Axis]] = []
        """A variable of a block, and the axis that it stands for."""
        self._written: list[tuple[Any, tuple[Axis | None, ...]]] = []
        """An intermediate buffer, and the axis of each of its dimensions."""

    def rows(self) -> Rows:
        for block in self._blocks:
            self._name_axes(block)
        shared = [
            axis for axis in self._spatial(self._blocks[0]) if all(axis in self._spatial(b) for b in self._blocks)
        ]
        if not shared and any(self._spatial(block) for block in self._blocks):
            raise NotRecognised("the stages share no rows")
        stages = [self._stage(block, shared) for block in self._blocks]
        others = [stage.other for stage in stages if stage.other is not None]
        batch = tuple(axis for axis in shared if any(uses(other, axis.variable) for other in others))
        found = Rows(
            params=tuple(self._function.params),
            constant=frozenset(int(at) for at in (self._function.attrs or {}).get("layout_free_buffers", [])),
            batch=batch,
            rows=tuple(axis for axis in shared if axis not in batch),
            stages=tuple(stages),
            tf32=str((self._function.attrs or {}).get("precision", "")) == "tf32",
        )
        _check_sizes(found)
        return found

    def _name_axes(self, block: Any) -> None:
        """Finds which variables of a block are axes of blocks before it."""
        loads: list[Any] = []
        structural_walk(block.body, (ir.TensorLoad, loads.append))
        extents = {axis.var: int(axis.dom.extent) for axis in block.iter_vars}
        own: list[tuple[Any, Axis]] = []
        for load in loads:
            dimensions = next((axes for buffer, axes in self._written if buffer.same_as(load.source)), None)
            for index, axis in zip(load.indices, dimensions or (), strict=dimensions is not None):
                if axis is None and (is_zero(index) or extents.get(index) == 1):
                    continue
                if axis is None or not isinstance(index, tirx.Var) or extents.get(index) != axis.extent:
                    raise NotRecognised("a stage reads another not row by row")
                known = next((other for variable, other in own if variable.same_as(index)), axis)
                if known is not axis:
                    raise NotRecognised("a stage reads rows of another at two places")
                own.append((index, axis))
        for variable, extent in extents.items():
            if extent > 1 and not any(variable.same_as(other) for other, _ in own):
                own.append((variable, Axis(variable=variable, extent=extent)))
        self._axes += own
        store = store_of(block.body)
        if store is None:
            raise NotRecognised("a stage is more than one assignment")
        self._written.append((store.buffer, tuple(self._axis(index) for index in store.indices)))

    def _axis(self, expression: Any) -> Axis | None:
        return next((axis for variable, axis in self._axes if expression.same_as(variable)), None)

    def _spatial(self, block: Any) -> list[Axis]:
        return self._of(block, reduced=False)

    def _of(self, block: Any, *, reduced: bool) -> list[Axis]:
        kind = tirx.IterVar.CommReduce
        found = [self._axis(axis.var) for axis in block.iter_vars if (int(axis.iter_type) == kind) is reduced]
        return [axis for axis in found if axis is not None]

    def _stage(self, block: Any, shared: Sequence[Axis]) -> Stage:
        store = store_of(block.body)
        own = tuple(axis for axis in self._spatial(block) if axis not in shared)
        reduced = tuple(self._of(block, reduced=True))
        place = {variable: axis.variable for variable, axis in self._axes} | {
            axis.var: 0 for axis in block.iter_vars if int(axis.dom.extent) == 1
        }

        def plain(expression: Any) -> Any:
            return substituted(expression, place)

        indices = tuple(plain(index) for index in store.indices)
        common = {"buffer": store.buffer, "indices": indices, "start": 0.0}
        if not reduces(block):
            return Stage(kind="write", columns=own, summed=(), value=plain(store.value), other=None, **common)
        kind, value, common["start"] = _reduction(block, store)
        if not own:
            return Stage(kind=kind, columns=reduced, summed=(), value=plain(value), other=None, **common)
        if kind != "sum" or not isinstance(value, tirx.Mul):
            raise NotRecognised("a stage with columns of its own reduces and is no product")
        sides = [_without_cast(plain(side), store) for side in (value.a, value.b)]
        wide = [any(uses(side, axis.variable) for axis in own) for side in sides]
        if wide == [True, False]:
            sides.reverse()
        elif wide != [False, True]:
            raise NotRecognised("both operands of a product have its columns")
        dtypes = {str(side.ty.dtype) for side in sides}
        if len(dtypes) != 1 or OPERANDS.get(*dtypes) != "float32" or str(store.buffer.ty.dtype) != "float32":
            raise NotRecognised(f"a product of {' and '.join(sorted(dtypes))}")
        return Stage(kind="product", columns=own, summed=reduced, value=sides[0], other=sides[1], **common)


def _reduction(block: Any, store: Any) -> tuple[Literal["sum", "max", "min"], Any, float]:
    """What a block reduces by, what it reduces, and what it begins with."""
    kinds: dict[type, Literal["sum", "max", "min"]] = {tirx.Add: "sum", tirx.Max: "max", tirx.Min: "min"}
    value, kind = store.value, kinds.get(type(store.value))
    if kind is None or not (isinstance(value.a, ir.TensorLoad) and value.a.source.same_as(store.buffer)):
        raise NotRecognised("a reduction that is no sum, maximum or minimum")
    start = store_of(block.init)
    first = float(getattr(getattr(start, "value", None), "value", "nan"))
    if math.isnan(first) or (kind == "sum" and first != 0):
        raise NotRecognised("a reduction that does not begin with a number, or a sum that does not with zero")
    if str(store.buffer.ty.dtype) != "float32":
        raise NotRecognised(f"a reduction in {store.buffer.ty.dtype}")
    weakest = WEAKEST.get(kind)
    if weakest is not None and first == math.copysign(LARGEST, weakest):
        first = weakest
    return kind, value.b, first


def _without_cast(side: Any, store: Any) -> Any:
    return side.value if isinstance(side, tirx.Cast) and side.ty.dtype == store.value.ty.dtype else side


def _check_sizes(found: Rows) -> None:
    sizes = [math.prod(int(extent) for extent in param.ty.shape) for param in found.params]
    if max(sizes) > MAX_ELEMENTS:
        raise NotRecognised("a tensor has more elements than 32 bits count")
    if found.extent("batch") > MAX_BATCH:
        raise NotRecognised(f"a batch of {found.extent('batch')}, the cap is {MAX_BATCH}")
    for stage in found.stages:
        for axes in (stage.columns, stage.summed):
            if math.prod(axis.extent for axis in axes) > MAX_COLUMNS:
                raise NotRecognised(f"a row has more than {MAX_COLUMNS} columns")

"""Long lines sorted for a GPU: runs of them by a network of comparisons (tuner/schedule/sorting.py), which are then joined.

    all in order    neighbouring runs are merged two by two: each element of the result finds by bisection how many of those
                    before it are of the first run (S. Odeh and others, "Merge path", 2012), once for each doubling
    the first k     of each run are kept, and sorted again in runs, until there is one; k is at most half of a run

What is sorted is words of 64 bits: a key of 32 bits, a whole number in the order of the elements (sorts.py), above the place
of the element in its line. So equal elements keep their order, and nothing but words is read on the way. Keys of 64 bits are
sorted by their lower half first, and what is in that order by the upper one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import static_shape
from tuner.graph.one_function import dtype_of
from tuner.graph.sorts import Sort, elements_at, key_of
from tuner.schedule.sorting import RUN, WORD, Sorting, workload
from tuner.tvm_compat import ir_builder, relax, te, tir_script, tirx

SHORT = 64
"""Elements of a line of which every two are compared with each other (scans.py): no kernel more, and threads for every line
that are busy."""
_LONGEST = 1 << 31
"""Places are below it."""
_HALF = 32
"""Bits of a key in a word."""


def is_long(sort: Sort) -> bool:
    """Whether lines are sorted in runs."""
    return SHORT < sort.extent <= _LONGEST


def places_in_order(builder: Any, x: Any, sort: Sort, dtype: str) -> Any:
    """The places of the first elements of each line in order; x, the result and what is between are bound."""

    def key(value: Any) -> Any:
        return ~key_of(value) if sort.descending else key_of(value)

    def emitted(make: Callable[..., Any], *tensors: Any) -> Any:
        return builder.emit(builder.call_te(make, *tensors, primfunc_name_hint=make.__name__))

    def words(x: Any) -> Any:
        return te.compute(x.shape, lambda *at: _word(key(x(*at)), at[sort.axis]), name="words")

    def lower_words(x: Any) -> Any:
        return te.compute(x.shape, lambda *at: _word(_lower(key(x(*at))), at[sort.axis]), name="words")

    def upper_words(x: Any, ordered: Any) -> Any:
        def word(*at: Any) -> Any:
            own = (*at[: sort.axis], _place(ordered(*at)), *at[sort.axis + 1 :])
            return _word(key(x(*own)) >> tirx.const(_HALF, WORD), at[sort.axis])

        return te.compute(x.shape, word, name="words")

    def places(ordered: Any) -> Any:
        shape = [*ordered.shape[: sort.axis], sort.count, *ordered.shape[sort.axis + 1 :]]
        return te.compute(shape, lambda *at: _place(ordered(*at)).astype(dtype), name="places")

    if dtype_of(x) not in ("float64", "int64", "uint64"):
        return emitted(places, _in_order(builder, emitted(words, x), sort.axis, sort.count))
    lower = _in_order(builder, emitted(lower_words, x), sort.axis, sort.extent)
    upper = _in_order(builder, emitted(upper_words, x, lower), sort.axis, sort.count)
    return builder.emit(
        builder.call_te(
            lambda lower, upper: elements_at(places(lower), places(upper), sort.axis),
            lower,
            upper,
            primfunc_name_hint="places",
        )
    )


def _word(key: Any, place: Any) -> Any:
    return (tirx.Cast(WORD, key) << tirx.const(_HALF, WORD)) | tirx.Cast(WORD, place)


def _place(word: Any) -> Any:
    return word & tirx.const((1 << _HALF) - 1, WORD)


def _lower(key: Any) -> Any:
    """The lower half of a key of 64 bits as a signed number, in its order as one without a sign."""
    return tirx.Cast("int32", key ^ tirx.const(1 << (_HALF - 1), WORD))


def _in_order(builder: Any, words: Any, axis: int, count: int) -> Any:
    """The first words of each line in order; all of them, where they are more than half of a run."""

    def in_runs(words: Any, count: int) -> Any:
        sorting = Sorting(shape=tuple(static_shape(words) or []), axis=axis, count=count)
        written = relax.TensorType(sorting.result, WORD)
        return builder.emit(relax.call_tir(builder.add_func(workload(sorting), "sort"), (words,), written))

    extent = (static_shape(words) or [])[axis]
    if 2 * count <= RUN or extent <= RUN:
        words = in_runs(words, count)
        return words if extent <= RUN else _in_order(builder, words, axis, count)
    words, run = in_runs(words, RUN), RUN
    while run < extent:
        words, run = builder.emit(builder.call_te(_merged, words, axis, run, primfunc_name_hint="merge")), 2 * run
    return words


def _merged(words: Any, axis: int, run: int) -> Any:
    """The words with every two runs of so many along the axis as one."""
    return te.extern(
        [words.shape], [words], lambda ins, outs: _merging(ins[0], outs[0], axis, run), dtype=WORD, name="merge"
    )


def _merging(words: Any, out: Any, axis: int, run: int) -> Any:
    shape = [int(extent) for extent in out.shape]
    extent = shape[axis]

    def number(value: int) -> Any:
        return tirx.const(value, "int64")

    with ir_builder.IRBuilder() as builder:
        with contextlib.ExitStack() as nest:
            at = [nest.enter_context(tir_script.serial(0, number(each))) for each in shape]

            def word(position: Any) -> Any:
                return words[(*at[:axis], tirx.min(position, number(extent - 1)), *at[axis + 1 :])]

            begin = tirx.floordiv(at[axis], number(2 * run)) * number(2 * run)
            before, middle = at[axis] - begin, begin + number(run)
            first = tirx.min(number(run), number(extent) - begin)
            second = tirx.max(tirx.min(number(run), number(extent) - middle), number(0))
            low, high = (tir_script.alloc_buffer((1,), "int64", scope="local") for _ in range(2))
            tir_script.buffer_store(low, tirx.max(before - second, number(0)), [0])
            tir_script.buffer_store(high, tirx.min(before, first), [0])
            with tir_script.serial(0, run.bit_length()):
                half = tir_script.bind((low[0] + high[0]) >> number(1))
                with tir_script.If(low[0] < high[0]), tir_script.Then():
                    behind = tir_script.bind(word(middle + before - half - number(1)) < word(begin + half))
                    tir_script.buffer_store(high, tirx.Select(behind, half, high[0]), [0])
                    tir_script.buffer_store(low, tirx.Select(behind, low[0], half + number(1)), [0])
            one = tir_script.bind(word(begin + low[0]))
            other = tir_script.bind(word(middle + before - low[0]))
            of_first = tirx.all(low[0] < first, tirx.any(before - low[0] >= second, one < other))
            tir_script.buffer_store(out, tirx.Select(of_first, one, other), at)
        return builder.get()

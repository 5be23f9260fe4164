"""Maxima and minima that are NaN where an operand is, as in the frameworks, for code generators of CPUs (for GPUs:
device_extrema.py).

TVM's max(a, b) is a comparison that gives b where it fails, which loses a NaN in a. A constant comes first, at no cost: so
NaN stays NaN through rectifiers and clipping. Of two others the second, which in a reduction is the new element, comes first
and is asked whether it is a number, so that what has been reduced waits for no comparison. On AVX-512 that is one
instruction more.

The maximum of a softmax is left as it is: it is subtracted from the elements, whose NaN goes through exp into the sum by
which all of them are divided. Another reduction begins with an infinity; TVM's begins with the largest finite number, which
is not the maximum of elements that are all minus infinity.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

from tuner.tvm_compat import ir, structural_walk, tirx, tvm_ffi

LARGEST = frozenset((3.4028234663852886e38, 1.7976931348623157e308, 65504.0, 3.3895313892515355e38))
"""The largest numbers of float32, float64, float16 and bfloat16."""
_EXTREMA = (tirx.Max, tirx.Min)
_CHOICE = "prim.if_then_else"


def has_exponentials(function: Any) -> bool:
    """Whether there is a call of exp, as in a softmax. Before exp becomes arithmetic."""
    found: list[bool] = []
    structural_walk(function.body, [(ir.Call, lambda call: found.append(getattr(call.op, "name", "") == "tirx.exp"))])
    return any(found)


def keep_nan(function: Any, *, exponentials: bool) -> Any:
    """The tensor function with maxima and minima of floating-point numbers that keep NaN. After bfloat16 was expanded, so
    that it has none; `exponentials` is what `has_exponentials` said of the function as it was."""
    stores = _stores(function.body)
    reduced = extrema_of(function.body)
    summed = any(isinstance(store.value, tirx.Add) and _reads(store.value.a, store.buffer) for store in stores)
    exempt = _subtracted(stores, reduced - set(function.params)) if exponentials and summed else set()

    def stored(store: Any) -> Any:
        value = store.value
        if store.buffer in exempt and (_updates(store) or isinstance(value, tirx.FloatImm)):
            return store
        if store.buffer in reduced and not (begun := _from_infinity(store)).same_as(store):
            return begun
        kept = tvm_ffi.structural_map(value, [(each, _kept) for each in _EXTREMA])
        return store if kept.same_as(value) else tirx.BufferStore(store.buffer, kept, store.indices)

    body = tvm_ffi.structural_map(function.body, [(tirx.BufferStore, stored)])
    return function if body.same_as(function.body) else function.with_body(body)


def extrema_of(body: Any) -> set[Any]:
    """The buffers of a function that are reduced into by maximum or minimum."""
    return {store.buffer for store in _stores(body) if _updates(store)}


def from_infinity(body: Any, buffers: set[Any]) -> Any:
    """The function's body with an infinity wherever the largest finite number is stored in one of these buffers."""
    return tvm_ffi.structural_map(
        body, [(tirx.BufferStore, lambda store: _from_infinity(store) if store.buffer in buffers else store)]
    )


def _from_infinity(store: Any) -> Any:
    """The store, of an infinity where it is of the largest finite number."""
    value = store.value
    if not isinstance(value, tirx.FloatImm) or abs(float(value.value)) not in LARGEST:
        return store
    begin = math.inf if float(value.value) > 0 else -math.inf
    return tirx.BufferStore(store.buffer, tirx.const(begin, value.ty.dtype), store.indices)


def _stores(body: Any) -> list[Any]:
    stores: list[Any] = []
    structural_walk(body, [(tirx.BufferStore, stores.append)])
    return stores


def _kept(extreme: Any) -> Any:
    a, b = extreme.a, extreme.b
    if "float" not in str(extreme.ty.dtype):
        return extreme
    return _of(type(extreme), b, a) if isinstance(a, tirx.FloatImm) else _of(type(extreme), a, b)


def _of(kind: Any, a: Any, b: Any) -> Any:
    if isinstance(b, tirx.FloatImm):
        if float(b.value) == (-math.inf if kind is tirx.Max else math.inf):  # what pools are padded with
            return a
        return b if math.isnan(b.value) else kind(b, a)
    if isinstance(b, tirx.Cast) and "float" not in str(
        b.value.ty.dtype
    ):  # never NaN; LLVM code asks no vector of booleans
        return kind(b, a)
    if isinstance(a, ir.TensorLoad) and isinstance(b, ir.Call) and getattr(b.op, "name", "") == _CHOICE:
        # Padding: one branch in place of two. It takes a twice, so in a chain of maxima code would double with each.
        condition, chosen, other = b.args
        return tirx.if_then_else(condition, _of(kind, a, chosen), _of(kind, a, other))
    if isinstance(b, ir.Var):
        return tirx.Select(_is_number(b), kind(b, a), b)
    value = tirx.Var("value", b.ty)
    return tirx.Let(value, b, _of(kind, a, value))


def _is_number(x: Any) -> Any:
    """x = x, which holds for all but NaN. TVM takes it for true unless one of the two has been through its bits; it takes
    x != x for false even then, and does not vectorise a loop with `isnan`."""
    dtype = str(x.ty.dtype)
    return tirx.EQ(tirx.reinterpret(dtype, tirx.reinterpret(dtype.replace("float", "uint"), x)), x)


def _updates(store: Any) -> bool:
    """Whether it is a step of a reduction by maximum or minimum."""
    return isinstance(store.value, _EXTREMA) and _reads(store.value.a, store.buffer)


def _reads(value: Any, buffer: Any) -> bool:
    return isinstance(value, ir.TensorLoad) and value.source.same_as(buffer)


def _subtracted(stores: list[Any], extrema: set[Any]) -> set[Any]:
    """Of buffers that hold extrema, those that are only subtracted, they or what they are copied or reduced into."""
    given: dict[Any, set[Any]] = defaultdict(set)
    found = set(extrema)
    for store in stores:
        reads: Counter[Any] = Counter()
        subtracted: Counter[Any] = Counter()
        visitors = [
            (ir.TensorLoad, lambda load, reads=reads: reads.update([load.source])),
            (tirx.Sub, lambda sub, subtracted=subtracted: subtracted.update(_source(sub.b))),
        ]
        structural_walk(store.value, visitors)
        handed = [store.value.a, store.value.b] if _updates(store) else [store.value]
        passed = Counter(source for each in handed for source in _source(each))
        for buffer in extrema & set(reads):
            if passed[buffer] and not store.buffer.same_as(buffer):
                given[buffer].add(store.buffer)
            if reads[buffer] > subtracted[buffer] + passed[buffer]:
                found.discard(buffer)
    while lost := {buffer for buffer in found if not given[buffer] <= found}:
        found -= lost
    return found


def _source(value: Any) -> list[Any]:
    return [value.source] if isinstance(value, ir.TensorLoad) else []

"""ONNX Runtime's attention: Attention, MultiHeadAttention and GroupQueryAttention, as products and a softmax.

Letters of shapes: B batch, S length of queries, T of keys (those of the past included), N heads, H size of a head.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from tuner.ingest.onnx.definition import Definition
from tuner.ingest.onnx.frontend import MICROSOFT
from tuner.ingest.onnx.node import Node
from tuner.ingest.onnx.readers.fused import rotated
from tuner.ingest.onnx.registry import reader

MASKED = -10000.0
"""Default of what is added to the score of a key that is masked."""


@reader("Attention", domain=MICROSOFT)
def attention(node: Node) -> Any:
    """Of one tensor with itself; its projections are done here as well."""
    if node.attribute("do_rotary", 0) or node.attribute("past_present_share_buffer", 0) or node.given(6):
        node.refuse("with a rotary embedding or a shared buffer of the past")
    write = Definition(node)
    heads, (batch, length, _) = int(node.attributes["num_heads"]), node.shape(0)
    third = node.shape(1)[1] // 3
    sizes = [int(size) for size in node.attribute("qkv_hidden_sizes") or [third] * 3]
    projected = write("MatMul", write.wide(0), write.wide(1))
    if node.given(2):
        projected = write("Add", projected, write.wide(2))
    bounds = [0, *np.cumsum(sizes).tolist()]
    query, key, value = (
        _heads(write, write.part(projected, 2, begin, end), (batch, length, heads, size // heads))
        for (begin, end), size in zip(pairwise(bounds), sizes, strict=True)
    )
    total = length
    if node.given(4):
        past = write.wide(4)
        total += node.shape(4)[3]
        key, value = (
            write("Concat", write("Squeeze", write.part(past, 0, at, at + 1), write.integers(0)), each, axis=2)
            for at, each in enumerate((key, value))
        )
    biases = [_of_mask(write, 3, batch, total), _causal(write, length, total)]
    biases += [write.wide(5)] if node.given(5) else []
    found = _attended(write, query, key, value, biases, sizes[0] // heads)
    present = ""
    if node.wants(1):
        both = [write("Unsqueeze", each, write.integers(0)) for each in (key, value)]
        present = write.narrow(write("Concat", *both, axis=0))
    return write.function([write.narrow(_joined(write, found, (batch, length, sizes[2]))), present])


@reader("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(node: Node) -> Any:
    """Of queries, keys and values that were projected before, alone or packed into one tensor."""
    if any(node.given(position) for position in (8, 9)):
        node.refuse("with a shared buffer of the past")
    write = Definition(node)
    heads, shape = int(node.attributes["num_heads"]), node.shape(0)
    batch, length = shape[:2]
    bias = write.wide(3)
    if len(shape) == 5 or (node.given(1) and len(node.shape(1)) == 5):
        node.refuse("of operands packed into one tensor")
    if not node.given(1) or not node.given(2):
        node.refuse("of a query alone")
    width, split = shape[2], len(node.shape(1)) == 4
    values = node.shape(2)[1] * node.shape(2)[3] if split else node.shape(2)[2]
    if split and bias:
        node.refuse("with a bias of keys that are split into heads")
    keys = node.shape(1)[2] if split else node.shape(1)[1]
    parts = [(0, width, length, 0), (1, width, keys, width), (2, values, keys, 2 * width)]
    found = []
    for position, size, extent, begin in parts:
        each = write.wide(position)
        if bias:
            each = write("Add", each, write.part(bias, 0, begin, begin + size))
        if position and split:
            found.append(each)
        else:
            found.append(_heads(write, each, (batch, extent, heads, size // heads)))
    query, key, value = found
    total = keys
    if node.given(6):
        total += node.shape(6)[2]
        key, value = (
            write("Concat", write.wide(at), each, axis=2) for at, each in zip((6, 7), (key, value), strict=True)
        )
    biases = [_of_mask(write, 4, batch, total), _causal(write, length, total)]
    biases += [write.wide(5)] if node.given(5) else []
    attended = _attended(write, query, key, value, biases, width // heads)
    output = write.narrow(_joined(write, attended, (batch, length, values)))
    return write.function([output, write.narrow(key), write.narrow(value)])


@reader("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(node: Node) -> Any:
    """Of a whole prompt: causal, without a past. Where there is one, how much of its buffer counts only a run knows."""
    past = node.given(3) and 0 not in node.shape(3)
    known = node.integers(6)
    batch, length, width = node.shape(0)
    if past or (known is not None and known != [length]):
        node.refuse("with keys and values of the past")
    odd = any(node.given(position) for position in (10, 11)) or node.attribute("smooth_softmax", 0) == 1
    if odd or node.wants(3) or node.attribute("k_quant_type", "NONE") not in ("NONE", ""):
        node.refuse("with a bias, a sink or quantised keys")
    write = Definition(node)
    heads, groups = int(node.attributes["num_heads"]), int(node.attributes["kv_num_heads"])
    packed = not node.given(1)
    size = width // (heads + 2 * groups) if packed else width // heads
    extents = [heads * size, groups * size, groups * size]
    bounds = [0, *np.cumsum(extents).tolist()]
    given = [write.wide(position) for position in range(3)]
    if packed:
        given = [write.part(given[0], 2, begin, end) for begin, end in pairwise(bounds)]
    counts = (heads, groups, groups)
    query, key, value = (
        _heads(write, each, (batch, length, count, size)) for each, count in zip(given, counts, strict=True)
    )
    if node.attribute("do_rotary", 0):
        if node.given(9):
            place, place_shape = write.operand(9), node.shape(9)
        else:
            place, place_shape = write.constant([list(range(length))] * batch, "int64"), (batch, length)
        query, key = (
            rotated(write, each, (batch, count, length, size), place, place_shape, (7, 8))
            for each, count in ((query, heads), (key, groups))
        )
    results = [write.narrow(key), write.narrow(value)]
    if heads != groups:
        key, value = (_repeated(write, each, (batch, groups, length, size), heads // groups) for each in (key, value))
    window = int(node.attribute("local_window_size", -1))
    after = np.arange(length)[None, :] > np.arange(length)[:, None]
    before = np.arange(length)[None, :] <= np.arange(length)[:, None] - window if window > 0 else np.zeros_like(after)
    bias = write.constant(np.where(after | before, np.float32(-np.inf), np.float32(0)))
    attended = _attended(write, query, key, value, [bias], size, float(node.attribute("softcap", 0.0)))
    return write.function([write.narrow(_joined(write, attended, (batch, length, heads * size))), *results])


def _heads(write: Definition, value: str, shape: tuple[int, int, int, int]) -> str:
    """[B, S, N * H] as [B, N, S, H]; `shape` is B, S, N, H."""
    return write("Transpose", write.reshape(value, *shape), perm=[0, 2, 1, 3])


def _joined(write: Definition, value: str, shape: tuple[int, int, int]) -> str:
    """[B, N, S, H] as [B, S, N * H]."""
    return write.reshape(write("Transpose", value, perm=[0, 2, 1, 3]), *shape)


def _repeated(write: Definition, value: str, shape: tuple[int, int, int, int], times: int) -> str:
    """Each head so many times, one after the other."""
    batch, heads, length, size = shape
    wide = write("Expand", write.reshape(value, batch, heads, 1, length, size), write.integers(1, 1, times, 1, 1))
    return write.reshape(wide, batch, heads * times, length, size)


def _attended(
    write: Definition, query: str, key: str, value: str, biases: list[str], size: int, cap: float = 0.0
) -> str:
    """softmax(scale * query key^T + biases) value, of which biases that are empty are none."""
    scale = float(write.node.attribute("scale", 0.0)) or 1.0 / math.sqrt(size)
    dtype = "float64" if write.node.dtype(0) == "float64" else "float32"
    scores = write("MatMul", query, write("Transpose", key, perm=[0, 1, 3, 2]))
    scores = write("Mul", scores, write.constant(scale, dtype))
    if cap:
        bound = write.constant(cap, dtype)
        scores = write("Mul", write("Tanh", write("Div", scores, bound)), bound)
    for bias in filter(None, biases):
        scores = write("Add", scores, bias)
    return write("MatMul", write("Softmax", scores, axis=-1), value)


def _causal(write: Definition, length: int, total: int) -> str:
    """What hides later keys, [S, T]; empty where none are hidden."""
    if not write.node.attribute("unidirectional", 0):
        return ""
    later = np.arange(total)[None, :] > np.arange(length)[:, None] + total - length
    return write.constant(np.where(later, np.finfo(np.float32).min, np.float32(0)))


def _of_mask(write: Definition, position: int, batch: int, total: int) -> str:
    """What hides masked keys, broadcasting to [B, N, S, T]; empty where there is no mask.

    The mask is [B, T] or [B, S, T] of what is kept where it is above zero, or [B] of how many keys are kept, or [2 B] of
    ends and then beginnings of what is kept.
    """
    node = write.node
    if not node.given(position):
        return ""
    mask, shape = write.cast(write.operand(position), "int64"), node.shape(position)
    if len(shape) == 1 and shape[0] in (batch, 2 * batch):
        places = write.constant([list(range(total))], "int64")
        ends = write.reshape(write.part(mask, 0, 0, batch), batch, 1)
        kept = write("Less", places, ends)
        if shape[0] == 2 * batch and batch > 0:
            begins = write.reshape(write.part(mask, 0, batch, 2 * batch), batch, 1)
            kept = write("And", kept, write("GreaterOrEqual", places, begins))
        extents = (batch, 1, 1, total)
    elif len(shape) == 2 and shape == (batch, total):
        kept, extents = write("Greater", mask, write.integers(0)), (batch, 1, 1, total)
    elif len(shape) == 3 and shape[2] == total:
        kept, extents = write("Greater", mask, write.integers(0)), (batch, 1, shape[1], total)
    else:
        node.refuse(f"a mask of shape {list(shape)}")
    hidden = write.constant(float(node.attribute("mask_filter_value", MASKED)))
    return write.reshape(write("Where", kept, write.constant(0.0), hidden), *extents)

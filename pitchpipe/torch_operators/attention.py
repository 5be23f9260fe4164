"""Attention as products, a softmax and what hides. Needs torch.

torch scales queries and keys each, and asks every row of the scores, element by element, whether all of it is hidden, so
that such a row reads nothing: as tensor programs that is three passes over the scores. Here they are scaled once, and a row
is hidden where the mask hides all of it, whatever the scores are.

A program is traced into the operator of the kernel that PyTorch would launch, which depends on the device and on the mask.
All of them become `attention`; results that only a backward reads are empty. With dropout they stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Any = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """(softmax(query key^T * scale + mask) value, that softmax), rows that the mask hides whole being zero.

    query [..., rows, size], key and value [..., columns, size]; the mask, True where a row reads or added to the scores,
    broadcasts to [..., rows, columns]. `enable_gqa`: of heads, the third dimension from the end, key and value have a
    divisor. With a dropout mask, which only a backward asks for, it stays whole.
    """
    if dropout_mask is not None:
        return NotImplemented
    if enable_gqa:
        key, value = (each.repeat_interleave(query.size(-3) // each.size(-3), -3) for each in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    hidden = None
    if is_causal:
        ahead = torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype, device=scores.device)
        scores = scores + ahead.triu(1)
    elif attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = torch.where(attn_mask, scores, -torch.inf)
        hidden = attn_mask.logical_not().all(-1, keepdim=True)
    elif attn_mask is not None:
        scores = scores + attn_mask
        hidden = (attn_mask == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores, -1)
    if dropout_p:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    read = weights.to(value.dtype) @ value  # half precision may have a mask of single precision
    return (read if hidden is None else torch.where(hidden, 0.0, read)), weights


def flash_attention_for_cpu(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """(attention of [images, heads, rows, size] in the order of the query's strides, sums of exponentials)."""
    if dropout_p:
        return NotImplemented
    return in_order(_read(query, key, value, attn_mask, is_causal, scale), strides_order(query)), query.new_zeros(0)


def flash_attention(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """(attention in the order of the query's strides, eight results more) on a GPU, without a mask."""
    if dropout_p or return_debug_mask:
        return NotImplemented
    read = _read(query, key, value, None, is_causal, scale)
    none = query.new_zeros(0)
    return in_order(read, strides_order(query)), none, none, none, query.size(2), key.size(2), none, none, none


def efficient_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """(attention, three results more) on a GPU; PyTorch's has the heads of a row one after another."""
    del compute_log_sumexp
    if dropout_p:
        return NotImplemented
    none = query.new_zeros(0)
    return in_order(_read(query, key, value, attn_bias, is_causal, scale), [0, 2, 1, 3]), none, none, none


def cudnn_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """(attention in the order of the query's strides, eight results more) by cuDNN."""
    del compute_log_sumexp
    if dropout_p or return_debug_mask:
        return NotImplemented
    read = _read(query, key, value, attn_bias, is_causal, scale)
    none = query.new_zeros(0)
    return in_order(read, strides_order(query)), none, none, none, query.size(2), key.size(2), none, none, none


def _read(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float | None) -> Any:
    gqa = query.size(1) != key.size(1)
    if is_causal and mask is not None:
        ahead = torch.full((query.size(2), key.size(2)), -torch.inf, dtype=query.dtype, device=query.device)
        mask, is_causal = mask + ahead.triu(1), False
    return attention(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=gqa)[0]


def strides_order(x: Any) -> list[int]:
    """The axes of [images, heads, rows, size] from the largest stride to the smallest."""
    return sorted(range(4), key=lambda axis: -x.stride(axis))


def in_order(x: Any, order: Sequence[int]) -> Any:
    """The tensor with its axes in that order in memory, as programs around it were traced with."""
    return x.permute(order).contiguous().permute([order.index(axis) for axis in range(4)])


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_attention_math.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu.default: flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention.default: flash_attention,
    aten._scaled_dot_product_efficient_attention.default: efficient_attention,
    aten._scaled_dot_product_cudnn_attention.default: cudnn_attention,
}
"""By operator, for inferences."""

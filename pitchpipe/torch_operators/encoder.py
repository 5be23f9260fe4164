"""Layers of a transformer's encoder that PyTorch computes by one operator where no gradient is wanted. Needs torch.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` in evaluation call these operators, which hide a layer whole. Here
they become the operators that the same modules call while gradients are recorded. Nested tensors stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

aten = torch.ops.aten
SOURCE, PADDING = 0, 1
"""Kinds of masks: [rows, columns], [images, columns]; any other broadcasts to [images, heads, rows, columns]."""


def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """(the projected attention [images, rows, size], its weights if they are wanted, averaged over the heads or not).

    query [images, rows, size], key and value [images, columns, size]. Where the mask is not zero a row does not read, and
    one that reads nothing is no number.
    """
    if any(one.is_nested for one in (query, key, value)):
        return NotImplemented
    if query is key and key is value:
        projected = functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        projected = tuple(map(functional.linear, (query, key, value), weights, biases))
    q, k, v = (each.unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2) for each in projected)
    scores = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
    if mask is not None:
        axes = {SOURCE: (0, 0), PADDING: (1, 1)}.get(2 if mask_type is None else mask_type, ())
        for axis in axes:
            mask = mask.unsqueeze(axis)
        scores = torch.where(mask.bool(), -torch.inf, scores)
    weights = torch.softmax(scores, -1)
    found = functional.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return found, None
    return found, weights.mean(1) if average_attn_weights else weights


def encoder_layer(
    x: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """Attention and a feed-forward network, each added to its input, with a norm before or after. x [images, rows, size]."""
    if x.is_nested:
        return NotImplemented

    def attended(y: Any) -> Any:
        qkv, projection = (qkv_weight, qkv_bias), (proj_weight, proj_bias)
        found, _ = multi_head_attention(
            y, y, y, embed_dim, num_heads, *qkv, *projection, mask, need_weights=False, mask_type=mask_type
        )
        return found

    def fed_forward(y: Any) -> Any:
        y = functional.linear(y, ffn_weight_1, ffn_bias_1)
        return functional.linear(functional.gelu(y) if use_gelu else y.relu(), ffn_weight_2, ffn_bias_2)

    for block, weight, bias in ((attended, norm_weight_1, norm_bias_1), (fed_forward, norm_weight_2, norm_bias_2)):
        if norm_first:
            x = x + block(functional.layer_norm(x, (embed_dim,), weight, bias, eps))
        else:
            x = functional.layer_norm(x + block(x), (embed_dim,), weight, bias, eps)
    return x.contiguous()


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
"""By operator, for inferences."""

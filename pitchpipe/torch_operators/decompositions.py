"""Into which operators an inference in PyTorch is taken apart, exported or compiled. Needs torch.

They are torch.export's, but for attention (attention.py), for layers of a transformer (encoder.py), for what PyTorch makes
of a program on GPUs (gpu_operators.py), and for sums along an axis, which are of the type that torch gives them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table

from pitchpipe.torch_operators import attention, encoder, gpu_operators
from pitchpipe.torch_operators.recurrent import whole_layers

aten = torch.ops.aten


def qualified_name(target: Any) -> str:
    """An operator's name with its overload, as `add.Tensor`; with its library before it, `its::add.Tensor`, unless that is
    PyTorch: another library's operator may have the name of one of PyTorch's and compute something else."""
    name = str(getattr(target, "__name__", target))
    library = getattr(target, "namespace", "aten")
    return name if library in ("aten", "prims") else f"{library}::{name}"


RESIZES = frozenset(
    getattr(getattr(aten, name), overload)
    for name in (
        *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    )
    for overload in ("vec", "default")
)
"""Operators that resize images."""
SCATTERS = frozenset(
    {
        *(aten.index_add.default, aten.index_copy.default, aten.max_unpool2d.default, aten.max_unpool3d.default),
        *(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor),
    }
)
WINDOWS = frozenset({aten.im2col.default, aten.col2im.default})
"""`unfold` and `fold`."""
WHOLE = RESIZES | SCATTERS | WINDOWS | {aten.roll.default}
"""What stays whole: of a resize torch makes look-ups of every neighbour, of a scatter along one axis one over all axes, of
windows look-ups and scatters by tensors of indices."""
COMPOSED = (aten.dist.default, aten.lcm.default, aten.ldexp.Tensor, aten.var_mean.correction)
"""Operators that torch.export leaves whole, and torch takes apart."""


@cache
def inference_decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator. Shared: a caller that changes it copies it first."""
    found: dict[Any, Callable[..., Any]] = torch.export.default_decompositions().materialize()
    return {
        **{operator: function for operator, function in found.items() if operator not in WHOLE},
        **{operator: decomposition_table[operator] for operator in COMPOSED},
        **_further(),
        **whole_layers(),
        **attention.DECOMPOSITIONS,
        **encoder.DECOMPOSITIONS,
        **gpu_operators.DECOMPOSITIONS,
        aten.cumsum.default: cumulative_sum,
        aten.soft_margin_loss.default: soft_margin_loss,
    }


def _further() -> dict[Any, Callable[..., Any]]:
    """By operator: what PyTorch has no decomposition for, and no converter is there for (tuner/ingest/aten)."""
    found: dict[Any, Callable[..., Any]] = {
        aten.addbmm.default: sum_of_products,
        aten._trilinear.default: trilinear,
        aten.fake_quantize_per_tensor_affine_cachemask.default: fake_quantize,
        aten.fake_quantize_per_channel_affine_cachemask.default: fake_quantize_channels,
        aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: fake_quantize_if_enabled,
    }
    with suppress(ModuleNotFoundError):  # PyTorch before 2.13 has none of its operators, which the module defines
        importlib.import_module("torch.nn.modules.linear_cross_entropy")
        losses = torch.ops.torch_nn
        found[losses._linear_cross_entropy_batch_chunked.default] = linear_cross_entropy
        found[losses._linear_cross_entropy_batch_chunked_no_reduction.default] = linear_cross_entropy_of_rows
    return found


def fake_quantize(x: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> tuple[Any, Any]:
    """(x rounded to multiples of the scale between two bounds, whether it lay between them). A zero point that is no whole
    number is added before it is rounded."""
    fraction = isinstance(zero_point, torch.Tensor) and zero_point.is_floating_point()
    steps = x * (1 / scale)
    levels = torch.round(steps + zero_point) if fraction else torch.round(steps) + zero_point
    within = (levels >= quant_min) & (levels <= quant_max)
    return (levels.clamp(quant_min, quant_max) - zero_point) * scale, within


def fake_quantize_channels(
    x: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int
) -> tuple[Any, Any]:
    """The same with a scale and a zero point for each index of an axis."""
    shape = [-1 if at == axis % x.dim() else 1 for at in range(x.dim())]
    return fake_quantize(x, scale.view(shape), zero_point.view(shape), quant_min, quant_max)


def fake_quantize_if_enabled(
    x: Any, scale: Any, zero_point: Any, enabled: Any, quant_min: int, quant_max: int
) -> tuple[Any, Any]:
    """The same where a tensor of one element says so."""
    found, within = fake_quantize(x, scale, zero_point, quant_min, quant_max)
    return torch.where(enabled == 1, found, x), within | (enabled != 1)


def sum_of_products(x: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta x + alpha times the sum of the products of a batch, [b, n, k] and [b, k, m]."""
    flat1, flat2 = batch1.transpose(0, 1).flatten(1), batch2.flatten(0, 1)
    return aten.addmm.default(x, flat1, flat2, beta=beta, alpha=alpha)


def trilinear(
    i1: Any,
    i2: Any,
    i3: Any,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Any:
    """The sum over `sumdim` of the product of three tensors, each with axes of extent 1 put in at `expand`."""
    del unroll_dim  # how PyTorch computes it
    factors = []
    for factor, axes in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for axis in sorted(axes):
            factor = factor.unsqueeze(axis)
        factors.append(factor)
    return (factors[0] * factors[1] * factors[2]).sum(sumdim)


def linear_cross_entropy(
    x: Any,
    linear_weight: Any,
    target: Any,
    linear_bias: Any,
    weight: Any,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    *options: Any,
) -> Any:
    """(the loss, three gradients). How many rows PyTorch takes at a time changes no value.

    x [n, i], linear_weight [c, i], target [n] of classes. The last options say which gradients are wanted; where one is, the
    operator stays whole.
    """
    if any(options[-3:]):
        return NotImplemented
    logits = torch.nn.functional.linear(x, linear_weight, linear_bias)
    loss = torch.nn.functional.cross_entropy(
        logits,
        target,
        weight,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    return loss, x.new_empty(0, 0), x.new_empty(0, 0), x.new_empty(0)


def linear_cross_entropy_of_rows(
    x: Any, linear_weight: Any, target: Any, linear_bias: Any, weight: Any, ignore_index: int, *_options: Any
) -> Any:
    """The loss of every row, [n]."""
    logits = torch.nn.functional.linear(x, linear_weight, linear_bias)
    return torch.nn.functional.cross_entropy(logits, target, weight, reduction="none", ignore_index=ignore_index)


def soft_margin_loss(x: Any, target: Any, reduction: int = 1) -> Any:
    """log(1 + exp(-x target)), summed (2) or their mean (1). In half precision eager mode rounds every step, and its
    exponential overflows beyond 11; torch's decomposition computes in float32, as a compiled chain of steps does."""
    grown = torch.exp(-x * target)
    if x.dtype is torch.float16:
        grown = torch.where(grown > torch.finfo(x.dtype).max, torch.inf, grown)
    losses = torch.log1p(grown)
    return losses.mean() if reduction == 1 else losses.sum() if reduction == 2 else losses


def cumulative_sum(x: Any, dim: int, *, dtype: Any = None) -> Any:
    """Of whole numbers in 64 bits, as torch counts: TVM's importer would sum booleans in booleans."""
    if dtype is None and not x.dtype.is_floating_point and x.dtype is not torch.int64:
        return aten.cumsum.default(x.to(torch.int64), dim)
    return NotImplemented

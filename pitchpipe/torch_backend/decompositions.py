"""Into which operators AOTAutograd takes a program apart.

An inference becomes what an exported model does (pitchpipe/torch_operators/decompositions.py), so that its workloads are
the same, under the same digests. A training step becomes what torch.export makes of it, and is taken further apart where
core ATen has operators that TVM lacks, or whose second results it makes up: norms with their statistics, and the backward
of a convolution, which here becomes two convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import sym_int
from torch._decomp import decomposition_table

from pitchpipe.torch_operators.decompositions import RESIZES
from pitchpipe.torch_operators.recurrent import whole_layers

aten = torch.ops.aten

FURTHER = (
    aten.native_layer_norm.default,
    aten._native_batch_norm_legit_functional.default,
    aten.native_group_norm.default,
    aten.native_layer_norm_backward.default,
    aten.native_batch_norm_backward.default,
    aten.threshold_backward.default,
    aten._softmax_backward_data.default,
    aten._log_softmax_backward_data.default,
    aten.gelu_backward.default,
    aten.nll_loss_forward.default,
    aten.nll_loss_backward.default,
)


@contextmanager
def whole_operators() -> Iterator[None]:
    """While a graph is captured for inference, resizes stay operators, and recurrent layers become those of
    pitchpipe/torch_operators/recurrent.py. PyTorch has Python programs in the place of their kernels, whatever the
    decompositions are: look-ups of every neighbour, which check their indices, and every step written out.

    They get their place back; only captures ask for them, and torch's compiler lets one run at a time.
    """
    layers = {operator: _of_fixed_length(rule) for operator, rule in whole_layers().items()}
    overloads = [*RESIZES, *layers]
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    taken = [{key: each.py_kernels.pop(key) for key in keys if key in each.py_kernels} for each in overloads]
    for each, kernels in zip(overloads, taken, strict=True):
        if each in layers:
            each.py_kernels.update(dict.fromkeys(kernels, layers[each]))
        elif each._overloadname == "vec":
            each.py_kernels.update(dict.fromkeys(kernels, partial(resize, each.overloadpacket.default)))
        each._dispatch_cache.clear()
    try:
        yield
    finally:
        for each, kernels in zip(overloads, taken, strict=True):
            each.py_kernels.update(kernels)
            each._dispatch_cache.clear()


def _of_fixed_length(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a recurrent operator for as many steps as there are in the capture: others are captured anew."""

    def layers(x: Any, *others: Any) -> Any:
        *_, batch_first = others
        int(x.shape[1 if batch_first else 0])  # which fixes a symbolic size
        return rule(x, *others)

    return layers


def resize(operator: Any, x: Any, output_size: Any, *options: Any) -> Any:
    """A resize to sizes or by factors, of which one is None, as the operator with both. PyTorch's own kernel does the same
    and takes no symbolic sizes.

    x: [n, c, ...]. options: whether corners are aligned, where the operator asks, and the factors.
    """
    *aligned, factors = options
    extents = x.shape[2:]
    sizes = output_size or [sym_int(extent * factor) for extent, factor in zip(extents, factors, strict=True)]
    return operator(x, sizes, *aligned, *(factors or [None] * len(extents)))


@cache
def for_training() -> dict[Any, Callable[..., Any]]:
    """For the joint graph of a forward and its backward."""
    further = {operator: decomposition_table[operator] for operator in FURTHER if operator in decomposition_table}
    own = {aten.convolution_backward.default: convolution_backward, aten.var_mean.correction: var_mean}
    found = {**torch.export.default_decompositions().materialize(), **further, **own}
    # torch's gives weights in place of the logarithm of their sums, which the backward, PyTorch's own, goes by.
    found.pop(aten._scaled_dot_product_flash_attention_for_cpu.default, None)
    return found


def var_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """As the two operators of core ATen; torch's own goes down to what only inductor knows."""
    axes = list(range(x.dim())) if dim is None else dim
    return aten.var.correction(x, axes, correction=correction, keepdim=keepdim), aten.mean.dim(x, axes, keepdim)


def convolution_backward(
    gradient: Any,
    x: Any,
    weight: Any,
    _bias_sizes: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    _output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> Any:
    """Gradients of a plain convolution, [n, o, ...] = [n, c, ...] * [o, c, ...], by convolutions.

    Of the input: the transposed convolution of the gradient with the weights; what the strides left over at the end is
    its output padding. Of the weights: the convolution of the input with the gradient, batch and channels exchanged,
    stride and dilation too, cut to the kernel. Grouped, transposed and one- or three-dimensional ones stay as they are.
    """
    if transposed or groups != 1 or x.dim() != 4:
        return NotImplemented
    axes = range(2)
    kernel = weight.shape[2:]
    left = [
        x.shape[2 + i] - ((gradient.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1)
        for i in axes
    ]
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        of_x = aten.convolution(gradient, weight, None, stride, padding, dilation, True, left, 1)
    if output_mask[1]:
        images, filters = x.transpose(0, 1), gradient.transpose(0, 1)
        whole = aten.convolution(images, filters, None, dilation, padding, stride, False, [0, 0], 1)
        of_weight = whole[:, :, : kernel[0], : kernel[1]].transpose(0, 1)
    if output_mask[2]:
        of_bias = gradient.sum((0, 2, 3))
    return of_x, of_weight, of_bias

"""A training step through torch.compile beside the same in eager mode: the loss and all gradients. For coverage.py.

AOTAutograd gives zeros, under every backend, for gradients that eager mode leaves out: they are equal here. A gradient may
be as far off as rounding throws eager's own, by the measure of the backend (pitchpipe/torch_backend/paired_benchmark.py):
for the same images in another order of memory, or for inputs that differ in their last digits. Then `train_nudged` is
true, `train_nudged_error` the largest error beside those.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pitchpipe.model import comparison

NUDGES = 4
"""Draws, each from another direction: the flank of a rectifier is near some inputs, and one draw may not cross it."""
COMPILED = {"on_miss": "default", "deadline_secs": 600.0}
"""The backend's options: default schedules, and calls that wait for the compiled program."""


def train(module: Any, _examples: Any, sets: Any, _expected: Any, tell: Callable[..., None]) -> float | str:
    """The largest error of the loss and the gradients over two sets of inputs, or how they differ; `tell` is given what
    the row says of it besides. The module is left in evaluation mode with the state that it had."""
    from pitchpipe import torch_backend
    from pitchpipe.torch_backend import paired_benchmark

    torch_backend.recompile()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    module.train()
    try:
        errors, from_nudged = [], 0.0
        compiled = torch.compile(module, backend="pitchpipe", options=COMPILED)
        for one in sets[:2]:
            good, ours = stepped(module, state, module, one), stepped(module, state, compiled, one)
            told = comparison.difference(arrays(ours), arrays(good))
            if told is not None:
                tell(train_nudged=True)
                others = (
                    stepped(module, state, module, other) for other in rounded_otherwise(one, paired_benchmark.NUDGE)
                )
                excuse = next(
                    (other for other in others if paired_benchmark.difference(ours, good, other) is None), None
                )
                if excuse is None:
                    return told
                from_nudged = max(from_nudged, comparison.largest_error(arrays(ours), arrays(excuse)))
                tell(train_nudged_error=from_nudged)
            errors.append(comparison.largest_error(arrays(ours), arrays(good)))
        return max(errors)
    finally:
        module.load_state_dict(state)
        module.eval()


def rounded_otherwise(inputs: Sequence[Any], size: float) -> Iterator[list[Any]]:
    """Inputs for which eager mode rounds otherwise: the same with images in channels-last memory format, whose convolutions
    sum in another order, then NUDGES times inputs that differ by that size. A step seeds torch's own generator."""
    if any(each.ndim == 4 and each.is_floating_point() for each in inputs):
        yield [each.contiguous(memory_format=torch.channels_last) if each.ndim == 4 else each for each in inputs]
    draws = torch.Generator().manual_seed(0)
    for _ in range(NUDGES):
        yield [
            each * (1 + size * torch.randn(each.shape, generator=draws)) if each.is_floating_point() else each
            for each in inputs
        ]


def stepped(module: Any, state: Any, forward: Any, inputs: Any) -> list[Any]:
    """The loss and all gradients, from that state. The loss weighs every element of the outputs differently: sums would
    forget the scales of norms."""
    module.load_state_dict(state)
    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    np.random.seed(1)  # models of transformers draw what they mask by it
    random.seed(1)
    outputs = [each for each in torch.utils._pytree.tree_leaves(forward(*inputs)) if each.requires_grad]
    weights = [torch.linspace(-1, 1, each.numel()).reshape(each.shape) for each in outputs]
    loss = sum(((each.float() - weight) * weight).mean() for each, weight in zip(outputs, weights, strict=True))
    loss.backward()
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in module.parameters()]
    return [loss.detach(), *gradients]


def arrays(outputs: Any) -> list[Any]:
    """The tensors of a nest of outputs as NumPy arrays, bfloat16 as float32."""
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return (
        [each.detach().float().numpy() if each.dtype is torch.bfloat16 else each.detach().numpy() for each in leaves]
        if all(isinstance(each, torch.Tensor) for each in leaves)
        else list(leaves)
    )

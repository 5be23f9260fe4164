"""What runs a graph that Dynamo captured as PyTorch would without us."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.exc import RestartAnalysis, SkipFrame
from torch._dynamo.utils import GmWrapper

Run = Callable[..., Any]
RECOMPUTING = frozenset({"tag_activation_checkpoint", "wrap_activation_checkpoint"})
"""As which activation checkpointing stands in a captured graph."""


def uncompiled(module: Any, inputs: Sequence[Any]) -> Run:
    """The captured graph itself, and AOTAutograd's graphs of one that computes activations anew in its backward.

    There Dynamo leaves it to a compiler to put the random state back: a captured graph that runs as it is draws other
    numbers the second time, and the gradients through a dropout are wrong. Raises SkipFrame, which has Dynamo run the
    program's own code, where AOTAutograd fails.
    """
    run: Run = module.forward
    if isinstance(module, GmWrapper) or not _recomputes(module):
        return run
    try:
        with torch._functorch.config.patch(donated_buffer=False):  # a backward may be run twice, as in eager mode
            run = aot_eager(module, list(inputs))
    except RestartAnalysis:
        raise
    except Exception as error:
        raise SkipFrame(f"AOTAutograd failed: {error}") from error
    return run


def _recomputes(module: Any) -> bool:
    graphs = [one.graph for one in module.modules() if isinstance(one, fx.GraphModule)]
    return any(getattr(node.target, "__name__", "") in RECOMPUTING for graph in graphs for node in graph.nodes)

"""Runs the kernels of templates in Triton's interpreter, in a process of its own: the interpreter replaces parts of Triton.

It runs one block after another. Of a cluster, whose blocks wait for each other, it runs all blocks up to there and then all of
them again and on, in a workspace of the cluster's own: so it fails where one reads what its cluster did not write.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np

from tuner.templates.kernel_source import KernelSource, TemplateSource

_DOT = re.compile(r"tl\.dot\((\w+), (\w+),")
_MEETING = "    _meet()\n"
_SPOILED = 0xFF
"""What workspaces are filled with before a run: NaN as a float of any size."""


def run(source: TemplateSource, arguments: Sequence[np.ndarray]) -> None:
    """Runs the kernels in order; writes into `arguments`, the parameters of the workload."""
    plain = [(argument.view(np.uint8) if argument.size else argument, str(argument.dtype)) for argument in arguments]
    found = _process().submit(_run, source, plain).result(timeout=240)
    for argument, other in zip(arguments, found, strict=True):
        argument.view(np.uint8)[...] = other


@cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin)


def _begin() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime.interpreter import ReduceOps

    ReduceOps.generic_reduce = _reduced


def _reduced(reduction: Any, values: Sequence[Any]) -> list[Any]:
    """Combines halves of the values along the axis, then halves of these. The interpreter's own way takes every element
    alone."""
    (value,) = values
    axis, found = reduction.axis, value.handle.data
    while found.shape[axis] > 1:
        halves = [reduction.to_tensor(half, value.dtype) for half in np.split(found, 2, axis)]
        found = reduction.combine_fn.fn(*halves).handle.data
    return [reduction.to_tensor(found if reduction.keep_dims else found.squeeze(axis), value.dtype)]


def _run(source: TemplateSource, arguments: Sequence[tuple[np.ndarray, str]]) -> list[np.ndarray]:
    import torch

    tensors = [torch.from_numpy(array).view(getattr(torch, dtype)) for array, dtype in arguments]
    for kernel in source.kernels:
        spoiled = [torch.full((size,), _SPOILED, dtype=torch.uint8).view(_type(kernel)) for size in source.workspaces]
        if kernel is source.kernels[0]:
            workspaces = spoiled
        places = [*(matrix.parameter for matrix in kernel.matrices), *kernel.arguments]
        for one in _turns(kernel):
            if one is None:
                for workspace in workspaces:
                    workspace.view(torch.uint8).fill_(_SPOILED)
            else:
                _interpreted(one)[one.grid](*([*tensors, *workspaces][at] for at in places))
    return [tensor.view(torch.uint8).numpy() for tensor in tensors]


def _turns(kernel: KernelSource) -> Iterator[KernelSource | None]:
    """What is run in place of a kernel, one after another; None spoils the workspaces."""
    if kernel.cluster == 1:
        yield kernel
        return
    tiles, parts, batches = kernel.grid
    assert parts == kernel.cluster
    for block, batch in itertools.product(range(tiles), range(batches)):
        text = kernel.text.replace("tl.program_id(0)", str(block)).replace("tl.program_id(2)", str(batch))
        before, meeting, behind = text.rpartition(_MEETING)
        assert meeting
        yield None
        for one in (before, before + behind):
            yield replace(kernel, text=one, grid=(1, parts, 1))


def _type(kernel: KernelSource) -> object:
    """Of the workspace, which is a kernel's last pointer."""
    import torch

    return {"*fp32": torch.float32, "*i32": torch.int32}[kernel.types[-1]]


def _interpreted(kernel: KernelSource) -> object:
    from tests.gluon_interpreter import in_triton
    from tuner.templates.compiler import jitted

    if kernel.matrices:
        return jitted(replace(kernel, text=in_triton(kernel)))
    if "*bf16" not in kernel.types:
        return jitted(kernel)
    # The interpreter multiplies bfloat16 as if it were whole numbers. In float32 the products are the same.
    return jitted(replace(kernel, text=_DOT.sub(r"tl.dot(\1.to(tl.float32), \2.to(tl.float32),", kernel.text)))

"""Padding: batches between two tuned sizes run on the build of the next one.

That is done where batch independence is proved, as for torch.compile (pitchpipe/torch_backend/batch_independence.py), and
where it is faster for sure: the module takes no less for n rows than for fewer, and no less than n / m of what it takes for
m rows. Needs torch.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pitchpipe.torch_backend.batch_independence import is_batch_independent
from pitchpipe.torch_backend.dynamic import cut_to, grown_to
from pitchpipe.torch_operators.decompositions import inference_decompositions
from pitchpipe.tuning.batches import has_rows
from pitchpipe.tuning.modules import ModuleBuild, ModuleCalls
from pitchpipe.tuning.subjects import WORTHWHILE, ModuleSubject
from pitchpipe.tuning.tuned import Variant


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How arguments and results of a module depend on the number of rows, whose results no added row changes."""

    symbol: str
    arguments: Sequence[Any]
    """Of its tensors, as they were traced with that number as a symbol."""
    results: Sequence[Any]

    def grown(self, leaves: Sequence[Any], rows: int) -> list[Any]:
        """The leaves of a call with so many rows, those behind its own zero."""
        traced = iter(self.arguments)
        sizes = {self.symbol: rows}
        return [grown_to(leaf, next(traced), sizes) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def cut(self, tensors: Sequence[Any], rows: int) -> list[Any]:
        """The first rows of the results."""
        sizes = {self.symbol: rows}
        return [cut_to(tensor, traced, sizes) for tensor, traced in zip(tensors, self.results, strict=True)]


def padding(calls: ModuleCalls) -> Padding | None:
    """Of the module, by its examples, which have several rows; None where its rows are not proved independent."""
    leaves, spec = pytree.tree_flatten((calls.arguments, calls.keywords))
    rows = calls.tensors(leaves)[0].shape[0]
    dimension = torch.export.Dim("rows")
    wanted = pytree.tree_unflatten([{0: dimension} if has_rows(leaf, rows) else None for leaf in leaves], spec)
    shapes = (*wanted[0], *wanted[1].values())
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch's deprecations and its notes about shapes
            program = torch.export.export(calls.module, calls.arguments, calls.keywords, dynamic_shapes=shapes)
            program = program.run_decompositions(inference_decompositions())
    except Exception:  # noqa: BLE001 - torch.export raises many kinds where a module asks for the number of its rows
        return None
    inputs = set(program.graph_signature.user_inputs)
    nodes = {node.name: node for node in program.graph.nodes}
    arguments = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs]
    arguments = [one for one in arguments if isinstance(one, torch.Tensor)]
    results = [nodes[name].meta["val"] for name in program.graph_signature.user_outputs if name in nodes]
    extent = arguments[0].shape[0]
    if not isinstance(extent, torch.SymInt) or len(results) != len(calls.results):
        return None
    symbol = extent.node.expr
    if not symbol.is_Symbol or not is_batch_independent(program.graph_module, symbol):
        return None
    return Padding(symbol=str(symbol), arguments=arguments, results=results)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A tuned size."""

    rows: int
    calls: ModuleCalls
    build: ModuleBuild | None
    """None where the module itself runs such batches."""
    secs: float
    """Of a call of the build ..."""
    module_secs: float
    """... and of the module."""


class PaddedBatches:
    """Runs batches between the tuned sizes, and below the smallest."""

    def __init__(self, padding: Padding, batches: Sequence[Batch]) -> None:
        """batches: the smallest first."""
        self._padding, self._batches = padding, tuple(batches)
        self._rows = [batch.rows for batch in batches]

    def __call__(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any | None:
        """The module's result; None for a call that the module itself is to run. Raises whatever the runtime does."""
        calls = self._batches[-1].calls
        leaves = calls.flat(arguments, keywords)
        tensors = calls.tensors(leaves or ())
        if leaves is None or not tensors[0].dim() or not tensors[0].shape[0]:
            return None
        rows = int(tensors[0].shape[0])
        at = bisect_left(self._rows, rows)
        if at == len(self._rows) or not self.is_faster(at, rows):
            return None
        batch = self._batches[at]
        try:
            grown = self._padding.grown(leaves, batch.rows)
        except RuntimeError:
            return None  # of other shapes; the module says what is wrong with them
        if batch.build is None or not batch.build.is_current or not batch.calls.fits(grown):
            return None
        return calls.put_together(self._padding.cut(batch.build.tensors(grown), rows))

    def is_faster(self, at: int, rows: int) -> bool:
        """Whether the build of that size, padded, takes less than the module for so many rows, whatever that takes."""
        batch = self._batches[at]
        least_secs = batch.module_secs * rows / batch.rows
        if at:
            least_secs = max(least_secs, self._batches[at - 1].module_secs)
        return batch.build is not None and batch.secs <= WORTHWHILE * least_secs


def padded(variants: Sequence[Variant]) -> PaddedBatches | None:
    """What runs the batches between those of a module's variants; None where its rows are not proved independent."""
    found = []
    for variant in variants:
        subject, figures = variant.subject, variant.report.figures
        assert isinstance(subject, ModuleSubject)
        assert figures is not None
        assert figures.peer_secs is not None
        build = variant.build if isinstance(variant.build, ModuleBuild) else None
        secs = figures.default_secs if figures.tuned_secs is None else min(figures.default_secs, figures.tuned_secs)
        rows = int(subject.calls.tensors(subject.calls.example)[0].shape[0])
        found.append(Batch(rows=rows, calls=subject.calls, build=build, secs=secs, module_secs=figures.peer_secs))
    proved = padding(found[-1].calls)
    return None if proved is None else PaddedBatches(proved, found)

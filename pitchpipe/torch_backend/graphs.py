"""One graph that AOTAutograd gave: it runs as it is, and with compiled partitions once those are there.

The way of a graph beside the program: fixed to sizes (dynamic.py) -> cut by a child (cutting.py) -> its workloads looked up
(schedules.py) -> its partitions built (part.py) -> installed, so that later calls with such sizes run it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pitchpipe.deploy.building import BuildSpec
from pitchpipe.errors import InvalidInput
from pitchpipe.model.comparison import PRECISION, less_precise
from pitchpipe.model.local import LocalModel
from pitchpipe.target_kind import kind_of_device
from pitchpipe.torch_backend.beside import in_native_code
from pitchpipe.torch_backend.constants import write_out
from pitchpipe.torch_backend.cutting import Cut, Piece, cut, known_cut, tf32_allowed
from pitchpipe.torch_backend.dynamic import Sizes, copy_of
from pitchpipe.torch_backend.options import Options
from pitchpipe.torch_backend.part import Part, Trials
from pitchpipe.torch_backend.partition import PREFIX, fuse, is_static, tensors_of
from pitchpipe.torch_backend.report import GraphReport, PartitionReport
from pitchpipe.torch_backend.schedules import Found, Wanted, find, follow, is_silent
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.record import Tier
from pitchpipe.wire.target import Target

Run = Callable[..., Any]
Key = tuple[tuple[str, int], ...]
"""Sizes: (symbol, extent), sorted."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A graph for some sizes, cut; its partitions are not built yet."""

    graph: Graph
    key: Key
    module: Any
    parts: Sequence[Part]

    def install(self) -> None:
        """Later calls with such sizes run it."""
        self.graph.installed[self.key] = self.module.forward


class Graph:
    """Called with the graph's flat arguments, sizes among them as integers. Thread-safe."""

    def __init__(self, module: Any, kind: str, weights: Collection[str], options: Options, trials: Trials) -> None:
        """kind: inference, forward or backward. weights: names of the placeholders that hold weights.

        Raises ValueError for symbolic sizes that no argument tells.
        """
        self._module, self._kind, self._weights = module, kind, frozenset(weights)
        self._options, self._trials = options, trials
        self.sizes = None if is_static(module) else Sizes(module)
        """None: all shapes are known."""
        self.installed: dict[Key, Run] = {}
        """What runs it, by its own sizes."""
        given, _ = tensors_of(module)
        self._device = next((one.device for one in given if isinstance(one, torch.Tensor)), torch.device("cpu"))
        self._tf32 = tf32_allowed(self._device)
        self.computed = _least_precise(module, self._tf32)
        """Its least precise floating-point type."""
        self.random = any(
            torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in module.graph.nodes
        )

    def __call__(self, *arguments: Any) -> Any:
        if not self.installed:
            return self._module.forward(*arguments)
        if self.sizes is None:
            return self.installed[()](*arguments)
        sizes = self.sizes.of(arguments)
        compiled = self.installed.get(key_of(self.sizes.rounded(sizes)))
        if compiled is None:
            return self._module.forward(*arguments)
        return self.sizes.run(compiled, arguments, sizes)

    def prepare(self, sizes: Mapping[str, int]) -> tuple[Prepared, GraphReport]:
        """For the program's sizes. Takes seconds: for threads that may wait. Raises whatever goes wrong."""
        with in_native_code():
            rounded = {} if self.sizes is None else self.sizes.rounded(sizes)
            module = copy_of(self._module) if self.sizes is None else self.sizes.fixed(rounded)
            write_out(module)
        told = GraphReport(kind=self._kind, sizes=rounded)
        device = self._device
        found = self._cut(module, device)
        if found is None:
            told.source = "the service is away"
            return Prepared(graph=self, key=key_of(rounded), module=module, parts=()), told
        told.operators, told.left = found.operators, found.left
        answers = self._looked_up(found)
        told.source = f"schedules of {answers.source}"
        with in_native_code():
            fuse(module, [piece.nodes for piece in found.pieces])
        alone = len(found.pieces) == 1 and not found.left and self._kind == "inference"
        parts = []
        for at, piece in enumerate(found.pieces):
            name = f"{PREFIX}{at}"
            report, spec = self._spec(name, piece, answers, found.target)
            told.partitions.append(report)
            parts.append(self._part(module.get_submodule(name), piece, spec, report, device, alone))
            delattr(module, name)
            setattr(module, name, parts[-1])
            if spec is not None and piece.identity is not None:
                follow(parts[-1].runs, answers, piece.identity, self._options)
        return Prepared(graph=self, key=key_of(rounded), module=module, parts=parts), told

    def _cut(self, module: Any, device: Any) -> Cut | None:
        """None when a child would have to be asked, for a service that is away. Raises InvalidInput for a target of
        another kind."""
        kind, target = kind_of_device(device.type).name, self._options.target
        if target is not None and target.kind != kind:
            raise InvalidInput(f"the target is of kind {target.kind}, the tensors are on {device}")
        if is_silent(self._options.url) and self._options.on_miss != "default":
            return known_cut(module, self._weights, target, device, self._tf32)
        return cut(module, self._weights, target, device, self._tf32)

    def _looked_up(self, found: Cut) -> Found:
        known = [piece for piece in found.pieces if piece.model is not None and piece.identity is not None]
        if not known:
            return Found(source="nobody")
        wanted = Wanted(
            target=found.target,
            models=[_model(piece) for piece in known],
            identities=[piece.identity for piece in known if piece.identity is not None],
        )
        return find(wanted, self._options)

    def _spec(self, name: str, piece: Piece, found: Found, target: Target) -> tuple[PartitionReport, BuildSpec | None]:
        report, options = PartitionReport(name=name, operators=len(piece.nodes), reason=piece.reason), self._options
        if piece.identity is None:
            return report, None
        identity = piece.identity
        answers = {w: found.answers[w] for w in identity.workloads if w in found.answers}
        used = {w: answer.best for w, answer in answers.items() if answer.best and options.accepts(answer.tier)}
        report.workloads = len(identity.workloads)
        for workload in identity.workloads:
            tier = answers[workload].tier if workload in answers else Tier.NONE
            report.tiers[tier] = report.tiers.get(tier, 0) + 1
        if len(used) == len(identity.workloads):
            report.expected_secs = sum(best.secs * identity.weights[w] for w, best in used.items())
        if not used and options.on_miss != "default":
            report.reason = f"none of its schedules is there: {found.source}"
            return report, None
        traces = {workload: best.trace for workload, best in used.items()}
        return report, BuildSpec(model=_model(piece), target=target, traces=traces)

    def _part(
        self, eager: Any, piece: Piece, spec: BuildSpec | None, report: PartitionReport, device: Any, alone: bool
    ) -> Part:
        names = [node.name for node in eager.graph.find_nodes(op="placeholder")]
        if tuple(names) != piece.takes:
            raise ValueError(f"the child cut the graph in another way: {names} are not {piece.takes}")
        _, results = tensors_of(eager)
        return Part(
            eager,
            spec,
            report,
            self._trials,
            is_weight=[name in piece.weights for name in names],
            bounds={at: piece.bounds[name] for at, name in enumerate(names) if name in piece.bounds},
            results=results,
            graphs=self._options.cuda_graphs and kind_of_device(device.type).has_streams,
            training=self._kind != "inference",
            alone=alone,
            otherwise="inductor" if self._options.on_miss == "inductor" else "eager",
        )


def _least_precise(module: Any, tf32: Sequence[str]) -> str | None:
    found = "tf32" if tf32 else None
    for node in module.graph.nodes:
        name = str(getattr(node.meta.get("val"), "dtype", "")).removeprefix("torch.")
        found = less_precise(found, name) if name in PRECISION else found
    return found


def key_of(sizes: Mapping[str, int]) -> Key:
    return tuple(sorted(sizes.items()))


def _model(piece: Piece) -> LocalModel:
    assert piece.model is not None
    return LocalModel(name="partition", format=ModelFormat.RELAX, data=piece.model.encode(), weights={})

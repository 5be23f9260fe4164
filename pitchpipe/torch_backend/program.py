"""What AOTAutograd makes of one graph that Dynamo captured: one graph of an inference, or the two of a training step.

While Dynamo waits they are only taken over, as they are. What becomes of them is found out beside the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch._guards import TracingContext

from pitchpipe.model.comparison import less_precise
from pitchpipe.torch_backend import schedules
from pitchpipe.torch_backend.graphs import Graph, Prepared
from pitchpipe.torch_backend.options import Options
from pitchpipe.torch_backend.part import Part, Trials
from pitchpipe.torch_backend.report import ProgramReport
from pitchpipe.torch_backend.warning import warn_once

Run = Callable[..., Any]
SEEN_OUTSIDE = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp"})
"""Namespaces of operators that other processes take part in: a trial that only this one makes would wait forever."""


class Program:
    """Compilers for AOTAutograd, one for each kind of graph. They raise nothing: what fails stays with PyTorch."""

    def __init__(self, options: Options, report: ProgramReport) -> None:
        self.options, self.report = options, report
        self.graphs: list[Graph] = []
        self.trials = Trials()
        self.mutated: frozenset[int] = frozenset()
        """Which of its flat arguments it writes into."""
        self.arguments = 0
        """How many it has."""
        self.failed: str | None = None
        """Why one of its graphs cannot be compiled at all."""
        self._static: frozenset[int] = frozenset()

    def inference(self, module: Any, _inputs: Sequence[Any]) -> Run:
        return self._taken(module, "inference", self._first(module))

    def forward(self, module: Any, _inputs: Sequence[Any]) -> Run:
        return self._taken(module, "forward", self._first(module))

    def backward(self, module: Any, _inputs: Sequence[Any]) -> Run:
        # AOTAutograd calls what it saves of the forward's arguments by their places there.
        names = {f"primals_{at + 1}" for at in self._static}
        return self._taken(module, "backward", {node.name for node in _placeholders(module)} & names)

    @property
    def random(self) -> bool:
        """Whether it draws random numbers: another thread must not, while it is tried."""
        return any(graph.random for graph in self.graphs)

    @property
    def computed(self) -> str | None:
        """The least precise floating-point type of all its graphs."""
        found: str | None = None
        for graph in self.graphs:
            found = found if graph.computed is None else less_precise(found, graph.computed)
        return found

    @property
    def symbols(self) -> frozenset[str]:
        """Of all its graphs."""
        return frozenset(name for graph in self.graphs if graph.sizes is not None for name in graph.sizes.places)

    @property
    def padded(self) -> frozenset[str]:
        """Symbols along which every graph that has them may be padded."""
        sized = [graph.sizes for graph in self.graphs if graph.sizes is not None]
        return frozenset(n for n in self.symbols if all(n in sizes.padded for sizes in sized if n in sizes.places))

    def prepare(self, sizes: Mapping[str, int]) -> list[Prepared]:
        """Its graphs for such sizes, cut and looked up. For threads that may wait. Raises whatever goes wrong."""
        schedules.probe(self.options)
        found = []
        for graph in self.graphs:
            prepared, told = graph.prepare(sizes)
            self.report.graphs.append(told)
            found.append(prepared)
        return found

    def _first(self, module: Any) -> set[str]:
        """Reads what is known of the arguments; the names of those that hold weights."""
        context = TracingContext.try_get()
        metadata = context.fw_metadata if context is not None else None
        placeholders = _placeholders(module)
        self.arguments = len(placeholders)
        if metadata is not None:
            metadata.bw_donated_idxs = []  # none: a backward may be run twice, as in eager mode
            self._static = frozenset(metadata.static_input_indices)
            self.mutated = frozenset(metadata.mutated_inp_runtime_indices)
        return {node.name for at, node in enumerate(placeholders) if at in self._static}

    def _taken(self, module: Any, kind: str, weights: Collection[str]) -> Run:
        from torch._functorch._aot_autograd.utils import make_boxed_func

        run: Run = module.forward
        try:
            run = Graph(module, kind, weights, self.options, self.trials)
            self.graphs.append(run)
            if (operator := _seen_outside(module)) is not None:
                self.failed = f"other processes take part in {operator}"
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
            self.failed = str(error)
            warn_once(f"compile {kind}", f"a graph runs in eager mode: {error}")
        boxed: Run = make_boxed_func(run)
        return boxed


def built(prepared: Sequence[Prepared]) -> list[Part]:
    """Builds the partitions and installs the graphs; all partitions. For threads that may wait."""
    parts = [part for one in prepared for part in one.parts]
    for part in parts:
        part.build()
    for one in prepared:
        one.install()
    return parts


def _seen_outside(module: Any) -> str | None:
    """An operator that cannot be run once more than the program runs it."""
    targets = (node.target for node in module.graph.nodes if node.op == "call_function")
    return next((str(one) for one in targets if getattr(one, "namespace", None) in SEEN_OUTSIDE), None)


def _placeholders(module: Any) -> list[Any]:
    return list(module.graph.find_nodes(op="placeholder"))

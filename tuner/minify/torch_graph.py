"""An exported PyTorch program as a source: its operators, their values in eager, and parts of it exported anew."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from pitchpipe.errors import InvalidInput, InvalidModel, UnsupportedShape
from pitchpipe.torch_operators.arrays import to_array, to_tensor
from pitchpipe.torch_operators.ties import TiesByPlace
from tuner.ingest import TensorSpec
from tuner.ingest.aten import has_converter
from tuner.ingest.torch_export import export_decompositions, from_exported_program, module_of_torchscript, quiet
from tuner.ingest.torch_fx import graph_of, module_of_graph, results_of
from tuner.minify import Converted, Node, Part, Source
from tuner.minify.torch_code import code_of


class TorchSource(Source):
    """A torch.export.ExportedProgram, run once on `inputs`, arrays in the order of its user inputs."""

    framework = "PyTorch eager"

    def __init__(self, program: Any, inputs: Sequence[np.ndarray]) -> None:
        self._program = program
        if any(_mutates(node) for node in program.graph.nodes):  # values of one node would change after it
            with quiet():
                program = program.run_decompositions(export_decompositions())
        self._graph = program.graph
        self._inputs = tuple(np.asarray(array) for array in inputs)
        self._units = self._grouped()
        by_name = {node.name: node for node in self._graph.nodes}
        tensors, weights = self._recorded(program)
        self._tensors = tensors
        self.values = {name: to_array(tensor) for name, tensor in tensors.items()}
        self.outputs = [
            spec.arg.name
            for spec in program.graph_signature.output_specs
            if spec.kind is OutputKind.USER_OUTPUT and getattr(spec.arg, "name", None) in self.values
        ]
        self.nodes = [
            Node(
                name=unit[0].name,
                label=unit[0].name,
                operator=operator_name(unit[0].target),
                reads=tuple(dict.fromkeys(each.name for each in unit[0].all_input_nodes)),
                gives=tuple(node.name for node in unit if node.name in self.values),
            )
            for unit in self._units.values()
        ]
        constant = set(weights)
        for node in self.nodes:
            if all(name in constant for name in node.reads):
                constant.update((*node.gives, node.name))
        self.constant = frozenset(constant)
        self._by_name = by_name

    def model(self) -> Part:
        """The whole model, as it came."""
        return Part(
            nodes=tuple(self.nodes),
            convert=lambda: from_exported_program(self._program),
            inputs=self._inputs,
            expected=tuple(self.values[name] for name in self.outputs),
            operands=((),) * len(self.outputs),
            weights={},
        )

    def part(self, nodes: Sequence[Node], takes: Sequence[str], constants: Sequence[str], gives: Sequence[str]) -> Part:
        """The part of `nodes`, in order, that takes and gives these values and has `constants` as buffers."""
        module = self._module(nodes, takes, constants, gives)
        examples = tuple(self._tensors[name].clone() for name in takes)

        def convert() -> Converted:
            with quiet(), torch.no_grad():
                return from_exported_program(torch.export.export(module, examples))

        return Part(
            nodes=tuple(nodes),
            convert=convert,
            inputs=tuple(self.values[name] for name in takes),
            expected=tuple(self.values[name] for name in gives),
            operands=tuple(self.operands_of(name) for name in gives),
            code=lambda: code_of([self._units[node.name] for node in nodes], takes, constants, gives),
            weights={name: self.values[name] for name in constants},
        )

    def _grouped(self) -> dict[str, list[Any]]:
        """Name of an operator's node -> it, and the nodes that pick from what it gives."""
        units: dict[str, list[Any]] = {}
        for node in self._graph.nodes:
            if node.op != "call_function":
                continue
            if node.target is operator.getitem and node.args[0].name in units:
                units[node.args[0].name].append(node)
            elif node.users:
                units[node.name] = [node]
        return units

    def _recorded(self, program: Any) -> tuple[dict[str, Any], set[str]]:
        """Every tensor of one run, by its node's name, and the names of those that are no input."""
        held = {**program.state_dict, **program.constants}
        given = iter(self._inputs)
        arguments, weights = [], set()
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                arguments.append(to_tensor(next(given)))
            else:
                weights.add(spec.arg.name)
                arguments.append(held.get(spec.target))
        recorder = _Recorder(program.graph_module)
        with quiet(), torch.no_grad(), TiesByPlace():
            try:
                recorder.run(*arguments)
            except Exception as error:
                raise InvalidModel(f"the program does not run in eager: {str(error).strip()[:300]}") from error
        return recorder.tensors, weights

    def _module(
        self, nodes: Sequence[Node], takes: Sequence[str], constants: Sequence[str], gives: Sequence[str]
    ) -> Any:
        graph, copies = fx.Graph(), {}
        for index, name in enumerate(takes):
            copies[self._by_name[name]] = graph.placeholder(f"x{index}")
        root = torch.nn.Module()
        for index, name in enumerate(constants):
            root.register_buffer(f"w{index}", self._tensors[name].clone())
            copies[self._by_name[name]] = graph.get_attr(f"w{index}")
        for node in nodes:
            for each in self._units[node.name]:
                copies[each] = graph.node_copy(each, copies.__getitem__)
        graph.output(tuple(copies[self._by_name[name]] for name in gives))
        return fx.GraphModule(root, graph).eval()


class _Recorder(fx.Interpreter):  # type: ignore[misc]  # torch is not looked into
    """Keeps a copy of every tensor."""

    def __init__(self, module: Any) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.tensors: dict[str, Any] = {}

    def run_node(self, n: Any) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and n.op != "output":
            self.tensors[n.name] = result.detach().clone(memory_format=torch.preserve_format)
        return result


def _mutates(node: Any) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def operator_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target.__name__}"
    return str(getattr(target, "__name__", target))


def example_arrays(program: Any) -> list[np.ndarray] | None:
    """The example inputs that an exported program brought along, flattened; None without any."""
    if program.example_inputs is None:
        return None
    args, kwargs = program.example_inputs
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    return [to_array(each) for each in leaves if isinstance(each, torch.Tensor)]


def specs_of(program: Any) -> list[TensorSpec]:
    """The tensors that a program takes, in order; raises UnsupportedShape for one that is open."""
    found = []
    by_name = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.input_specs:
        value = by_name[spec.arg.name].meta.get("val") if spec.kind is InputKind.USER_INPUT else None
        if isinstance(value, torch.Tensor):
            if not all(isinstance(extent, int) for extent in value.shape):
                raise UnsupportedShape(f"tensor {spec.arg.name!r} has a dynamic shape: export with static shapes")
            dtype = str(value.dtype).removeprefix("torch.")
            found.append(TensorSpec(name=spec.arg.name, shape=tuple(value.shape), dtype=dtype))
    return found


def program_of_torchscript(path: Path, inputs: Sequence[np.ndarray] | None) -> Any:
    """The exported program of a file that torch.jit.save wrote, for these inputs; raises as from_torchscript."""
    if not inputs:
        raise InvalidInput(f"{path.name}: TorchScript does not tell the shapes of its inputs: give them")
    try:
        script = torch.jit.load(str(path), map_location="cpu")
    except Exception as error:  # RuntimeError of the reader, of the unpickler, of the program
        raise InvalidModel(f"{path.name} is not a TorchScript archive: {str(error).strip()[:300]}") from error
    examples = tuple(map(to_tensor, inputs))
    with quiet(), torch.no_grad():
        return torch.export.export(module_of_torchscript(script, examples), examples)


def refused(node: Any) -> str | None:
    """Why an operator of a decomposed program is refused, imported alone; None where it is not, or is no operator."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return f"operator {node.target} is control flow, which a graph cannot hold"
    sources = node.all_input_nodes
    known = sources and all(isinstance(source.meta.get("val"), torch.Tensor) for source in sources)
    if node.op != "call_function" or node.target is operator.getitem or not known:
        return None
    results = results_of(node)
    if not results or not all(each is node or each.target is operator.getitem for each in results):
        return None
    if any(
        each.meta["val"].is_complex() for each in (*sources, *results)
    ):  # which a program can hold, not take or give
        return None if has_converter(node.target) else f"operator {operator_name(node.target)} has no converter"
    try:
        module_of_graph(graph_of(node))
    except InvalidModel as error:
        return error.detail
    return None

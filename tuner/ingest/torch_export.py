"""PyTorch modules, TorchScript and exported programs to the `relax` format. Runs where the module is; needs torch.

TorchScript (`torch.jit.trace` or `script`, in memory or in a file) goes through torch's own converter to an exported
program; what that converter cannot take is refused with its reason.

Random and stateful programs are refused by the operator's or the buffer's name.

Every parameter, buffer and lifted constant becomes a parameter of the model under its name in the state dict, except
what strip.py would also keep in an ONNX file: single elements, and integers and booleans of at most 1024 elements.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import decomposition_table
from torch._export.converter import TS2EPConverter
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from pitchpipe.errors import InvalidInput, InvalidModel, PitchpipeError, UnsupportedOperator, UnsupportedShape
from pitchpipe.model.strip import KEPT_INTEGERS
from pitchpipe.torch_operators.arrays import to_array
from pitchpipe.torch_operators.decompositions import inference_decompositions
from tuner.ingest import DEFAULT_LIMITS, TensorSpec, container
from tuner.ingest.aten import has_converter, import_graph, operator_name, randomness
from tuner.ingest.finalize import check_static, finalize
from tuner.ingest.pt2 import load_program
from tuner.ingest.torch_constants import constants_known
from tuner.ingest.torch_numbers import fold_numbers

if TYPE_CHECKING:
    import numpy as np

Converted = tuple[bytes, dict[str, "np.ndarray"]]
_UNKNOWN_RESULT = "in output, which is not a known type"
ADVICE = {
    _UNKNOWN_RESULT: "the module returns an object of a class that it does not know; return a tuple"
    " or a dict, or a dataclass",
    "classes.quantized.": "it cannot take packed weights apart; quantise by torchao or pt2e, or give an ONNX file with"
    " QuantizeLinear and DequantizeLinear",
    "fake tensor in the exported program constant": "the module writes through .data, which it loses; write into the tensor",
}
"""What torch.export says, in part, and what to do about it."""


def from_torch(
    module: Any, example_inputs: Sequence[Any], keywords: Mapping[str, Any] | None = None, *, numbers: bool = False
) -> Converted:
    """The `relax` format of a torch.nn.Module in eval mode, or of TorchScript, and its weights by name.

    Shapes are those of `example_inputs` and of `keywords`, arguments by name, which TorchScript does not take; both may be
    nested, and the model's inputs are their tensors in order. numbers: whether numbers among the results are left out, for a
    caller that puts them back; else they are refused. Raises InvalidModel, UnsupportedOperator or UnsupportedShape.
    """
    if getattr(module, "training", False):
        raise InvalidModel("the module is in training mode: call module.eval() first")
    examples, named = _apart((tuple(example_inputs), dict(keywords or {})))
    with quiet(), torch.no_grad(), _unvalidated():
        if isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            module = module_of_torchscript(module, examples)
        within = _Inside.PREFIX if _has_attributes_of_graphs(module) else ""
        program = _exported(_Inside(module) if within else module, examples, named)
    return from_exported_program(program, numbers=numbers, within=within)


def _apart(arguments: Any) -> Any:
    """The arguments with copies of views, and of a tensor that is there twice. Of views torch's decompositions take every
    extent for a variable; of two arguments that are one tensor torch.export reads the second alone, whatever comes later."""
    seen: set[int] = set()

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf._base is not None or id(leaf) in seen:
            return leaf.clone()
        seen.add(id(leaf))
        return leaf

    return torch.utils._pytree.tree_map(one, arguments)


class _Inside(torch.nn.Module):  # type: ignore[misc]
    """A module within another, for torch's passes, which keep weights as attributes of a torch.fx.GraphModule."""

    PREFIX = "inner."

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return self.inner(*arguments, **keywords)


def _has_attributes_of_graphs(module: Any) -> bool:
    """Whether a weight, or a submodule with weights, is named as an attribute of every GraphModule: code, graph, meta."""
    taken = {*dir(torch.fx.GraphModule), "meta"} - set(dir(torch.nn.Module))
    return not taken.isdisjoint(
        name.partition(".")[0] for name, _ in (*module.named_parameters(), *module.named_buffers())
    )


def _exported(module: Any, examples: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """As torch.export gives it; where it cannot follow a question that the module asks of its constants, as it does when
    they are answered. Dataclasses among the results are registered with it."""
    try:
        return torch.export.export(module, examples, keywords)
    except Exception as error:  # torch.export raises many kinds, user errors among them
        with contextlib.suppress(Exception):
            if _UNKNOWN_RESULT in str(error) and _registered(
                module(*copy.deepcopy(examples), **copy.deepcopy(keywords))
            ):
                return _exported(module, examples, keywords)
        advice = next((told for sign, told in ADVICE.items() if sign in str(error)), None)
        with contextlib.suppress(Exception), constants_known(module):
            if advice is None:
                return torch.export.export(module, examples, keywords)
        raise InvalidModel(f"torch.export failed{_place(error)}: {advice or _first_line(error)}") from error


def _registered(result: Any) -> bool:
    """Whether there was a dataclass in the result that torch.export did not know, and does now."""
    found = False
    for leaf in torch.utils._pytree.tree_leaves(result):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            torch.export.register_dataclass(type(leaf))
            _registered(leaf)  # whose fields are leaves now
            found = True
    return found


def _place(error: BaseException) -> str:
    """Words for the innermost line of the model that torch.export was at; none for a model without lines."""
    library = Path(torch.__file__).parent
    lines = [
        f" at `{frame.line[:200]}` ({Path(frame.filename).name}, line {frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.line and frame.filename != __file__ and not Path(frame.filename).is_relative_to(library)
    ]
    return lines[-1] if lines else ""


def module_of_torchscript(script: Any, examples: tuple[Any, ...]) -> Any:
    """A torch.nn.Module that computes what a script does, by torch's own converter.

    The converter leaves every shape open; exporting the module again closes them. Raises UnsupportedOperator for an operator
    that the converter does not know, InvalidModel for a script that it cannot take.
    """
    try:
        return TS2EPConverter(script, examples).convert().module()
    except Exception as error:  # the converter raises RuntimeError, AssertionError, ValueError, KeyError, ...
        reason = _first_line(error)
        found = re.match(r"TS2EPConverter failed for node (\S+)", reason)
        if found is None:
            raise InvalidModel(f"the TorchScript program cannot be converted: {reason}") from error
        cause = f": {_first_line(error.__cause__)}" if error.__cause__ is not None else ""
        raise UnsupportedOperator(f"TorchScript operator {found[1]} cannot be converted{cause}") from error


def from_torchscript(path: Path, example_inputs: Sequence[Any] | None) -> Converted:
    """The `relax` format of a file that torch.jit.save wrote. Loading one can run code: the caller trusts it.

    The file does not tell the shapes of its inputs: `example_inputs`, tensors or arrays, do. Raises as from_torch.
    """
    if not example_inputs:
        raise InvalidInput(f"{path.name}: TorchScript does not tell the shapes of its inputs: give them")
    try:
        with quiet():
            script = torch.jit.load(str(path), map_location="cpu")
    except Exception as error:  # RuntimeError of the reader, of the unpickler, of the program
        raise InvalidModel(f"{path.name} is not a TorchScript archive: {_first_line(error)}") from error
    return from_torch(script, [torch.as_tensor(example) for example in example_inputs])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without torch's deprecations and its notes about shapes, which are not the caller's."""
    notes = logging.getLogger("torch._export.non_strict_utils")
    level = notes.level
    notes.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        notes.setLevel(level)


@contextlib.contextmanager
def _unvalidated() -> Iterator[None]:
    """Distributions do not look at the values of their parameters, which are not known while a module is exported."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


def from_pt2(path: Path, _example_inputs: Sequence[Any] | None = None) -> Converted:
    """The `relax` format of a saved exported program. Loading one can run code: the caller trusts it."""
    return from_exported_program(load_program(path))


def _used(graph: Any) -> list[Any]:
    """The nodes that a result or an effect depends on, in order. Models draw a number for each layer that they might leave
    out, in evaluation mode too, and forget it."""
    used: set[Any] = set()
    for node in reversed(graph.nodes):
        if node in used or node.is_impure(impure_random=False):
            used |= {node, *node.all_input_nodes}
    return [node for node in graph.nodes if node in used]


def from_exported_program(program: Any, *, numbers: bool = False, within: str = "") -> Converted:
    """The `relax` format of a torch.export.ExportedProgram, and its weights by name, without `within` at its beginning; see
    from_torch.

    Results are the tensors among the program's results, in order; those that are None are left out.
    """
    with quiet(), torch.no_grad():
        for node in _used(program.graph):
            if node.op == "call_function" and (reason := randomness(node)) is not None:
                raise UnsupportedOperator(f"operator {operator_name(node)} ({node.name}) {reason}")
        try:
            program = program.run_decompositions(export_decompositions())
            if fold_numbers(program):
                program = program.run_decompositions({})
        except PitchpipeError:
            raise
        except Exception as error:  # decompositions raise whatever they met
            raise InvalidModel(f"the program cannot be taken apart: {_first_line(error)}") from error
        _check_state(program)
        _check_results(program)
        inputs, weights, names, bound = _placeholders(program)
        results = _user_results(program)
        if numbers:
            results = [result for result in results if isinstance(result, torch.fx.Node)]
        module = import_graph(program.graph, [*inputs, *names], bound, results)
    weights = {name.removeprefix(within): values for name, values in weights.items()}
    variables, specs = list(module["main"].params), []
    for variable in variables:
        name = names[variable.name].removeprefix(within) if variable.name in names else variable.name
        while variable.name not in names and name in weights:
            name += "_"  # an input, named as a weight
        shape = tuple(int(extent) for extent in variable.ty.shape.values)
        check_static(name, shape, DEFAULT_LIMITS)
        specs.append(TensorSpec(name=name, shape=shape, dtype=str(variable.ty.dtype)))
    return container(finalize(module, variables, specs, len(inputs), DEFAULT_LIMITS)), weights


@cache
def export_decompositions() -> dict[Any, Any]:
    """Of inference, and PyTorch's further ones of what has no converter."""
    found = dict(inference_decompositions())
    for target, decomposition in decomposition_table.items():
        if isinstance(target, torch._ops.OpOverload) and not has_converter(target):
            found.setdefault(target, decomposition)
    found.pop(torch.ops.aten.take.default, None)  # PyTorch's asks the index for its value
    return found


def _check_state(program: Any) -> None:
    """Raises UnsupportedOperator where a run changes what the next one reads, or what the caller has given.

    A buffer that is written and never read, or that is written with what it held, changes no result.
    """
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    by_target = {
        spec.target: placeholders[spec.arg.name] for spec in program.graph_signature.input_specs if spec.target
    }
    (output,) = program.graph.find_nodes(op="output")
    for spec, value in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise UnsupportedOperator(
                f"the program writes into its input {spec.target!r}: let forward write into a copy,"
                f" {spec.target}.clone(), and return it"
            )
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            source = by_target[spec.target]
            if value is not source and source.users:
                raise UnsupportedOperator(
                    f"the program writes into its buffer {spec.target!r} and reads it: it is stateful;"
                    " take the state as an argument of forward, and return the new one"
                )


def _check_results(program: Any) -> None:
    """Raises UnsupportedShape where the extents of a result are computed."""
    for result in _user_results(program):
        value = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
        if isinstance(value, torch.Tensor) and not all(isinstance(extent, int) for extent in value.shape):
            raise UnsupportedShape(f"output {result.name!r} has a shape that depends on data")


def _user_results(program: Any) -> list[Any]:
    """What the user sees of a program's results: nodes, constants and None."""
    kept = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    (output,) = program.graph.find_nodes(op="output")
    specs = program.graph_signature.output_specs
    return [one for spec, one in zip(specs, output.args[0], strict=True) if spec.kind in kept]


def _placeholders(program: Any) -> tuple[list[str], dict[str, np.ndarray], dict[str, str], dict[str, Any]]:
    """Names of the placeholders that are inputs; weights by state-dict name; those names by placeholder; other tensors."""
    tensors = {**program.state_dict, **program.constants}
    read = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    inputs, weights, names, bound = [], {}, {}, {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.TOKEN:
            continue  # orders checks that may raise, on which no result depends
        if spec.kind is InputKind.USER_INPUT:
            if not isinstance(spec.arg, TensorArgument):
                if spec.arg.name in read:
                    raise InvalidModel(f"{spec.arg.name!r} is not a tensor")
                continue
            inputs.append(spec.arg.name)
            continue
        tensor = tensors.get(spec.target)
        if not isinstance(tensor, torch.Tensor):
            raise InvalidModel(f"{spec.target!r} is not a tensor")
        if spec.arg.name not in read or not _is_weight(tensor):
            bound[spec.arg.name] = tensor
        else:
            weights[spec.target] = to_array(tensor)
            names[spec.arg.name] = spec.target
    return inputs, weights, names, bound


def _is_weight(tensor: Any) -> bool:
    limit = 1 if tensor.is_floating_point() else KEPT_INTEGERS
    return bool(tensor.numel() > limit)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]

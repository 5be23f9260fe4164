"""PyTorch modules, TorchScript and exported programs to the `relax` format. Runs where the module is; needs torch.

TorchScript (`torch.jit.trace` or `script`, in memory or in a file) goes through torch's own converter to an exported
program; what that converter cannot take is refused with its reason.

Every parameter, buffer and lifted constant becomes a parameter of the model under its name in the state dict, except
what strip.py would also keep in an ONNX file: single elements, and integers and booleans of at most 1024 elements.
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._export.converter import TS2EPConverter
from torch.export.graph_signature import InputKind, InputSpec
from tvm.relax.frontend.torch import exported_program_translator

from pitchpipe.errors import InvalidInput, InvalidModel, UnsupportedOperator, UnsupportedShape
from pitchpipe.strip import KEPT_INTEGERS
from pitchpipe.torch_operators import inference_decompositions
from tuner.ingest import DEFAULT_LIMITS, TensorSpec, container
from tuner.ingest.settle import check_static, settle
from tuner.ingest.torch_recurrent import recurrent

if TYPE_CHECKING:
    import numpy as np

Converted = tuple[bytes, dict[str, "np.ndarray"]]


def from_torch(module: Any, example_inputs: Sequence[Any]) -> Converted:
    """The `relax` format of a torch.nn.Module in eval mode, or of TorchScript, and its weights by name.

    Shapes are those of `example_inputs`. Raises InvalidModel, UnsupportedOperator or UnsupportedShape.
    """
    if getattr(module, "training", False):
        raise InvalidModel("the module is in training mode: call module.eval() first")
    # Of views of one tensor torch's decompositions take every extent for a variable.
    examples = tuple(each.clone() if getattr(each, "_base", None) is not None else each for each in example_inputs)
    with _quiet(), torch.no_grad():
        if isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            module = _from_torchscript(module, examples)
        try:
            program = torch.export.export(module, examples)
        except Exception as error:  # torch.export raises many kinds, user errors among them
            raise InvalidModel(f"torch.export failed: {_first_line(error)}") from error
    return from_exported_program(program)


def _from_torchscript(script: Any, examples: tuple[Any, ...]) -> Any:
    """A module of the same computation. torch's converter leaves every shape open; exporting it again closes them."""
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
        with _quiet():
            script = torch.jit.load(str(path), map_location="cpu")
    except Exception as error:  # RuntimeError of the reader, of the unpickler, of the program
        raise InvalidModel(f"{path.name} is not a TorchScript archive: {_first_line(error)}") from error
    return from_torch(script, [torch.as_tensor(example) for example in example_inputs])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
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


def from_pt2(path: Path) -> Converted:
    """The `relax` format of a saved exported program. Loading one can run code: the caller trusts it."""
    try:
        program = torch.export.load(path)
    except Exception as error:  # zipfile, pickle, JSON and torch errors
        raise InvalidModel(f"{path.name} is not a torch.export archive: {_first_line(error)}") from error
    return from_exported_program(program)


def from_exported_program(program: Any) -> Converted:
    """The `relax` format of a torch.export.ExportedProgram, and its weights by name; see from_torch."""
    with _quiet(), torch.no_grad():
        program = program.run_decompositions(inference_decompositions())
        for node in program.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):
                raise UnsupportedOperator(f"operator {node.target} is control flow, which a graph cannot hold")
        view, weights, names = _weights_as_parameters(program)
        try:
            module = exported_program_translator.ExportedProgramImporter().from_exported_program(
                view, True, True, False, {"recurrent_layer.default": recurrent}
            )
        except (AssertionError, NotImplementedError) as error:
            raise UnsupportedOperator(f"the program cannot be converted: {_first_line(error)}") from error
        except Exception as error:  # converters raise whatever they met: ValueError, KeyError, InternalError, ...
            raise InvalidModel(f"the program cannot be converted: {_first_line(error)}") from error
    variables, specs = list(module["main"].params), []
    num_input = len(variables) - len(weights)
    for variable in variables:
        name = names.get(variable.name, variable.name)
        shape = getattr(variable.ty.shape, "values", None)
        if shape is None or not all(hasattr(extent, "value") for extent in shape):
            raise UnsupportedShape(f"tensor {name!r} has a dynamic shape: export with static shapes")
        check_static(name, [int(extent) for extent in shape], DEFAULT_LIMITS)
        spec = TensorSpec(name=name, shape=tuple(int(extent) for extent in shape), dtype=str(variable.ty.dtype))
        specs.append(spec)
    return container(settle(module, variables, specs, num_input, DEFAULT_LIMITS)), weights


def _weights_as_parameters(program: Any) -> tuple[Any, dict[str, np.ndarray], dict[str, str]]:
    """A view of the program in which every tensor that is to be a weight is a parameter, its weights, and their names.

    TVM's importer keeps parameters as arguments and binds buffers, a batch norm's statistics among them, as constants.
    The names are state-dict name by argument name.
    """
    tensors = {**program.state_dict, **program.constants}
    read = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    specs, weights, names = [], {}, {}
    bound: dict[str, Any] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            specs.append(spec)
            continue
        tensor = tensors.get(spec.target)
        if not isinstance(tensor, torch.Tensor):
            raise InvalidModel(f"{spec.target!r} is not a tensor")
        if spec.arg.name not in read or not _is_weight(tensor):
            bound[spec.target] = tensor
            kind = InputKind.BUFFER
        else:
            weights[spec.target] = _array(tensor)
            names[spec.arg.name] = spec.target
            kind = InputKind.PARAMETER
        specs.append(InputSpec(kind=kind, arg=spec.arg, target=spec.target, persistent=True))
    view = SimpleNamespace(
        range_constraints=program.range_constraints,
        graph=program.graph,
        graph_module=program.graph_module,
        graph_signature=SimpleNamespace(input_specs=specs, output_specs=program.graph_signature.output_specs),
        state_dict=tensors,
        constants={},
        tensor_constants={},
        named_buffers=bound.items,
        named_parameters=tuple,
    )
    return view, weights, names


def _is_weight(tensor: Any) -> bool:
    limit = 1 if tensor.is_floating_point() else KEPT_INTEGERS
    return bool(tensor.numel() > limit)


def _array(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        view: np.ndarray = tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        return view
    array: np.ndarray = tensor.numpy()
    return array


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]

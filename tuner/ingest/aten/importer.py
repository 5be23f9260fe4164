"""A graph of functional ATen operators with static shapes -> a Relax module. Both ways in from PyTorch use it.

Every operator has a converter of ours (CONVERTERS); none of TVM's importer is used, which is wrong where arguments are
unusual. Every result is compared with the fake tensor that PyTorch made for it: another shape or type is a refusal that
names the operator, never a different answer.

Tensors without elements are never in the Relax module: they are followed here, and what is computed from nothing else is
computed by PyTorch. The same holds for operators without tensor arguments, which give constants.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pitchpipe.errors import PitchpipeError, UnsupportedOperator, UnsupportedShape
from pitchpipe.torch_operators.decompositions import qualified_name
from tuner.ingest.aten.complex import COMPLEX, PARTWISE, Pair, is_complex, split_parts
from tuner.ingest.aten.emitter import CONVERTERS, Emitter, dtype_name, is_tensor, tvm_array
from tuner.ingest.aten.nothing import Nothing
from tuner.tvm_compat import relax

DTYPES = frozenset(
    {
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint64, torch.bool),
    }
)
IGNORED = frozenset(
    {
        *("_assert_tensor_metadata.default", "_assert_scalar.default", "_assert_async.msg", "_assert_async.default"),
        "_linalg_check_errors.default",  # a matrix without an inverse has one of infinities, where PyTorch raises
    }
)
"""Operators that compute nothing."""
COMPLEX_DTYPES = frozenset({torch.complex64, torch.complex128})
"""Between operators only: an input or a result of a program is never complex."""
LARGEST_CONSTANT = 1 << 22
"""Elements of a tensor that is computed here and kept as a constant."""


def import_graph(graph: Any, names: Sequence[str], bound: Mapping[str, Any], results: Sequence[Any]) -> Any:
    """A module whose main takes the placeholders called `names`, in this order, and gives a tensor or a tuple of several.

    Other placeholders that are read must be in `bound`, which has their tensors by name. `results` are nodes of the graph;
    those that are None are left out, and what none of them needs is not converted. Raises UnsupportedOperator or
    UnsupportedShape, naming operator and node.
    """
    return _Importer(names, bound).module(graph, results)


def refuse(node: Any, reason: str) -> UnsupportedOperator:
    return UnsupportedOperator(f"operator {operator_name(node)} ({node.name}) {reason}")


def operator_name(node: Any) -> str:
    return qualified_name(node.target)


def has_converter(target: Any) -> bool:
    """Whether an operator is taken as it is."""
    name = qualified_name(target)
    return name in CONVERTERS or name in COMPLEX or name in IGNORED or target is operator.getitem


class _Importer:
    def __init__(self, names: Sequence[str], bound: Mapping[str, Any]) -> None:
        self.names, self.bound = list(names), bound
        self.builder = relax.BlockBuilder()
        self.env: dict[Any, Any] = {}
        """Node -> Relax expression, Nothing, or a tuple of these."""

    def module(self, graph: Any, results: Sequence[Any]) -> Any:
        needed = _needed(results)
        placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
        variables = []
        for name in self.names:
            value = placeholders[name].meta["val"]
            if value.dtype not in DTYPES:
                hint = "; pass its real and imaginary parts" if value.dtype in COMPLEX_DTYPES else ""
                raise UnsupportedOperator(f"input {name!r} is a tensor of {value.dtype}{hint}")
            variables.append(relax.Var(name, relax.TensorType(list(map(int, value.shape)), dtype_name(value.dtype))))
            self.env[placeholders[name]] = variables[-1]
        for name, node in placeholders.items():
            if node in needed and node not in self.env:
                if name not in self.bound:
                    raise UnsupportedOperator(f"{name} is no tensor")
                self.env[node] = self._constant(self.bound[name])
        with self.builder.function("main", params=variables, attrs={"num_input": len(variables)}):
            with self.builder.dataflow():
                for node in graph.nodes:
                    if node not in needed or node.op == "placeholder":
                        continue
                    is_constant = node.op == "get_attr"
                    self.env[node] = self._attribute(graph, node) if is_constant else self._converted(node)
                result = self.builder.emit_output(self._results(results))
            self.builder.emit_func_output(result)
        return self.builder.get()

    def _results(self, outputs: Sequence[Any]) -> Any:
        found = []
        for output in outputs:
            if output is None:
                continue
            if not isinstance(output, fx.Node):
                raise UnsupportedOperator(f"an output is the constant {output!r}, which is no tensor")
            value = self.env[output]
            if isinstance(value, Nothing):
                raise UnsupportedShape(
                    f"output {output.name!r} of shape {list(value.value.shape)} has no elements: give example inputs without"
                    " an axis of extent 0"
                )
            if not is_tensor(value):
                kind = "complex" if isinstance(value, Pair) else "no tensor"
                raise UnsupportedOperator(f"output {output.name!r} is {kind}")
            found.append(value)
        if not found:
            raise UnsupportedOperator("the program gives no tensor")
        return found[0] if len(found) == 1 else tuple(found)

    def _attribute(self, graph: Any, node: Any) -> Any:
        value = graph.owning_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return self._constant(value) if isinstance(value, torch.Tensor) else None  # a branch; what takes it is refused

    def _constant(self, tensor: Any) -> Any:
        if tensor.numel() == 0:
            return Nothing(tensor)
        if tensor.dtype in COMPLEX_DTYPES:
            return Pair(self._constant(tensor.real.contiguous()), self._constant(tensor.imag.contiguous()))
        if tensor.dtype not in DTYPES or tensor.layout is not torch.strided:
            raise UnsupportedOperator(f"a constant is a tensor of {tensor.dtype}, {tensor.layout}")
        return relax.const(tvm_array(tensor, ""), dtype_name(tensor.dtype))

    def _converted(self, node: Any) -> Any:
        if node.target is operator.getitem:
            source = self.env[node.args[0]]
            if isinstance(source, Pair) or not isinstance(source, (tuple, list)):
                source = relax.TupleGetItem(source, node.args[1]) if is_tensor(source) else None
                found = self.builder.emit(source) if source is not None else None
            else:
                found = source[node.args[1]]
            if found is None:
                raise refuse(node.args[0], f"has no result {node.args[1]} here")
            return self._checked(node, found)
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise refuse(node, "is control flow, which a graph cannot hold")
        if not isinstance(node.target, torch._ops.OpOverload):
            raise refuse(node, "is no ATen operator")
        name = operator_name(node)
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else [values]:
            _check_usable(node, value)
        arguments = [self.env[source] for source in node.all_input_nodes]
        tensors = [one for each in arguments for one in (each if isinstance(each, (tuple, list)) else (each,))]
        if name in IGNORED:
            return None
        if (reason := randomness(node)) is not None:
            raise refuse(node, reason)
        if all(isinstance(one, Nothing) for one in tensors) and (tensors or name not in CONVERTERS):
            return self._evaluated(node)
        if isinstance(values, torch.Tensor) and values.numel() == 0:
            return Nothing(values)
        if any(isinstance(one, Nothing) for one in tensors) and name not in TAKES_NOTHING:
            if name in WRITES_INTO:
                return self._checked(node, self.env[node.args[0]])
            raise UnsupportedShape(f"operator {name} ({node.name}) takes a tensor with an empty dimension")
        try:
            found = self._emitted(node, name)
        except PitchpipeError:
            raise
        except NotImplementedError as error:
            if not tensors:
                return self._evaluated(node)
            raise refuse(node, f"cannot be converted: {error}") from error
        except Exception as error:  # operators of Relax and of TVM's importer raise whatever they met
            raise refuse(node, f"cannot be converted: {first_line(error)}") from error
        return self._checked(node, found)

    def _emitted(self, node: Any, name: str) -> Any:
        to, arguments = Emitter(self.builder, node), self._bound(node)
        if to.gives_complex or any(is_complex(each) for each in arguments.values()):
            if name in COMPLEX:
                return COMPLEX[name](to, **arguments)
            if name not in PARTWISE or name not in CONVERTERS:
                raise refuse(node, "has no converter for complex numbers")
            parts = {key: split_parts(to, key, value) for key, value in arguments.items()}
            return Pair(*(CONVERTERS[name](to, **{key: one[at] for key, one in parts.items()}) for at in (0, 1)))
        if name in COMPLEX and name not in CONVERTERS:
            return COMPLEX[name](to, **arguments)
        if name not in CONVERTERS:
            raise refuse(node, "has no converter")
        return CONVERTERS[name](to, **arguments)

    def _bound(self, node: Any) -> dict[str, Any]:
        """The arguments by name, defaults filled in."""
        schema = node.target._schema.arguments
        found = {}
        for at, argument in enumerate(schema):
            if argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            elif at < len(node.args) and not argument.kwarg_only:
                value = node.args[at]
            else:
                value = argument.default_value if argument.has_default_value() else None
            name = "x" if argument.name == "self" or (at == 0 and argument.name in SUBJECTS) else argument.name
            found[name] = fx.node.map_arg(value, self.env.__getitem__)
        return found

    def _evaluated(self, node: Any) -> Any:
        """What PyTorch computes of tensors without elements, or of none."""

        def value_of(source: Any) -> Any:
            found = self.env[source]
            return [one.value for one in found] if isinstance(found, (tuple, list)) else found.value

        values = node.meta["val"]
        sizes = [one.numel() for one in (values if isinstance(values, (tuple, list)) else [values])]
        if max(sizes, default=0) > LARGEST_CONSTANT:
            raise refuse(node, "would be a large constant")
        if operator_name(node).startswith("empty"):
            found = torch.zeros(tuple(values.shape), dtype=values.dtype)
        else:
            kwargs = {key: value for key, value in node.kwargs.items() if key not in ("device", "pin_memory")}
            args, kwargs = fx.node.map_arg((node.args, kwargs), value_of)
            found = node.target(*args, **kwargs)
        if isinstance(found, (tuple, list)):
            return tuple(self._constant(one) for one in found)
        return self._constant(found)

    def _checked(self, node: Any, found: Any) -> Any:
        """`found`, if it is what PyTorch says the node gives."""
        value = node.meta["val"]
        if isinstance(value, (tuple, list)):
            if isinstance(found, relax.Tuple):
                return tuple(found.fields)
            return found  # its items are compared when they are taken
        if isinstance(found, Pair):
            for part in found:
                self._compared(node, part, dtype_name(value.dtype.to_real()), list(value.shape))
            return found
        if isinstance(found, (Nothing, tuple, list)):
            return found
        self._compared(node, found, dtype_name(value.dtype), list(value.shape))
        return found

    @staticmethod
    def _compared(node: Any, found: Any, dtype: str, expected: list[int]) -> None:
        shape = getattr(found.ty, "shape", None)
        extents = [int(extent) for extent in shape.values] if isinstance(shape, relax.ShapeExpr) else None
        got = (str(getattr(found.ty, "dtype", "")), extents)
        if got != (dtype, expected):
            raise refuse(node, f"would give {got[0]}{got[1]}, not {dtype}{expected}")


def _needed(results: Sequence[Any]) -> set[Any]:
    """The nodes that results are computed from."""
    found: set[Any] = set()
    waiting = [one for one in results if isinstance(one, fx.Node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


SUBJECTS = frozenset({"self", "input", "inp", "a", "data"})
"""Names that schemas have for what an operator is about; converters call it x."""
TAKES_NOTHING = frozenset({"cat.default"})
"""Operators whose converters take tensors without elements beside others."""
WRITES_INTO = frozenset(
    {
        *("slice_scatter.default", "as_strided_scatter.default", "scatter.src", "scatter.value", "scatter_add.default"),
        *("scatter.reduce", "scatter.value_reduce", "scatter_reduce.two", "index_add.default", "index_copy.default"),
        *("index_fill.int_Scalar", "index_fill.int_Tensor", "index_put.default", "_unsafe_index_put.default"),
        *("index_reduce.default", "put.default", "diagonal_scatter.default"),
    }
)
"""Operators that give their first argument with some elements replaced: none, where there are no places or no values."""


def randomness(node: Any) -> str | None:
    """Why what an operator gives is not decided by its arguments; None where it is."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return None
    given = {argument.name: argument for argument in node.target._schema.arguments}
    values = dict(zip(given, node.args, strict=False)) | node.kwargs
    for name, argument in given.items():
        value = values.get(name, argument.default_value if argument.has_default_value() else None)
        if name in ("train", "training") and value is False:
            return None
        if name in ("p", "dropout", "dropout_p") and value == 0:
            return None
        if name == "p" and value == 1 and "dropout" in operator_name(node):  # everything is dropped
            return None
    return "draws random numbers"


def _check_usable(node: Any, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, torch.Tensor):
        raise refuse(node, f"gives {type(value).__name__}, which is no tensor")
    if not all(isinstance(extent, int) for extent in value.shape):
        raise UnsupportedShape(f"operator {operator_name(node)} ({node.name}) gives a shape that depends on data")
    if value.layout is not torch.strided or value.dtype not in DTYPES | COMPLEX_DTYPES:
        raise refuse(node, f"gives a tensor of {value.dtype}, {value.layout}")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]

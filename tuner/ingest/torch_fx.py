"""ATen graphs, as torch.compile captures them, to the `relax` format. Runs in the program that compiles; needs torch.

A graph is a torch.fx.GraphModule of functional ATen operators with static shapes; every placeholder has a fake tensor as
meta["val"]. Which operators can be taken is asked of the importer itself (tuner/ingest/aten), operator by operator, with a
module of that operator alone: what the importer refuses, or has no tensor function for, stays with PyTorch.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from tuner.graph.double_norms import decompose_double_norms
from tuner.graph.half_precision import compute_in_float32
from tuner.graph.legalise import legalise
from tuner.graph.sorts import SORTS
from tuner.ingest import DEFAULT_LIMITS, TensorSpec, container
from tuner.ingest.aten import import_graph, randomness
from tuner.ingest.aten.strides import lies_the_same
from tuner.ingest.finalize import finalize
from tuner.tvm_compat import relax, tvm

LEFT = frozenset(
    {"empty.memory_format", "empty_like.default", "empty_permuted.default", "_assert_tensor_metadata.default"}
)
"""Operators that are left to PyTorch: they compute nothing, or are about memory."""
INDEXED = frozenset(
    {
        *("embedding", "_embedding_bag", "_embedding_bag_forward_only", "gather", "take", "put", "masked_scatter"),
        *(
            "index",
            "index_add",
            "index_copy",
            "index_fill",
            "index_put",
            "_index_put_impl",
            "index_reduce",
            "index_select",
        ),
        *("scatter", "scatter_add", "scatter_reduce", "max_unpool2d", "max_unpool3d"),
    }
)
"""Operators for which an index out of range is an error in PyTorch, and another element's number in compiled code."""
RANGED = frozenset({"binary_cross_entropy", "binary_cross_entropy_backward", "histc"})
"""Operators that raise in PyTorch for values out of a range, which compiled code would take."""
DIVIDING = frozenset({"div", "floor_divide", "fmod", "remainder"})
"""Operators for which a zero among whole divisors is an error in PyTorch, and ends the process in compiled code."""
MOST_COMPARISONS = 1 << 27
"""Of an operator that compares every two elements of a line, which takes tens of microseconds on a GPU; PyTorch sorts."""
LOWERED = frozenset({"relax.call_tir", "relax.reshape", "relax.cumprod", "relax.cumsum", *SORTS})
"""What is left of an operator that can be compiled; preparation makes tensor functions of all but the first two."""
DTYPES = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)
COMPLEX = frozenset({torch.complex64, torch.complex128})
"""Types of what operators of a compiled program have from one another."""

_known: dict[str, str | None] = {}


def from_graph(graph_module: Any, weights: Collection[str]) -> bytes:
    """The `relax` format of a graph; placeholders named in `weights` become parameters, the others inputs.

    Both keep their order and are called x0, x1, ... and w0, w1, ..., so that equal graphs give equal bytes whatever their
    nodes are called. Raises UnsupportedOperator or InvalidModel.
    """
    graph, names = _renamed(graph_module.graph, weights)
    module = module_of_graph(graph)
    by_name = {variable.name: variable for variable in module["main"].params}
    ordered = sorted(names, key=lambda name: name.startswith("w"))  # stable: inputs first
    variables, specs = [by_name[name] for name in ordered], []
    for name in ordered:
        value = names[name]
        spec = TensorSpec(name=name, shape=tuple(map(int, value.shape)), dtype=str(by_name[name].ty.dtype))
        specs.append(spec)
    num_input = sum(name.startswith("x") for name in ordered)
    return container(finalize(module, variables, specs, num_input, DEFAULT_LIMITS))


def unsupported(node: Any, *, indices_checked: bool = False) -> str | None:
    """Why a node of a graph cannot be compiled; None when it can.

    indices_checked: whether somebody looks, before each run, whether the operator's indices are in range.
    """
    if node.op != "call_function":
        return f"{node.op} is no operator"
    if node.target is operator.getitem:
        if not isinstance(node.args[0], fx.Node):
            return "an index into no node"
        return unsupported(node.args[0], indices_checked=indices_checked)
    if not isinstance(node.target, torch._ops.OpOverload):
        return f"{node.target} is no ATen operator"
    together = _with_complex_numbers(node)
    if (reason := next(filter(None, map(_unusable_alone, together)), None)) is not None:
        return reason
    places = {one: f"%{at}" for at, one in enumerate(together)}

    def text(found: Any) -> str:
        return places.get(found) or _type_text(found)

    # Results as well: the same arguments may have a result that is used in one place and not in another.
    parts = [
        f"{one.target}|{fx.node.map_arg((one.args, one.kwargs), text)}|{[_type_text(each) for each in results_of(one)]}"
        for one in together
    ]
    key = f"{parts}|{indices_checked}"
    if key not in _known:
        _known[key] = next(filter(None, (_left(one, indices_checked) for one in together)), None) or _tried(together)
    return _known[key]


def _with_complex_numbers(node: Any) -> list[Any]:
    """The node with all that it gives complex numbers to or has them from, directly or by others, in the order of the graph.
    They are compiled together or not at all: a compiled program takes and gives real numbers."""
    found, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        beside = [source for source in one.all_input_nodes if _is_complex(source) or one.target is operator.getitem]
        beside += [user for result in results_of(one) if _is_complex(result) for user in (result, *result.users)]
        for each in beside:
            if each not in found:
                found.add(each)
                waiting.append(each)
    return [node] if len(found) == 1 else [each for each in node.graph.nodes if each in found]


def _is_complex(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _unusable_alone(node: Any) -> str | None:
    """Why a node cannot be compiled, whatever it computes."""
    if node.op != "call_function":
        return f"{node.op} takes or gives complex numbers"
    if node.target is operator.getitem:
        return None
    if not isinstance(node.target, torch._ops.OpOverload):
        return f"{node.target} is no ATen operator"
    tensors = [*node.all_input_nodes, *results_of(node)]
    if (reason := next(filter(None, map(_unusable, tensors)), None)) is not None:
        return reason
    if node.target is torch.ops.aten.as_strided.default and not lies_the_same(node):
        return f"{node.target.__name__} reads memory, which a compiled program arranges as it likes"
    return _compares_all(node)


def _type_text(node: Any) -> str:
    value = node.meta["val"]
    index = node.args[1] if node.target is operator.getitem else ""
    return f"{index}:{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else "tuple"


def results_of(node: Any) -> list[Any]:
    """The nodes that are a node's tensors: itself, or the items of it that are used."""
    return [node] if isinstance(node.meta.get("val"), torch.Tensor) else list(node.users)


def _unusable(node: Any) -> str | None:
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return None  # its items are looked at one by one
    if not isinstance(value, torch.Tensor):
        return "an argument or a result is no tensor"
    if not all(isinstance(extent, int) for extent in value.shape):
        return "a shape is not known"
    if value.layout is not torch.strided or value.dtype not in DTYPES | COMPLEX or value.numel() == 0:
        return f"a tensor of {value.dtype}{list(value.shape)}, {value.layout}"
    return None


def _left(node: Any, indices_checked: bool) -> str | None:
    """Why an operator stays with PyTorch though it could be compiled."""
    if node.target is operator.getitem:
        return None
    target = node.target
    name = target.__name__
    if (reason := randomness(node)) is not None:
        return f"{name} {reason}"
    if target._schema.is_mutable:
        return f"{name} writes into its arguments"
    if name.partition(".")[0] in INDEXED and not indices_checked:
        return f"{name} checks its indices"
    if name.partition(".")[0] in RANGED:
        return f"{name} checks its values"
    if name.partition(".")[0] in DIVIDING and _divides_whole_numbers(node):
        return f"{name} checks its divisors"
    if name in LEFT:
        return f"{name} is about memory"
    results = results_of(node)
    if any(not isinstance(source.meta["val"], torch.Tensor) for source in node.all_input_nodes):
        return f"{name} takes a tuple"
    if any(result is not node and result.target is not operator.getitem for result in results):
        return f"{name} gives a tuple that is used as a whole"
    return None


def _tried(nodes: Sequence[Any]) -> str | None:
    """Why operators cannot be compiled together."""
    name, graph = nodes[0].target.__name__, graph_of(*nodes)
    (output,) = graph.find_nodes(op="output")
    try:
        module = relax.transform.DecomposeOpsForInference()(module_of_graph(graph))
        lowered, constant = module, not graph.find_nodes(op="placeholder")  # the latter is evaluated by preparation
        if not constant:
            lowered = legalise(compute_in_float32(decompose_double_norms(module)))
    except Exception as error:  # noqa: BLE001 - importer and passes raise whatever they met
        return f"{name}: {_first_line(error)}"
    found = lowered["main"].ret_ty
    types = list(found.fields) if isinstance(found, tvm.ir.TupleType) else [found]
    for ty, result in zip(types, output.args[0], strict=True):
        value = result.meta["val"]
        shape = getattr(getattr(ty, "shape", None), "values", ())
        got = (str(getattr(ty, "dtype", "")), [int(extent) for extent in shape if hasattr(extent, "value")])
        if got != (str(value.dtype).removeprefix("torch."), list(value.shape)):
            return f"{name} would give {got[0]}{got[1]}, not {value.dtype}{list(value.shape)}"
    return None if constant else _not_lowered(lowered)


def _divides_whole_numbers(node: Any) -> bool:
    """Whether it gives whole numbers by divisors that are not known, or zero."""
    value, divisor = node.meta["val"], node.args[1]
    whole = not (value.is_floating_point() or value.is_complex())
    return whole and (isinstance(divisor, fx.Node) or divisor == 0)


def _compares_all(node: Any) -> str | None:
    """Why it stays with PyTorch: it would compare too many elements with one another, as a mode does."""
    name, given = node.target.__name__, node.all_input_nodes
    if not given or name.partition(".")[0] != "mode":
        return None
    shape = given[0].meta["val"].shape
    return f"{name} of lines that are too long" if shape.numel() * max(shape, default=1) > MOST_COMPARISONS else None


def _not_lowered(module: Any) -> str | None:
    found: list[str] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", None) not in LOWERED:
            found.append(f"{getattr(expr.op, 'name', 'a call')} has no tensor function")

    relax.analysis.post_order_visit(module["main"].body, visit)
    return found[0] if found else None


def _renamed(graph: Any, weights: Collection[str]) -> tuple[Any, dict[str, Any]]:
    """A copy of the graph with placeholders x0, ... and w0, ..., and their fake tensors by name."""
    copy, copies = fx.Graph(), {}
    names: dict[str, Any] = {}
    for node in graph.find_nodes(op="placeholder"):
        letter = "w" if node.name in weights else "x"
        name = f"{letter}{sum(known.startswith(letter) for known in names)}"
        copies[node] = copy.placeholder(name)
        copies[node].meta = dict(node.meta)
        names[name] = node.meta["val"]
    copy.output(copy.graph_copy(graph, copies))
    return copy, names


def graph_of(*nodes: Any) -> Any:
    """A graph of one operator alone: placeholders for what it reads, itself, and the items of it that are used. Of several,
    in the order of their graph, all of them, and what is used of theirs elsewhere."""
    inside = dict.fromkeys(each for node in nodes for each in (node, *results_of(node)))
    results = results_of(nodes[0])
    if len(nodes) > 1:
        inside = dict.fromkeys(each for each in nodes[0].graph.nodes if each in inside)
        tensors = [each for each in inside if isinstance(each.meta.get("val"), torch.Tensor)]
        results = [each for each in tensors if any(user not in inside for user in each.users)]
    graph, copies = fx.Graph(), {}
    for source in dict.fromkeys(source for node in inside for source in node.all_input_nodes if source not in inside):
        copies[source] = graph.placeholder(source.name)
        copies[source].meta = dict(source.meta)
    for each in inside:
        copies[each] = graph.node_copy(each, copies.__getitem__)
    graph.output(tuple(copies[result] for result in results))
    return graph


def module_of_graph(graph: Any) -> Any:
    """The Relax module of a graph: main takes its placeholders in order and gives a tensor, or a tuple of several.

    Raises InvalidModel or UnsupportedOperator for what cannot be imported.
    """
    (output,) = graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    return import_graph(graph, [node.name for node in graph.find_nodes(op="placeholder")], {}, results)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]

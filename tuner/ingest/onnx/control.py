"""If, Loop and Scan: branches that are decided now, loops written out as often as they run.

A condition that is known only at run time takes both branches and chooses between their results, which is the same since
no operator has effects. A loop must have a known number of rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import numpy_helper

from pitchpipe.errors import InvalidModel, UnsupportedOperator
from tuner.ingest.onnx.scope import Scope
from tuner.ingest.onnx.values import Value, declared_dtype, dtype_of, is_tensor, shape_of
from tuner.tvm_compat import relax

if TYPE_CHECKING:
    from tuner.ingest.onnx.walk import Walker

MAX_ROUNDS = 1024
"""Of a loop that is written out."""


def _title(proto: Any) -> str:
    return f"operator {proto.op_type} (node {proto.name!r})"


def _graph(proto: Any, name: str) -> Any:
    for entry in proto.attribute:
        if entry.name == name and entry.HasField("g"):
            return entry.g
    raise InvalidModel(f"{_title(proto)} has no graph {name!r}")


def _attribute(proto: Any, name: str, default: Any) -> Any:
    for entry in proto.attribute:
        if entry.name == name:
            return list(entry.ints) if entry.ints else entry.i
    return default


def _run(walker: Walker, graph: Any, arguments: Sequence[Value], scope: Scope) -> list[Value]:
    """The outputs of a subgraph."""
    declared = {value.name: value.type for value in graph.output if value.type.HasField("tensor_type")}
    inner = Scope(scope.opsets, scope, declared, scope.references)
    for tensor in graph.initializer:
        inner.values[tensor.name] = numpy_helper.to_array(tensor)
    if len(graph.input) != len(arguments):
        raise InvalidModel(f"a subgraph takes {len(graph.input)} values and is given {len(arguments)}")
    for value, argument in zip(graph.input, arguments, strict=True):
        inner.values[value.name] = argument
    walker.run(graph.node, inner)
    return [inner.find(value.name) for value in graph.output]


def _tensor(value: Value) -> Any:
    return relax.const(value, value.dtype.name) if isinstance(value, np.ndarray) else value


def branch(walker: Walker, proto: Any, inputs: Sequence[Value | None], scope: Scope) -> list[Value]:
    """The results of an If: of the branch that a constant condition names, else a choice between those of both."""
    condition = inputs[0]
    graphs = _graph(proto, "then_branch"), _graph(proto, "else_branch")
    if isinstance(condition, np.ndarray):
        return _run(walker, graphs[0] if bool(condition.reshape(-1)[0]) else graphs[1], [], scope)
    if condition is None or not is_tensor(condition):
        raise InvalidModel(f"{_title(proto)} has no condition")
    chosen = []
    flag = walker.builder.emit(relax.op.reshape(condition, []))
    for one, other in zip(*(_run(walker, graph, [], scope) for graph in graphs), strict=True):
        alike = (
            is_tensor(one) and is_tensor(other) and (shape_of(one), dtype_of(one)) == (shape_of(other), dtype_of(other))
        )
        if not alike:
            raise UnsupportedOperator(
                f"{_title(proto)} has subgraphs, control flow that gives different types, and its condition is not constant"
            )
        chosen.append(walker.builder.emit(relax.op.where(flag, _tensor(one), _tensor(other))))
    return chosen


def loop(walker: Walker, proto: Any, inputs: Sequence[Value | None], scope: Scope) -> list[Value]:
    """Loop: rounds are counted by a known limit or by conditions that stay known."""
    body = _graph(proto, "body")
    given = [*inputs, None, None][:2] if len(inputs) < 2 else list(inputs[:2])
    limit, condition = given
    if limit is not None and not isinstance(limit, np.ndarray):
        raise UnsupportedOperator(
            f"{_title(proto)} has subgraphs, control flow, and its number of rounds is not constant"
        )
    rounds = None if limit is None else int(limit.reshape(-1)[0])
    state = list(inputs[2:])
    count_scanned = len(body.output) - 1 - len(state)
    scanned: list[list[Value]] = [[] for _ in range(count_scanned)]
    done = 0
    while rounds is None or done < rounds:
        if condition is not None:
            if not isinstance(condition, np.ndarray):
                raise UnsupportedOperator(
                    f"{_title(proto)} has subgraphs, control flow, and when it ends is not known before it runs"
                )
            if not bool(condition.reshape(-1)[0]):
                break
        if done >= MAX_ROUNDS:
            raise UnsupportedOperator(f"{_title(proto)} has more than {MAX_ROUNDS} rounds")
        going = np.array(True) if condition is None else condition
        found = _run(walker, body, [np.array(done, np.int64), going, *state], scope)
        # Without a condition operand, what the body answers still ends the loop.
        condition, state = found[0], found[1 : 1 + len(state)]
        for values, value in zip(scanned, found[1 + len(state) :], strict=True):
            values.append(value)
        done += 1
    outputs = list(state)
    for values, declared in zip(scanned, list(body.output)[1 + len(state) :], strict=True):
        outputs.append(_stacked(walker, proto, values, 0, declared))
    return outputs


def _stacked(walker: Walker, proto: Any, values: Sequence[Value], axis: int, declared: Any) -> Value:
    """Values of one shape along a new axis."""
    if not values:
        shape = [dim.dim_value for dim in declared.type.tensor_type.shape.dim]
        dtype = declared_dtype(declared.type)
        if dtype is None:
            raise UnsupportedOperator(f"{_title(proto)} runs no round and its body does not declare its outputs")
        return np.zeros([*shape[:axis], 0, *shape[axis:]], np.dtype(dtype))
    if any(not is_tensor(value) or shape_of(value) != shape_of(values[0]) for value in values):
        raise UnsupportedOperator(f"{_title(proto)} gives values of different shapes")
    if all(isinstance(value, np.ndarray) for value in values):
        return np.stack(values, axis)
    shape = list(shape_of(values[0]))
    axis %= len(shape) + 1
    wide = [*shape[:axis], 1, *shape[axis:]]
    parts = [walker.builder.emit(relax.op.reshape(_tensor(value), wide)) for value in values]
    return walker.builder.emit(relax.op.concat(parts, axis)) if len(parts) > 1 else parts[0]


def scan(walker: Walker, proto: Any, inputs: Sequence[Value | None], scope: Scope) -> list[Value]:
    """Scan: as many rounds as the scanned axis is long."""
    opset = scope.opsets.get("", 1)
    body, count = _graph(proto, "body"), int(_attribute(proto, "num_scan_inputs", 0))
    if opset < 9:
        return _scan_of_batches(walker, proto, inputs, scope, body, count)
    carried = len(inputs) - count
    state, sources = list(inputs[:carried]), list(inputs[carried:])
    produced = len(body.output) - carried
    axes = _attribute(proto, "scan_input_axes", [0] * count)
    backwards = _attribute(proto, "scan_input_directions", [0] * count)
    output_axes = _attribute(proto, "scan_output_axes", [0] * produced)
    output_backwards = _attribute(proto, "scan_output_directions", [0] * produced)
    return _scan(walker, proto, scope, body, state, sources, (axes, backwards, output_axes, output_backwards))


def _scan(
    walker: Walker,
    proto: Any,
    scope: Scope,
    body: Any,
    state: list[Value],
    sources: list[Value],
    directions: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
) -> list[Value]:
    axes, backwards, output_axes, output_backwards = directions
    places = [axis % len(shape_of(source)) for axis, source in zip(axes, sources, strict=True)]
    lengths = {shape_of(source)[axis] for axis, source in zip(places, sources, strict=True)}
    if len(lengths) != 1:
        raise InvalidModel(f"{_title(proto)} scans axes of different lengths")
    rounds = lengths.pop()
    if rounds > MAX_ROUNDS:
        raise UnsupportedOperator(f"{_title(proto)} has more than {MAX_ROUNDS} rounds")
    carried = len(state)
    scanned: list[list[Value]] = [[] for _ in range(len(body.output) - carried)]
    for turn in range(rounds):
        elements = [
            _element(walker, source, axis, rounds - 1 - turn if back else turn)
            for source, axis, back in zip(sources, places, backwards, strict=True)
        ]
        found = _run(walker, body, [*state, *elements], scope)
        state = found[:carried]
        for values, value in zip(scanned, found[carried:], strict=True):
            values.append(value)
    outputs = list(state)
    for values, axis, back, declared in zip(
        scanned, output_axes, output_backwards, list(body.output)[carried:], strict=True
    ):
        outputs.append(_stacked(walker, proto, values[::-1] if back else values, axis, declared))
    return outputs


def _scan_of_batches(
    walker: Walker, proto: Any, inputs: Sequence[Value | None], scope: Scope, body: Any, count: int
) -> list[Value]:
    """Scan of operator set 8: for each element of a batch, along axis 1 of what is scanned."""
    if inputs[0] is not None:
        raise UnsupportedOperator(f"{_title(proto)} is not supported: lengths of its sequences")
    operands = list(inputs[1:])
    carried = len(operands) - count
    produced = len(body.output) - carried
    backwards = _attribute(proto, "directions", [0] * count)
    batches = shape_of(operands[0])[0]
    if batches > MAX_ROUNDS:
        raise UnsupportedOperator(f"{_title(proto)} has more than {MAX_ROUNDS} rounds")
    found = []
    for batch in range(batches):
        values = [_element(walker, operand, 0, batch) for operand in operands]
        directions = ([0] * count, backwards, [0] * produced, [0] * produced)
        found.append(_scan(walker, proto, scope, body, values[:carried], values[carried:], directions))
    declared = list(body.output)
    return [
        _stacked(walker, proto, values, 0, declared[index]) for index, values in enumerate(zip(*found, strict=True))
    ]


def _element(walker: Walker, source: Value, axis: int, index: int) -> Value:
    if isinstance(source, np.ndarray):
        return np.take(source, index, axis)
    shape = shape_of(source)
    part = walker.builder.emit(relax.op.strided_slice(source, [axis], [index], [index + 1]))
    return walker.builder.emit(relax.op.reshape(part, [*shape[:axis], *shape[axis + 1 :]]))


OPERATORS: Mapping[str, Callable[..., list[Value]]] = {"If": branch, "Loop": loop, "Scan": scan}

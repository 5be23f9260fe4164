"""RNN, GRU and LSTM, in every form of the standard: directions, layouts, lengths, initial states, activations, clipping.

Notation: T steps, B sequences, I inputs, H hidden units, D directions, G gates. The inputs of all steps are multiplied by
the weights at once, [T * B, I] x [I, G * H]; the steps, which are written out, multiply the hidden state only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.ingest.onnx.node import Node
from tuner.ingest.onnx.registry import reader
from tuner.ingest.onnx.values import shape_of
from tuner.ingest.recurrent import recurrent_layer
from tuner.schedule.recurrence import DTYPES
from tuner.tvm_compat import relax

MAX_STEPS = 1024
"""Of a sequence that is written out."""

_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_ALPHA = {"LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "Elu": 1.0, "HardSigmoid": 0.2, "Affine": 1.0, "ScaledTanh": 1.0}
_BETA = {"HardSigmoid": 0.5, "Affine": 0.0, "ScaledTanh": 1.0}

Activation = Callable[[Any], Any]


@reader("RNN", "GRU", "LSTM")
def recurrent(node: Node) -> Any:
    """All outputs: every step's hidden state, the last hidden state, and an LSTM's last cell state."""
    return _Layer(node).outputs()


class _Layer:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.kind = node.operator
        self.dtype = node.dtype(0)
        self.batch_first = bool(node.attribute("layout", 0))
        first, second, _ = node.shape(0)
        self.batch, self.steps = (first, second) if self.batch_first else (second, first)
        self.directions, rows, _ = node.shape(1)
        self.gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[self.kind]
        self.hidden = rows // self.gates
        self.clip = node.attribute("clip")
        direction = str(node.attribute("direction", "forward"))
        self.backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(direction)
        if self.backwards is None or len(self.backwards) != self.directions:
            raise ValueError(f"direction {direction} with weights of {self.directions} directions")
        names = node.attribute("activations") or list(_DEFAULTS[self.kind]) * self.directions
        alphas, betas = list(node.attribute("activation_alpha") or []), list(node.attribute("activation_beta") or [])
        self.activations = [self._activation(str(name), alphas, betas) for name in names]

    def outputs(self) -> list[Any]:
        node, op = self.node, relax.op
        x = node.tensor(0)
        if self.batch_first:
            x = node.emit(op.permute_dims(x, [1, 0, 2]))
        self.lengths = self._lengths()
        found = [self._direction(x, index) for index in range(self.directions)]
        each = [node.reshape(states, [self.steps, 1, self.batch, self.hidden]) for states, *_ in found]
        y = self._joined(each, 1)
        if self.batch_first:
            y = node.emit(op.permute_dims(y, [2, 0, 1, 3]))
        last = []
        for which in range(1, 3 if self.kind == "LSTM" else 2):
            state = self._joined([node.reshape(parts[which], [1, self.batch, self.hidden]) for parts in found], 0)
            last.append(node.emit(op.permute_dims(state, [1, 0, 2])) if self.batch_first else state)
        return [y, *last]

    def _joined(self, parts: Sequence[Any], axis: int) -> Any:
        return parts[0] if len(parts) == 1 else self.node.emit(relax.op.concat(list(parts), axis))

    def _direction(self, x: Any, index: int) -> tuple[Any, ...]:
        """Hidden states of all steps [T, B, H] in the order of the steps, and the last states [B, H]."""
        node, op, steps, batch = self.node, relax.op, self.steps, self.batch
        weights, recurrence = (self._of(position, index) for position in (1, 2))
        rows = self.gates * self.hidden
        cell = self._plain_cell(index)
        if cell is not None:
            return self._as_one_layer(cell, x, index, weights, recurrence)
        if steps > MAX_STEPS:
            node.refuse(f"this form for sequences of more than {MAX_STEPS} steps")
        inputs = shape_of(x)[-1]
        flat = node.reshape(x, [steps * batch, inputs])
        projected = node.emit(op.matmul(flat, node.emit(op.permute_dims(weights, [1, 0]))))
        bias = self._of(3, index) if node.given(3) else None
        split_bias = None if bias is None else [self._part(bias, 0, begin, begin + rows) for begin in (0, rows)]
        # An GRU's gate may need the recurrent bias inside the reset, so there it is added with the recurrence.
        if split_bias is not None:
            projected = node.emit(op.add(projected, split_bias[0]))
            if self.kind != "GRU":
                projected = node.emit(op.add(projected, split_bias[1]))
        transposed = node.emit(op.permute_dims(recurrence, [1, 0]))
        peepholes = self._of(7, index) if self.kind == "LSTM" and node.given(7) else None
        state = [self._initial(position, index) for position in ((5, 6) if self.kind == "LSTM" else (5,))]
        states: list[Any] = [None] * steps
        assert self.backwards is not None
        order = range(steps - 1, -1, -1) if self.backwards[index] else range(steps)
        for step in order:
            now = self._part(projected, 0, step * batch, (step + 1) * batch)
            following = self._step(index, now, state, transposed, split_bias, peepholes)
            if self.lengths is not None:
                # Past the end of a sequence its state stays, and what is put out is zero.
                inside = node.emit(op.greater(self.lengths, relax.const(step, "int32")))
                following = [node.emit(op.where(inside, new, old)) for new, old in zip(following, state, strict=True)]
                states[step] = node.emit(op.where(inside, following[0], relax.const(0, self.dtype)))
            else:
                states[step] = following[0]
            state = following
        return self._joined(states, 0), *state

    def _plain_cell(self, index: int) -> str | None:
        """Which cell of tuner/schedule/recurrence.py a direction is; None for one that it has no kernel for."""
        node, count = self.node, len(_DEFAULTS[self.kind])
        if self.dtype not in DTYPES or self.lengths is not None or self.clip is not None or node.given(7):
            return None
        if node.attribute("input_forget", 0) or (self.kind == "GRU" and not node.attribute("linear_before_reset", 0)):
            return None
        names = node.attribute("activations") or list(_DEFAULTS[self.kind]) * self.directions
        own = tuple(str(name).lower() for name in names[index * count : (index + 1) * count])
        cells = {
            ("RNN", ("tanh",)): "tanh",
            ("RNN", ("relu",)): "relu",
            ("GRU", ("sigmoid", "tanh")): "gru",
            ("LSTM", ("sigmoid", "tanh", "tanh")): "lstm",
        }
        return cells.get((self.kind, own))

    def _as_one_layer(self, cell: str, x: Any, index: int, weights: Any, recurrence: Any) -> tuple[Any, ...]:
        """The layer as one kernel, whose gates are in another order: r, z, h of a GRU and i, f, c, o of an LSTM."""
        node, rows = self.node, self.gates * self.hidden
        order = {"gru": [1, 0, 2], "lstm": [0, 2, 3, 1]}.get(cell)

        def ordered(value: Any) -> Any:
            if order is None:
                return value
            parts = [self._part(value, 0, gate * self.hidden, (gate + 1) * self.hidden) for gate in order]
            return node.emit(relax.op.concat(parts, 0))

        biases = [None, None]
        if node.given(3):
            both = self._of(3, index)
            biases = [ordered(self._part(both, 0, begin, begin + rows)) for begin in (0, rows)]
        h = self._initial(5, index)
        c = self._initial(6, index) if cell == "lstm" else None
        assert self.backwards is not None
        found = recurrent_layer(
            node.builder,
            cell,
            x,
            ordered(weights),
            ordered(recurrence),
            biases[0],
            biases[1],
            h,
            c,
            backward=self.backwards[index],
        )
        return (found.y, found.h) if found.c is None else (found.y, found.h, found.c)

    def _step(
        self, index: int, x: Any, state: Sequence[Any], recurrence: Any, bias: list[Any] | None, peepholes: Any
    ) -> list[Any]:
        if self.kind == "GRU":
            return self._gru(index, x, state[0], recurrence, bias)
        node, op, hidden = self.node, relax.op, self.hidden
        gates = node.emit(op.add(x, node.emit(op.matmul(state[0], recurrence))))
        if self.kind == "RNN":
            return [self._act(index, 0, gates)]
        i, o, f, c = (self._part(gates, 1, gate * hidden, (gate + 1) * hidden) for gate in range(4))
        p = (
            [None] * 3
            if peepholes is None
            else [self._part(peepholes, 0, g * hidden, (g + 1) * hidden) for g in range(3)]
        )
        cell = state[1]
        i = self._act(index, 0, self._peep(i, p[0], cell))
        if self.node.attribute("input_forget", 0):
            f = node.emit(op.subtract(relax.const(1, self.dtype), i))
        else:
            f = self._act(index, 0, self._peep(f, p[2], cell))
        candidate = self._act(index, 1, c)
        cell = node.emit(op.add(node.emit(op.multiply(f, cell)), node.emit(op.multiply(i, candidate))))
        o = self._act(index, 0, self._peep(o, p[1], cell))
        return [node.emit(op.multiply(o, self._act(index, 2, cell, clipped=False))), cell]

    def _gru(self, index: int, x: Any, h: Any, recurrence: Any, bias: list[Any] | None) -> list[Any]:
        node, op, hidden = self.node, relax.op, self.hidden
        xz, xr, xh = (self._part(x, 1, gate * hidden, (gate + 1) * hidden) for gate in range(3))
        wz, wr, wh = (self._part(recurrence, 1, gate * hidden, (gate + 1) * hidden) for gate in range(3))
        biases = (
            [None] * 3 if bias is None else [self._part(bias[1], 0, g * hidden, (g + 1) * hidden) for g in range(3)]
        )

        def recurred(state: Any, weights: Any, b: Any) -> Any:
            found = node.emit(op.matmul(state, weights))
            return found if b is None else node.emit(op.add(found, b))

        z = self._act(index, 0, node.emit(op.add(xz, recurred(h, wz, biases[0]))))
        r = self._act(index, 0, node.emit(op.add(xr, recurred(h, wr, biases[1]))))
        if self.node.attribute("linear_before_reset", 0):
            after = node.emit(op.multiply(r, recurred(h, wh, biases[2])))
        else:
            after = recurred(node.emit(op.multiply(r, h)), wh, biases[2])
        candidate = self._act(index, 1, node.emit(op.add(xh, after)))
        rest = node.emit(op.subtract(relax.const(1, self.dtype), z))
        return [node.emit(op.add(node.emit(op.multiply(rest, candidate)), node.emit(op.multiply(z, h))))]

    def _peep(self, gate: Any, weights: Any, cell: Any) -> Any:
        if weights is None:
            return gate
        return self.node.emit(relax.op.add(gate, self.node.emit(relax.op.multiply(weights, cell))))

    def _act(self, index: int, which: int, x: Any, *, clipped: bool = True) -> Any:
        node, op = self.node, relax.op
        if self.clip is not None and clipped:
            bound = float(self.clip)
            x = node.emit(op.maximum(x, relax.const(-bound, self.dtype)))
            x = node.emit(op.minimum(x, relax.const(bound, self.dtype)))
        return node.emit(self.activations[index * len(_DEFAULTS[self.kind]) + which](x))

    def _activation(self, name: str, alphas: list[float], betas: list[float]) -> Activation:
        """An activation; parameters are taken, in turn, by those that have one."""
        op, dtype = relax.op, self.dtype
        name = next((known for known in (*_PLAIN, *_ALPHA) if known.lower() == name.lower()), name)
        if name in _PLAIN:
            return _PLAIN[name]
        if name not in _ALPHA:
            self.node.refuse(f"the activation {name}")
        alpha = relax.const(alphas.pop(0) if alphas else _ALPHA[name], dtype)
        beta = relax.const(betas.pop(0) if betas else _BETA[name], dtype) if name in _BETA else None
        zero, one = relax.const(0, dtype), relax.const(1, dtype)
        forms: dict[str, Activation] = {
            "Affine": lambda x: op.add(op.multiply(alpha, x), beta),
            "LeakyRelu": lambda x: op.where(op.less(x, zero), op.multiply(alpha, x), x),
            "ThresholdedRelu": lambda x: op.where(op.greater(x, alpha), x, zero),
            "ScaledTanh": lambda x: op.multiply(alpha, op.tanh(op.multiply(beta, x))),
            "HardSigmoid": lambda x: op.minimum(op.maximum(op.add(op.multiply(alpha, x), beta), zero), one),
            "Elu": lambda x: op.where(op.less(x, zero), op.multiply(alpha, op.subtract(op.exp(x), one)), x),
        }
        return forms[name]

    def _lengths(self) -> Any:
        """[B, 1] of int32, or None where every sequence has all steps."""
        if not self.node.given(4):
            return None
        known = self.node.known(4)
        if known is not None and bool(np.all(known == self.steps)):
            return None
        return self.node.reshape(self.node.cast(self.node.tensor(4), "int32"), [self.batch, 1])

    def _initial(self, position: int, index: int) -> Any:
        if not self.node.given(position):
            return relax.const(np.zeros((self.batch, self.hidden)), self.dtype)
        value = self.node.tensor(position)
        if self.batch_first:
            value = self.node.emit(relax.op.permute_dims(value, [1, 0, 2]))
        return self.node.reshape(self._part(value, 0, index, index + 1), [self.batch, self.hidden])

    def _of(self, position: int, index: int) -> Any:
        """One direction's part of a weight."""
        shape = self.node.shape(position)
        return self.node.reshape(self._part(self.node.tensor(position), 0, index, index + 1), shape[1:])

    def _part(self, value: Any, axis: int, begin: int, end: int) -> Any:
        if (begin, end) == (0, shape_of(value)[axis]):
            return value
        return self.node.emit(relax.op.strided_slice(value, [axis], [begin], [end]))


_PLAIN: dict[str, Activation] = {
    "Tanh": relax.op.tanh,
    "Sigmoid": relax.op.sigmoid,
    "Relu": relax.op.nn.relu,
    "Softsign": lambda x: relax.op.divide(x, relax.op.add(relax.op.abs(x), relax.const(1, str(x.ty.dtype)))),
    "Softplus": lambda x: relax.op.log(relax.op.add(relax.op.exp(x), relax.const(1, str(x.ty.dtype)))),
}

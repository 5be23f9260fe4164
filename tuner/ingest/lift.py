"""Weights that a frontend bound as constants become parameters; what strip.py would keep in an ONNX file stays.

Runs in the child (child.py), for formats whose files hold weights and graph in one: TFLite and StableHLO. The graph that
comes out is the same for every weight, so it can be sent without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pitchpipe.errors import InvalidModel
from pitchpipe.model.strip import KEPT_INTEGERS
from tuner.ingest import IngestLimits, TensorSpec, container
from tuner.ingest.finalize import check_static
from tuner.ingest.relax_reader import judge_model
from tuner.tvm_compat import PyExprMutator, mutator, relax, with_function

NameOf = Callable[[Any], str | None]
"""A constant -> what the file calls it; None where it does not say."""


def without_weights(module: Any, names: Sequence[str], name_of: NameOf, limits: IngestLimits) -> tuple[bytes, bytes]:
    """The `relax` format of `module`, and the bytes of its weights, one after the other in the order of its parameters.

    `names` are those of main's arguments. Everything in the module is judged as an uploaded one is. Raises InvalidModel,
    UnsupportedOperator, UnsupportedShape or TooLarge.
    """
    main = module["main"]
    if len(names) != len(main.params):
        raise InvalidModel(f"main takes {len(main.params)} tensors, the model names {len(names)}")
    inputs = tuple(_spec(name, variable, limits) for name, variable in zip(names, main.params, strict=True))
    lifting = _Lifting(name_of, set(names))
    body = lifting.visit_expr(main.body)
    variables = [variable for variable, _ in lifting.lifted.values()]
    function = relax.Function([*main.params, *variables], body, main.ret_ty, main.is_pure)
    function = function.with_attr("global_symbol", "main")
    params = tuple(_spec(variable.name, variable, limits) for variable in variables)
    model = judge_model(with_function(module, "main", function), inputs, params, limits)
    return container(model), b"".join(values.tobytes() for _, values in lifting.lifted.values())


def _spec(name: str, variable: Any, limits: IngestLimits) -> TensorSpec:
    extents = getattr(getattr(variable.ty, "shape", None), "values", None)
    static = extents is not None and all(hasattr(extent, "value") for extent in extents)
    shape = [int(extent) for extent in extents] if static and extents is not None else None
    check_static(name, shape, limits)
    return TensorSpec(name=name, shape=tuple(shape or ()), dtype=str(variable.ty.dtype))


@mutator
class _Lifting(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Puts a variable in the place of each constant that is a weight; the same constant is one variable."""

    def __init__(self, name_of: NameOf, taken: set[str]) -> None:
        super().__init__()
        self.name_of = name_of
        self.taken = taken
        self.lifted: dict[int, tuple[Any, np.ndarray]] = {}

    def visit_generic_const_(self, constant: Any) -> Any:
        handle = constant.__chandle__()
        if handle not in self.lifted:
            values = constant.value.numpy()
            if not _is_weight(values):
                return constant
            variable = relax.Var(self._name(constant), constant.ty)
            self.lifted[handle] = variable, values
        return self.lifted[handle][0]

    def _name(self, constant: Any) -> str:
        given = self.name_of(constant) or "weight"
        name, count = given, 1
        while name in self.taken:
            count += 1
            name = f"{given}#{count}"
        self.taken.add(name)
        return name


def _is_weight(values: np.ndarray) -> bool:
    return bool(values.size > (KEPT_INTEGERS if values.dtype.kind in "biu" else 1))

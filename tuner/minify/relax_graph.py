"""An imported module as a source, where its framework is not here or says nothing of the values between: its bindings.

Values are those of the module run naively, each operator a loop of its own, so what is found to differ from them was
done by a rewrite, or by what makes code; an import that is wrong is wrong here as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pitchpipe.arrays import load_arrays, save_arrays
from pitchpipe.errors import InvalidModel
from pitchpipe.wire.finding import WALL_SECS
from tuner.ingest import IngestedModel, TensorSpec, container
from tuner.measure.check import numpy_dtype
from tuner.minify import Node, Part, Source
from tuner.minify.attempts import Say, in_fork, run_naively
from tuner.tvm_compat import IRModule, ir, load_ir, relax, save_ir, tvm_ffi


class RelaxSource(Source):
    """An ingested model, run once on `inputs` with `weights`."""

    framework = "the import, operator by operator"

    def __init__(
        self,
        model: IngestedModel,
        inputs: Sequence[np.ndarray],
        weights: Mapping[str, np.ndarray],
        *,
        wall_secs: float = WALL_SECS,
    ) -> None:
        self._model = model
        self._inputs = tuple(np.asarray(array) for array in inputs)
        self._weights = dict(weights)
        self._module = relax.transform.CanonicalizeBindings()(load_ir(model.ir))
        main = self._module["main"]
        specs = (*model.inputs, *model.params)
        self._variables = dict(zip((f"%{spec.name}" for spec in specs), main.params, strict=True))
        self._names = {hash(variable): name for name, variable in self._variables.items()}
        self._units: dict[str, list[tuple[str, Any]]] = {}
        self.nodes = self._read(main)
        self.outputs = self._given(main)
        recorded = self._recorded(specs, wall_secs)
        self._runs = recorded is not None
        self.values = recorded if recorded is not None else self._made_up(specs)
        constant = {f"%{spec.name}" for spec in model.params}
        for node in self.nodes:
            if all(name in constant for name in node.reads):
                constant.update(node.gives)
        self.constant = frozenset(constant)

    def model(self) -> Part:
        """The whole model, as it came."""
        return Part(
            nodes=tuple(self.nodes),
            convert=lambda: (container(self._model), self._weights),
            inputs=self._inputs,
            expected=tuple(self.values[name] for name in self.outputs) if self._runs else None,
            operands=((),) * len(self.outputs),
            weights={},
        )

    def part(self, nodes: Sequence[Node], takes: Sequence[str], constants: Sequence[str], gives: Sequence[str]) -> Part:
        """The part of `nodes`, in order, that takes and gives these values and has `constants` as parameters."""
        bindings = [each for node in nodes for each in self._units[node.name]]
        module = self._extracted(bindings, [*takes, *constants], gives)
        specs = [
            TensorSpec(name=variable.name, shape=self.values[name].shape, dtype=str(variable.ty.dtype))
            for variable, name in zip(module["main"].params, (*takes, *constants), strict=True)
        ]
        function = module["main"].with_attr("num_input", len(takes)).with_attr("global_symbol", "main")
        module.update_func(module.get_global_var("main"), function)
        inputs, params = tuple(specs[: len(takes)]), tuple(specs[len(takes) :])
        model = IngestedModel(ir=save_ir(module), inputs=inputs, params=params)
        bound = {spec.name: self.values[name] for spec, name in zip(params, constants, strict=True)}
        return Part(
            nodes=tuple(nodes),
            convert=lambda: (container(model), bound),
            inputs=tuple(self.values[name] for name in takes),
            expected=tuple(self.values[name] for name in gives) if self._runs else None,
            operands=tuple(self.operands_of(name) for name in gives),
            weights=bound,
        )

    def _read(self, main: Any) -> list[Node]:
        """The nodes of main; a binding that picks from a tuple belongs to the one that made the tuple."""
        made_by: dict[str, str] = {}
        nodes: dict[str, Node] = {}
        for index, binding in enumerate(each for block in main.body.blocks for each in block.bindings):
            name = f"#{index}"
            self._variables[name] = binding.var
            self._names[hash(binding.var)] = name
            value = binding.value
            reads = tuple(dict.fromkeys(self._read_by(value)))
            if isinstance(value, ir.TupleGetItem) and reads and reads[0] in made_by:
                owner = made_by[reads[0]]
                self._units[owner].append((name, value))
                nodes[owner] = Node(**{**vars(nodes[owner]), "gives": (*nodes[owner].gives, name)})
                made_by[name] = owner
                continue
            operator = self._operator(value)
            self._units[name] = [(name, value)]
            made_by[name] = name
            nodes[name] = Node(name=name, label=binding.var.name, operator=operator, reads=reads, gives=(name,))
        return list(nodes.values())

    def _read_by(self, value: Any) -> list[str]:
        found: list[str] = []

        def visit(expr: Any) -> None:
            if isinstance(expr, relax.Var) and hash(expr) in self._names:
                found.append(self._names[hash(expr)])

        relax.analysis.post_order_visit(value, visit)
        return found

    @staticmethod
    def _operator(value: Any) -> str:
        name = str(getattr(getattr(value, "op", None), "name", type(value).__name__))
        return f"{name} of {value.args[0].name_hint}" if name == "relax.call_tir" else name

    def _given(self, main: Any) -> list[str]:
        """Names of what main gives, in order."""
        body = main.body.body
        value = next(
            (each for unit in self._units.values() for name, each in unit if self._names.get(hash(body)) == name), body
        )
        fields = list(value.fields) if isinstance(value, ir.Tuple) else [body]
        found = [self._names.get(hash(field)) for field in fields]
        if any(name is None for name in found):
            raise InvalidModel("what main gives is no tensor that it computed")
        return [name for name in found if name is not None]

    def _extracted(self, bindings: Sequence[tuple[str, Any]], takes: Sequence[str], gives: Sequence[str]) -> Any:
        """A module of the bindings, whose main takes and gives tensors of these names."""
        variables = [self._variables[name] for name in takes]
        params = [relax.Var(f"x{index}", variable.ty) for index, variable in enumerate(variables)]
        replaced = {hash(variable): param for variable, param in zip(variables, params, strict=True)}
        others = {v: f for v, f in self._module.functions.items() if v.name_hint != "main"}
        builder = relax.BlockBuilder(IRModule(others))

        def replace(variable: Any) -> Any:
            return replaced.get(hash(variable), variable)

        with builder.function("main", params):
            with builder.dataflow():
                for name, value in bindings:
                    copy = tvm_ffi.structural_map(value, (relax.Var, replace))
                    replaced[hash(self._variables[name])] = builder.emit(copy)
                results = [replaced[hash(self._variables[name])] for name in gives]
                result = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
            builder.emit_func_output(result)
        return relax.transform.DeadCodeElimination(["main"])(builder.get())

    def _arrays(self, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
        """What main takes, by name."""
        weights = [np.asarray(self._weights[spec.name]) for spec in self._model.params]
        return {f"%{spec.name}": array for spec, array in zip(specs, [*self._inputs, *weights], strict=True)}

    def _tensors(self) -> list[str]:
        given = [name for node in self.nodes for name in node.gives]
        return [name for name in given if isinstance(self._variables[name].ty, relax.TensorType)]

    def _recorded(self, specs: Sequence[TensorSpec], wall_secs: float) -> dict[str, np.ndarray] | None:
        """Every tensor of one naive run, in a child, by name; None where it does not come to its end."""
        names, taken = self._tensors(), self._arrays(specs)
        module = self._extracted([each for unit in self._units.values() for each in unit], list(taken), names)
        with TemporaryDirectory(prefix="pitchpipe-minify-") as folder:
            path = Path(folder) / "values.npz"

            def work(say: Say) -> bool:
                say("run")
                found = run_naively(module, list(taken.values()), ())
                save_arrays(path, dict(zip(names, found, strict=True)))
                return True

            ended = in_fork(work, wall_secs=wall_secs)
            return taken | load_arrays(path) if ended.result else None

    def _made_up(self, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
        """Ones in the place of every tensor, which do to find what crashes."""
        found = self._arrays(specs)
        for name in self._tensors():
            ty = self._variables[name].ty
            found[name] = np.ones([int(extent) for extent in ty.shape.values], numpy_dtype(str(ty.dtype)))
        return found

"""Small graphs for tests of graph passes: built in Relax, prepared, and compared with themselves unprepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tests.compiler.programs import TARGET, UNOPTIMISED
from tuner.deploy.finish import finish
from tuner.graph.prepare import MAIN, TRANSFORM, call_counts, prepare
from tuner.tvm_compat import relax, tvm

RNG = np.random.default_rng(0)
GPU = Target.parse(
    {
        "kind": "cuda",
        "arch": "sm_90a",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 232448,
        "registers_per_block": 65536,
        "thread_warp_size": 32,
    }
)


class Graph:
    """A graph being built: inputs first, then weights, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.values: list[np.ndarray] = []

    def tensor(self, *shape: int, dtype: str = "float32") -> Any:
        self.variables.append(relax.Var(f"a{len(self.variables)}", relax.TensorType(shape, dtype)))
        self.values.append(RNG.normal(0, 0.5, shape).astype(np.dtype(dtype)))
        return self.variables[-1]

    def module(self, make: Callable[[Any], Any], inputs: int) -> Any:
        """main of what `make` emits; it asks for its tensors first."""
        builder = relax.BlockBuilder()
        with builder.function(MAIN, self.variables, attrs={"num_input": inputs}):
            with builder.dataflow():
                made = make(builder.emit)
                outputs = [builder.emit_output(value) for value in (made if isinstance(made, list) else [made])]
            builder.emit_func_output(outputs if len(outputs) > 1 else outputs[0])
        return builder.get()


def check(graph: Graph, make: Callable[[Any], Any], inputs: int = 1, *, target: Target = TARGET) -> Any:
    """The module prepared for the target, after it computed, on this processor, what the module itself computes."""
    module = graph.module(make, inputs)
    prepared = prepare(module, target)
    plain = machine_of(relax.transform.LegalizeOps()(module))
    expected = outputs(plain, [tvm.runtime.tensor(value) for value in graph.values])
    found = run_here(prepared, graph.values[:inputs], graph.values[inputs:])
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    return prepared


def run_here(prepared: Any, inputs: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a prepared module computes on this processor, whatever target it was prepared for: nothing is scheduled yet."""
    machine = machine_of(finish(prepared, TARGET))
    bound = machine[TRANSFORM]([tvm.runtime.tensor(np.ascontiguousarray(value)) for value in weights])
    return outputs(machine, [*(tvm.runtime.tensor(value) for value in inputs), *bound])


def machine_of(module: Any) -> Any:
    """A virtual machine of this processor that runs a module."""
    with UNOPTIMISED:
        executable = tvm.compile(kind_of(TARGET).before_codegen(module), target=UNOPTIMISED)
    return relax.VirtualMachine(executable, tvm.cpu())


def outputs(machine: Any, arguments: Sequence[Any]) -> list[np.ndarray]:
    found = machine[MAIN](*arguments)
    return [found.numpy()] if hasattr(found, "numpy") else [value.numpy() for value in found]


def kernels(prepared: Any) -> list[str]:
    """Operators of what main calls, sorted, as often as it calls them."""
    names = [
        "_".join(part.rstrip("0123456789") for part in name.removeprefix("fused_").split("_"))
        for name, count in call_counts(prepared).items()
        for _ in range(count)
    ]
    return sorted(names)


def linear(emit: Any, x: Any, weight: Any, bias: Any) -> Any:
    """As torch exports it: the weight as [out, in]."""
    return emit(relax.op.add(emit(relax.op.matmul(x, emit(relax.op.permute_dims(weight, [1, 0])))), bias))

"""Chains of activations: their code grows with their length, and computes what PyTorch computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pitchpipe.target_kind import kind_of
from tests.compiler.gpu_programs import TARGET as GPU
from tests.compiler.graphs import outputs
from tests.compiler.programs import TARGET, unchecked
from tuner.deploy.build import compile_scheduled, schedule_model
from tuner.graph.prepare import prepare, workload_module
from tuner.ingest import parse_container
from tuner.lowering.long_values import LONGEST
from tuner.measure.build import compile_module, generate
from tuner.measure.gpu_code import lower
from tuner.tasks import workload_functions
from tuner.tvm_compat import IRModule, Schedule, ir, load_ir, relax, te, tirx, to_tvm_target, tvm, tvm_ffi

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tuner.ingest.torch_export import from_torch  # noqa: E402  # needs torch

LENGTH = 12
CHAINS: dict[str, Callable[[Any], Any]] = {
    "tanh": lambda x: 1.5 * torch.tanh(x),
    "sigmoid": lambda x: 3.0 * torch.sigmoid(x) - 1.5,
    "mish": F.mish,
    "mish with a residual": lambda x: 0.5 * (x + F.mish(x)),
    "gelu": lambda x: F.gelu(x) + 0.3 * x,
    "softplus": lambda x: F.softplus(x) - 0.5,
    "elu": F.elu,
    "leaky": lambda x: F.leaky_relu(x, 0.7),
    "log": lambda x: torch.log1p(x.abs()) - 0.2,
    "square": lambda x: 1.1 * torch.tanh(x) ** 2 - 0.3,
    "iterated": lambda x: x + torch.sin(x),
    "maximum": lambda x: torch.maximum(x.flip(0), 0.9 * torch.maximum(-x, x - 1)),
    "clamp": lambda x: torch.clamp(1.1 * x + 0.1, -1, 1),
    "gates": lambda x: torch.sigmoid(x) * torch.tanh(x) + x * torch.sigmoid(x - 1),
    "choice": lambda x: torch.where(x > 0, 0.9 * x, torch.tanh(x) - 0.1),
    "mixed": lambda x: F.logsigmoid(F.silu(F.gelu(1 - x))),
}


class Chain(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    def __init__(self, step: Callable[[Any], Any], length: int) -> None:
        super().__init__()
        self.step, self.length = step, length

    def forward(self, x: Any) -> Any:
        for _ in range(self.length):
            x = self.step(x)
        return x


def graph(name: str, x: Any) -> Any:
    """A chain, prepared for this processor."""
    data, _ = from_torch(Chain(CHAINS[name], LENGTH).eval(), (x,))
    return prepare(load_ir(parse_container(data).ir), TARGET)


@pytest.mark.long
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_twelve_computes_what_pytorch_computes(name: str) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 32)).astype(np.float32))
    chain = Chain(CHAINS[name], LENGTH).eval()
    scheduled = schedule_model(parse_container(from_torch(chain, (x,))[0]), TARGET, {}, defaults=unchecked)
    (found,) = outputs(relax.VirtualMachine(compile_scheduled(scheduled), tvm.cpu()), [tvm.runtime.tensor(x.numpy())])
    np.testing.assert_allclose(found, chain(x.double()).numpy(), rtol=1e-4, atol=1e-4)


NESTED: dict[str, Callable[[Any, Any], Any]] = {
    "tanh": lambda y, _: 1.5 * te.tanh(y),
    "sigmoid": lambda y, _: te.exp(te.sigmoid(y)),
    "log": lambda y, _: 2.0 + te.log(y),
    "maximum": lambda y, a: te.max(a, 0.5 * y),
}


def nested(step: Callable[[Any, Any], Any], length: int) -> Any:
    """One stage, whose expression is the chain; in vectors. Where an element has none above it, it is that of a constant."""
    x = te.placeholder((4, 64), "float32", name="x")

    def element(i: Any, j: Any) -> Any:
        def repeated(value: Any) -> Any:
            for _ in range(length):
                value = step(value, x[i, j])
            return value

        return repeated(tirx.if_then_else(i > 0, repeated(x[i - 1, j]), tirx.const(0.25, "float32")))

    schedule = Schedule(IRModule({"main": te.create_prim_func([x, te.compute((4, 64), element, name="y")])}))
    schedule.vectorize(schedule.split(schedule.get_loops("y")[1], [None, 16])[1])
    return schedule.mod


def longest(body: Any) -> int:
    """Variables in the longest value that is bound, those in the values of these put in."""
    lengths: dict[Any, int] = {}
    length = 0

    def note(variable: Any, value: Any, visitor: Any) -> None:
        nonlocal length
        before, length = length, 1
        visitor.visit(value)
        lengths[variable], length = length, before

    def let(found: Any, visitor: Any) -> None:
        note(found.var, found.value, visitor)
        visitor.visit(found.body)

    def used(variable: Any, _visitor: Any) -> None:
        nonlocal length
        length += lengths.get(variable, 0)

    bind = (tirx.Bind, lambda found, visitor: note(found.var, found.value, visitor))
    tvm_ffi.structural_visit(body, [(tirx.Let, let), bind, (ir.Var, used)])
    return max(lengths.values())


@pytest.mark.parametrize("name", NESTED)
def test_no_value_that_is_bound_grows_with_the_chain(name: str) -> None:
    short, long = (generate(nested(NESTED[name], length), to_tvm_target(TARGET)) for length in (3, LENGTH))
    assert longest(long[0]["main"].body) <= 2 * LONGEST
    sizes = [len(str(library.inspect_source("ll"))) for _, library in (short, long)]
    assert sizes[1] < sizes[0] * LENGTH / 3


def test_what_is_bound_within_a_branch_is_computed_there_and_in_vectors() -> None:
    """Row 0 has no row above it: what is before the tensor's beginning is not read, and no call or buffer is left."""
    mod = nested(NESTED["tanh"], 4)
    code = str(generate(mod, to_tvm_target(TARGET))[1].inspect_source("ll"))
    assert re.search(r"fdiv <16 x float>", code)
    assert not re.search(r"= fdiv float|TVMBackendAllocWorkspace|alloca <16 x float>", code)
    x = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    y = tvm.runtime.empty((4, 64), "float32")
    compile_module(mod, to_tvm_target(TARGET))["main"](tvm.runtime.tensor(x), y)
    expected = np.vstack([np.full((1, 64), 0.25), _tanh_four_times(x[:3].astype(np.float64))])
    np.testing.assert_allclose(y.numpy(), _tanh_four_times(expected), rtol=1e-5)


def _tanh_four_times(value: Any) -> Any:
    for _ in range(4):
        value = 1.5 * np.tanh(value)
    return value


def test_a_stage_that_is_read_often_is_stored_before_its_copies_are_many() -> None:
    x = torch.ones(4, 32)
    for name in ("leaky", "square", "elu"):
        (function,) = [found for _, found, _ in workload_functions(graph(name, x))]
        scheduled = str(kind_of(TARGET).default_schedule(workload_module(function), TARGET).script())
        assert len(scheduled) < 4 * len(str(function.script()))


def test_a_gpu_computes_a_long_chain_in_kernels_that_do_not_grow() -> None:
    data, _ = from_torch(Chain(F.mish, 4).eval(), (torch.ones(4, 32),))
    (function,) = [found for _, found, _ in workload_functions(prepare(load_ir(parse_container(data).ir), GPU))]
    scheduled = kind_of(GPU).default_schedule(workload_module(function), GPU)
    assert len(str(scheduled.script())) < 16 * len(str(function.script()))
    assert 1 < len(lower(scheduled, to_tvm_target(GPU)).calls) <= 4

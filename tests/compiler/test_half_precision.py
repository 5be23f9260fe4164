"""Half precision is stored as such and computed in float32, as PyTorch does, however a model came here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from structlog.testing import capture_logs

from pitchpipe.wire.target import Target
from tests.compiler.graphs import GPU
from tests.compiler.programs import TARGET, unchecked
from tuner.deploy.build import schedule_model
from tuner.deploy.evaluate import _Runner
from tuner.graph.prepare import call_counts, prepare
from tuner.ingest import IngestedModel, TensorSpec, parse_container
from tuner.tasks import workload_functions
from tuner.tvm_compat import PrimFunc, load_ir, relax, save_ir, structural_walk

op = relax.op
TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
COUNT = 4096
"""Ones whose sum in half precision ends at 2048 (float16) or 256 (bfloat16)."""


def module_of(make: Callable[..., Any], *tensors: np.ndarray) -> Any:
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"a{at}", relax.TensorType(x.shape, x.dtype.name)) for at, x in enumerate(tensors)]
    with builder.function("main", variables, attrs={"num_input": len(tensors)}):
        with builder.dataflow():
            result = builder.emit_output(make(builder, *variables))
        builder.emit_func_output(result)
    return builder.get()


def computed(make: Callable[..., Any], *tensors: np.ndarray, tuned: bool) -> np.ndarray:
    inputs = tuple(TensorSpec(name=f"a{at}", shape=x.shape, dtype=x.dtype.name) for at, x in enumerate(tensors))
    model = IngestedModel(ir=save_ir(module_of(make, *tensors)), inputs=inputs, params=())
    (found,) = _Runner(schedule_model(model, TARGET, {}, defaults=unchecked if tuned else None), model, []).outputs(
        tensors
    )
    return np.asarray(found)


def half_sums(prepared: Any) -> list[str]:
    """Names of tensor functions in which a reduction block writes half precision."""
    found: list[str] = []
    for variable, function in prepared.functions.items():
        if not isinstance(function, PrimFunc):
            continue

        def visit(node: Any, name: str = variable.name_hint) -> None:
            if type(node).__name__ == "SBlock" and any(each.iter_type == each.CommReduce for each in node.iter_vars):
                found.extend(name for region in node.writes if str(region.source.ty.dtype) in TYPES)

        structural_walk(function.body, [(object, visit)])
    return found


def ones(*shape: int, dtype: str) -> np.ndarray:
    return np.ones(shape, TYPES[dtype])


SUMS: dict[str, tuple[Callable[..., Any], list[list[int]]]] = {
    "product": (lambda _, x, y: op.matmul(x, y), [[4, COUNT], [COUNT, 16]]),
    "product with a transposed operand": (
        lambda b, x, y: op.matmul(x, b.emit(op.permute_dims(y, [0, 2, 1]))),
        [[2, 4, COUNT], [2, 16, COUNT]],
    ),
    "convolution": (lambda _, x, y: op.nn.conv2d(x, y), [[1, COUNT // 4, 4, 4], [16, COUNT // 4, 2, 2]]),
    "transposed convolution": (
        lambda _, x, y: op.nn.conv2d_transpose(x, y, strides=(2, 2)),
        [[1, COUNT, 3, 3], [COUNT, 4, 2, 2]],
    ),
    "sum": (lambda _, x: op.sum(x, [1]), [[4, COUNT]]),
}


@pytest.mark.long
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("kind", SUMS)
def test_sums_of_half_precision_are_computed_in_float32(kind: str, tuned: bool, dtype: str) -> None:
    make, shapes = SUMS[kind]
    found = computed(make, *(ones(*shape, dtype=dtype) for shape in shapes), tuned=tuned)
    assert found.dtype == TYPES[dtype]
    assert (found.astype(np.float32) == COUNT).all()


def normed(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def softmaxed(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


STAGED: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray], np.ndarray]]] = {
    "softmax": (lambda _, x: op.nn.softmax(x), softmaxed),
    "mean": (lambda _, x: op.mean(x, [1]), lambda x: x.mean(1)),
    "variance": (lambda _, x: op.variance(x, [1]), lambda x: x.var(1)),
    "layer norm": (
        lambda _, x: op.nn.layer_norm(
            x, *(relax.const(np.full(64, n, TYPES[str(x.ty.dtype)]), str(x.ty.dtype)) for n in (1, 0)), axes=[-1]
        ),
        normed,
    ),
    "largest": (lambda _, x: op.max(x, [1]), lambda x: x.max(1)),
}


@pytest.mark.long
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", STAGED)
def test_norms_and_reductions_are_one_function_that_rounds_once(kind: str, dtype: str) -> None:
    make, expected = STAGED[kind]
    x = np.random.default_rng(0).normal(3, 2, (8, 64)).astype(TYPES[dtype])
    prepared = prepare(module_of(make, x), TARGET)
    assert sum(call_counts(prepared).values()) == 1
    assert not half_sums(prepared)
    exact = expected(x.astype(np.float32))
    unit = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    for tuned in (False, True):
        found = computed(make, x, tuned=tuned).astype(np.float32)
        assert (np.abs(found - exact) <= 1.01 * unit * np.abs(exact) + 1e-5).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_chain_of_one_kernel_is_rounded_once(dtype: str) -> None:
    """1 + 2^-13 is 1 in half precision, so a chain that rounded in between would give zero."""
    x = ones(4, 64, dtype=dtype)
    small = np.asarray(2.0**-13, TYPES[dtype])

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.add(x, relax.const(small, dtype)))
        return op.subtract(y, relax.const(np.asarray(1.0, TYPES[dtype]), dtype))

    for tuned in (False, True):
        assert (computed(make, x, tuned=tuned) == small).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_value_that_two_kernels_read_is_the_rounded_one(dtype: str) -> None:
    x = ones(4, 64, dtype=dtype)
    small = np.asarray(2.0**-13, TYPES[dtype])

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.add(x, relax.const(small, dtype)))
        total = b.emit(op.nn.softmax(y))
        return op.add(b.emit(op.subtract(y, relax.const(np.asarray(1.0, TYPES[dtype]), dtype))), total)

    found = computed(make, x, tuned=False)
    assert np.allclose(found.astype(np.float32), 1 / 64, rtol=1e-2)


def test_a_model_that_rounds_on_purpose_is_rounded() -> None:
    x = np.full((4, 64), 1 + 2.0**-13, np.float32)

    def make(b: Any, x: Any) -> Any:
        return op.astype(b.emit(op.astype(x, "float16")), "float32")

    assert (computed(make, x, tuned=True) == 1).all()


torch = pytest.importorskip("torch")

from pitchpipe.torch_operators.arrays import to_array  # noqa: E402  # needs torch
from tuner.ingest.torch_export import from_torch  # noqa: E402


class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
    """What vision models and encoders are made of, small."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 32, 3, 2, 1, bias=False)
        self.norm = torch.nn.BatchNorm2d(32)
        self.group = torch.nn.GroupNorm(4, 32)
        self.layer = torch.nn.LayerNorm(32)
        self.attention = torch.nn.MultiheadAttention(32, 2, batch_first=True)
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        for each, low, high in ((self.norm.running_mean, -0.3, 0.3), (self.norm.running_var, 0.7, 1.4)):
            torch.nn.init.uniform_(each, low, high)

    def forward(self, x: Any) -> Any:
        x = torch.nn.functional.max_pool2d(torch.nn.functional.relu6(self.norm(self.stem(x))), 3, 2, 1)
        x = x + torch.nn.functional.silu(self.group(x))
        tokens = x.flatten(2).transpose(1, 2)
        normed = self.layer(tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        tokens = tokens + self.down(torch.nn.functional.gelu(self.up(self.layer(tokens))))
        return tokens.mean(1), torch.softmax(tokens * 0.3, -1)


class Cast(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A module under autocast."""

    def __init__(self, module: Any, dtype: Any) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=self.dtype):
            return self.module(x)


WAYS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "half": lambda module, x: (module.half(), x.half()),
    "bfloat16": lambda module, x: (module.bfloat16(), x.bfloat16()),
    "autocast to float16": lambda module, x: (Cast(module, torch.float16), x),
    "autocast to bfloat16": lambda module, x: (Cast(module, torch.bfloat16), x),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_module_in_half_precision_is_as_near_to_float32_as_eager_is(way: str) -> None:
    torch.manual_seed(0)
    plain, x = Block().eval(), torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        exact = [each.double().numpy() for each in plain(x)]
        module, given = WAYS[way](plain, x)
        eager = [each.double().numpy() for each in module.eval()(given)]
    data, weights = from_torch(module.eval(), (given,))
    model = parse_container(data)
    prepared = prepare(load_ir(model.ir), TARGET)
    assert not half_sums(prepared)
    scheduled = schedule_model(model, TARGET, {}, defaults=unchecked)
    runner = _Runner(scheduled, model, [weights[each.name] for each in model.params])
    found = [each.astype(np.float64) for each in runner.outputs([to_array(given)])]
    for ours, theirs, best in zip(found, eager, exact, strict=True):
        assert np.abs(ours - best).max() <= 1.5 * np.abs(theirs - best).max()


@pytest.mark.long
@pytest.mark.parametrize("way", ["half", "bfloat16"])
def test_half_precision_needs_as_many_kernels_as_float32(way: str) -> None:
    """But one: in bfloat16 a group norm is cast before and after it, since TVM has none of that type."""
    torch.manual_seed(0)
    counts = []
    for module, x in ((Block(), torch.randn(1, 3, 16, 16)), WAYS[way](Block(), torch.randn(1, 3, 16, 16))):
        model = parse_container(from_torch(module.eval(), (x,))[0])
        prepared = prepare(load_ir(model.ir), TARGET)
        counts.append(sum(call_counts(prepared).values()))
    assert counts[1] <= counts[0] + (2 if way == "bfloat16" else 0)


class Residuals(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A convolution and a product whose kernels each cast what they add."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        x = x + torch.nn.functional.silu(self.convolution(x))
        tokens = x.flatten(2).transpose(1, 2)
        return tokens + self.down(torch.relu(self.up(tokens)))


@pytest.mark.parametrize("way", ["half", "bfloat16"])
def test_a_residual_that_is_cast_in_the_kernel_has_a_default_schedule(way: str) -> None:
    torch.manual_seed(0)
    plain, x = Residuals().eval(), torch.randn(1, 32, 12, 12)
    with torch.no_grad():
        exact = plain(x).double().numpy()
        module, given = WAYS[way](plain, x)
        eager = module(given).double().numpy()
    data, weights = from_torch(module, (given,))
    model = parse_container(data)
    with capture_logs() as refused:
        scheduled = schedule_model(model, TARGET, {}, defaults=unchecked)
    assert not refused
    assert set(scheduled.defaults) == set(scheduled.untuned)
    (found,) = _Runner(scheduled, model, [weights[each.name] for each in model.params]).outputs([to_array(given)])
    assert np.abs(found.astype(np.float64) - exact).max() <= 1.5 * np.abs(eager - exact).max()


class Shortcut(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Residual blocks, the first of which has a convolution in its shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = torch.nn.ModuleList([torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)])
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(8) for _ in range(4)])

    def forward(self, x: Any) -> Any:
        first, second, third, fourth = (
            lambda x, c=c, n=n: n(c(x)) for c, n in zip(self.convolutions, self.norms, strict=True)
        )
        x = torch.relu(first(x) + second(x))
        return torch.relu(fourth(torch.relu(third(x))) + x)


@pytest.mark.parametrize("target", [TARGET, GPU], ids=["cpu", "gpu"])
def test_of_two_products_that_are_summed_one_is_stored_in_half_precision(target: Target) -> None:
    """The other one's kernel adds it, as it adds any other residual: they are one workload."""
    torch.manual_seed(0)
    model = parse_container(from_torch(Shortcut().half().eval(), (torch.randn(1, 8, 16, 16).half(),))[0])
    prepared = prepare(load_ir(model.ir), target)
    functions = [one for one in workload_functions(prepared) if "conv2d" in one[0].name_hint]
    assert sum(call_counts(prepared)[variable.name_hint] for variable, *_ in functions) == 4
    assert {str(function.params[-1].ty.dtype) for _, function, _ in functions} == {"float16"}
    assert len({digest for *_, digest in functions}) == 3


class Sums(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Sums, what is computed from them, and a clamp by numbers."""

    def forward(self, x: Any) -> tuple[Any, ...]:
        norm = torch.nn.functional.layer_norm(x, x.shape[-1:])
        return x.sum(), x.mean(0), x.var(-1, unbiased=False), norm, x.softmax(-1), x.clamp(-2, -1), x @ x.T


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "values", [[[-1.5, -2.5, -1.0], [-3.0, -1.25, -2.0]], [[0.5]], [[0.0, -0.0, 1e-7, -6e4]]], ids=str
)
def test_negative_single_and_extreme_numbers_give_what_eager_gives(dtype: Any, values: list[list[float]]) -> None:
    x = torch.tensor(values, dtype=dtype)
    model = parse_container(from_torch(Sums().eval(), (x,))[0])
    found = _Runner(schedule_model(model, TARGET, {}, defaults=unchecked), model, []).outputs([to_array(x)])
    tolerance = 5e-3 if dtype is torch.float16 else 2e-2
    for ours, theirs in zip(found, Sums()(x), strict=True):
        expected = to_array(theirs).astype(np.float64)
        assert np.allclose(ours.astype(np.float64), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_a_mask_of_single_precision_is_added_to_scores_of_half_precision() -> None:
    class Masked(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, mask: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    inputs = (torch.randn(1, 2, 10, 8).half(), torch.full((10, 10), -torch.inf).triu(1))
    model = parse_container(from_torch(Masked().eval(), inputs)[0])
    (found,) = _Runner(schedule_model(model, TARGET, {}, defaults=unchecked), model, []).outputs(
        list(map(to_array, inputs))
    )
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, Masked()(*inputs).numpy(), rtol=5e-3, atol=5e-3)

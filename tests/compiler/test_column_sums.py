"""Sums of columns, norms of channels that come last, and reductions of fewer rows than cores: all cores work, and results are
what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler import programs
from tests.compiler.test_rowwise import loops_of
from tests.compiler.test_space_default import outputs
from tuner.graph.image_norms import group_norm_of_channels
from tuner.schedule.trace import apply_trace
from tuner.space.default import default_trace
from tuner.space.processor import VectorUnit
from tuner.space.spread import equal_chunks
from tuner.tvm_compat import load_ir, relax, tirx

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch

from benchmarks.torch_operator_cases import through_load  # noqa: E402
from pitchpipe.model.comparison import difference  # noqa: E402
from tests.compiler.test_torch_layers import prepared  # noqa: E402

op = relax.op
FOUR = Target.parse({**programs.TARGET.attributes(), "num-cores": 4})
LANES = VectorUnit.of(FOUR, 32).lanes
ONE = Target.parse({**programs.TARGET.attributes(), "num-cores": 1})


def norm(groups: int, *axes: int) -> Any:
    return lambda b, x, g, s: b.emit_te(group_norm_of_channels, x, g, s, groups, axes, 1e-5)


CASES = {
    # name: (function, shapes, extents of the parallel loops on four cores)
    "mean of an image": (lambda b, x: op.mean(x, axis=[1, 2]), ((1, 56, 56, 64),), [8]),
    "maximum of an image": (lambda b, x: op.max(x, axis=[1, 2]), ((1, 56, 56, 64),), [8]),
    "rows that only together divide": (lambda b, x: op.sum(x, axis=[1, 2]), ((1, 59, 40, 64),), [8]),
    "two images": (lambda b, x: op.mean(x, axis=[1, 2]), ((2, 32, 32, 128),), [32]),
    "groups of ten channels": (norm(4, 1, 2), ((1, 64, 64, 40), (40,), (40,)), [16, 16, 64]),
    "one group": (norm(1, 1), ((1, 1000, 256), (256,), (256,)), [8, 8, 1000]),
    "each channel": (norm(48, 1, 2), ((2, 32, 32, 48), (48,), (48,)), [32, 32, 64]),
    "long rows": (lambda b, x: op.nn.softmax(x), ((2, 200_000),), [32, 400_000 // LANES] * 2),
    "one row of three axes": (
        lambda b, x, g, s: op.nn.layer_norm(x, g, s, axes=[-3, -2, -1]),
        ((1, 24, 64, 64), (24, 64, 64), (24, 64, 64)),
        [16, 16, 24],
    ),
}
MANY = {
    "a row for every core": (lambda b, x: op.nn.softmax(x), ((8, 50_000),)),
    "windows": (lambda b, x: op.nn.avg_pool2d(x, (2, 2), strides=(2, 2), layout="NHWC"), ((1, 64, 64, 64),)),
    "a prime number of rows": (lambda b, x: op.mean(x, axis=[0]), ((1999, 768),)),
    "softmax over channels": (lambda b, x: op.nn.softmax(x, axis=1), ((1, 21, 32, 64),)),
}


def scheduled(workload: Workload, target: Target) -> Any:
    trace = default_trace(workload, target)
    assert trace != BASELINE_TRACE
    return apply_trace(load_ir(workload.ir), trace).mod


def parallel_extents(mod: Any) -> list[int]:
    return [int(loop.extent) for loop in loops_of(mod) if loop.kind == tirx.ForKind.PARALLEL]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_rows_are_divided_among_cores(name: str) -> None:
    make, shapes, extents = CASES[name]
    workload = programs.workload(make, *shapes)
    mod = scheduled(workload, FOUR)
    assert parallel_extents(mod) == extents
    np.testing.assert_allclose(outputs(mod)[-1], outputs(load_ir(workload.ir))[-1], rtol=2e-4, atol=2e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MANY)
def test_rows_stay_whole_where_there_are_many_or_nothing_divides_them(name: str) -> None:
    make, shapes = MANY[name]
    workload = programs.workload(make, *shapes)
    mod = scheduled(workload, FOUR)
    assert len(parallel_extents(mod)) == 1
    np.testing.assert_allclose(outputs(mod)[-1], outputs(load_ir(workload.ir))[-1], rtol=1e-4, atol=1e-5)


def test_one_core_divides_nothing() -> None:
    make, shapes, _ = CASES["mean of an image"]
    assert "_rf" not in scheduled(programs.workload(make, *shapes), ONE).script()


@pytest.mark.parametrize(
    ("extent", "chunks"), [(64, 16), (14, 14), (6, 6), (7, 7), (5, 5), (10, 10), (17, 1), (1, 1), (34, 2)]
)
def test_chunks_are_equal_and_leave_no_core_more_than_it_must_do(extent: int, chunks: int) -> None:
    assert equal_chunks(extent, FOUR) == chunks


def test_what_a_vector_would_gather_is_stored() -> None:
    make, shapes, _ = CASES["groups of ten channels"]
    (element,) = [
        line
        for line in scheduled(programs.workload(make, *shapes), FOUR).script().splitlines()
        if "T_norm[" in line and " = " in line
    ]
    assert "//" not in element


class Norms(nn.Module):  # type: ignore[misc]
    """Norms between convolutions, whose images are channels last."""

    def __init__(self, offset: float, shape: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        convolution = nn.Conv1d if len(shape) == 3 else nn.Conv2d
        self.first, self.last = convolution(3, 20, 3, padding=1), convolution(20, 4, 1)
        self.groups, self.one = nn.GroupNorm(2, 20), nn.GroupNorm(1, 20)
        self.each = (nn.InstanceNorm1d if len(shape) == 3 else nn.InstanceNorm2d)(20, affine=True)
        for layer in (self.groups, self.one, self.each):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
        self.offset = offset
        self.tensors = [torch.randn(*shape)]

    def forward(self, x: Any) -> Any:
        x = self.first(x) + self.offset
        return self.last(nn.functional.silu(self.groups(x)) + self.one(x) * self.each(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize("shape", [(2, 3, 9, 7), (1, 3, 50)])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_norms_of_channels_that_come_last_are_pytorchs_in_float64(shape: tuple[int, ...], offset: float) -> None:
    module = Norms(offset, shape).eval()
    mod, *_ = prepared(module, tuple(module.tensors))
    assert sum("norm" in variable.name_hint for variable in mod.functions) == 3
    assert not any("transpose" in variable.name_hint for variable in mod.functions if "norm" in variable.name_hint)
    found = [*map(np.asarray, through_load(module, programs.TARGET))]
    first = module.first(module.tensors[0]).detach()
    with torch.no_grad():
        module.double().first = _Given(first.double())
        expected = [module(module.tensors[0].double()).float().numpy()]
    assert difference(found, expected) is None


class _Given(nn.Module):  # type: ignore[misc]
    """A layer whose result is known: float32's rounding before a norm is not the norm's."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def forward(self, _: Any) -> Any:
        return self.result


class Extrema(nn.Module):  # type: ignore[misc]
    """Of columns so long that each core takes a part of the rows."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.tensors = [x]

    def forward(self, x: Any) -> Any:
        return *x.max(1), *x.min(1), x.argmax(1), x.max(1)[0].relu(), x.min(1)[0].relu()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("special", [None, float("nan"), float("inf"), -float("inf")])
def test_of_equal_extrema_the_first_is_taken_and_nan_stays_where_rows_are_divided(special: float | None) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 3, (1, 4096, 64)).float()
    if special is not None:
        x[0, [1000, 3000], 5] = special
    module = Extrema(x)
    for found, expected in zip(through_load(module, programs.TARGET), module(x), strict=True):
        np.testing.assert_array_equal(np.asarray(found), expected.numpy())

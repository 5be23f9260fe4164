"""Pools over windows beside PyTorch, whatever is pooled, and in vectors where channels come first."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import through_load  # noqa: E402
from tests.compiler import programs  # noqa: E402
from tests.compiler.graphs import Graph, check, kernels  # noqa: E402
from tests.compiler.test_torch_operators import Of  # noqa: E402
from tuner.measure.build import apply, generate  # noqa: E402
from tuner.space.default import default_trace  # noqa: E402
from tuner.tvm_compat import load_ir, relax, to_tvm_target  # noqa: E402

functional = torch.nn.functional
pool = relax.op.nn.max_pool2d
INF, NAN = float("inf"), float("nan")

WINDOWS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 5, "stride": 1, "padding": 2},
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2},
    {"kernel_size": (1, 5), "stride": 1, "padding": (0, 2)},
    {"kernel_size": 13, "stride": 1, "padding": 6},
)


def images() -> list[Any]:
    plain = torch.randn(2, 3, 13, 21, generator=torch.Generator().manual_seed(0))
    mixed = plain.clone()
    mixed.view(-1)[::37], mixed.view(-1)[::41], mixed.view(-1)[::53] = NAN, -INF, INF
    mixed[0, 1], mixed[1, 2, :4, :4] = -INF, -INF
    return [plain - 10, mixed, torch.full_like(plain, -INF), torch.full_like(plain, NAN)]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_maximum_over_windows_is_pytorchs_for_numbers_infinities_and_what_is_no_number(
    window: dict[str, Any],
) -> None:
    several = Of(lambda *given: [functional.max_pool2d(x, **window) for x in given], *images())
    for found, expected in zip(through_load(several.eval(), programs.TARGET), several(*several.tensors), strict=True):
        np.testing.assert_array_equal(found, expected.numpy())


def test_the_maximum_of_elements_at_the_end_of_the_range_is_not_taken_for_padding() -> None:
    least = torch.finfo(torch.float32).min
    x = torch.full((2, 4, 6), least)
    x[1] = -INF
    clamped = Of(lambda x: (torch.clamp(x, min=least).amax(-1), functional.pad(x, (0, 1), value=least).amax(-1)), x)
    for found, expected in zip(through_load(clamped.eval(), programs.TARGET), clamped(x), strict=True):
        np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize(
    ("layout", "shape", "size", "count"),
    [
        ("NCHW", (2, 3, 11, 9), (3, 3), 2),
        ("NCHW", (2, 3, 11, 9), (2, 2), 1),
        ("NHWC", (2, 11, 9, 8), (5, 5), 2),
        ("NHWC", (2, 11, 9, 8), (3, 3), 1),
    ],
)
def test_windows_are_reduced_by_columns_and_then_by_rows(
    layout: str, shape: tuple[int, ...], size: tuple[int, int], count: int
) -> None:
    graph = Graph()
    x = graph.tensor(*shape)
    ways = {"padding": (0, 1, 1, 0), "strides": (2, 1), "layout": layout}
    prepared = check(graph, lambda emit: emit(pool(x, size, **ways)))
    assert kernels(prepared) == ["max_pool2d"] * count


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [((1, 3), (1, 2), (0, 1)), ((5, 1), (1, 1), (2, 0)), ((2, 2), (2, 2), (0, 0))]
)
def test_a_pool_with_channels_first_is_made_of_vectors(size: Any, stride: Any, padding: Any) -> None:
    target = programs.TARGET.model_copy(update={"mcpu": "znver5"})
    workload = programs.workload(lambda b, x: pool(x, size, strides=stride, padding=padding), (1, 64, 24, 20))
    scheduled = apply(load_ir(workload.ir), default_trace(workload, target))
    code = generate(scheduled, to_tvm_target(target))[1].inspect_source("asm")
    assert re.search(r"vmaxps\s.*%[yz]mm", code)
    assert re.search(r"vcmp(un)?ordps\s.*%[yz]mm", code), "NaN is asked for in vectors"

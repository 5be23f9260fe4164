"""Functions of mathematics, histograms and segments of PyTorch, on ordinary values and where they end: zeros, poles, signs,
numbers beyond which forms change, infinities and what is no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import through_load  # noqa: E402  # needs torch
from pitchpipe.model.comparison import difference  # noqa: E402
from pitchpipe.torch_operators.arrays import to_array  # noqa: E402
from pitchpipe.wire.job import ModelFormat  # noqa: E402
from pitchpipe.wire.task import TaskKind  # noqa: E402
from tests.compiler.programs import TARGET  # noqa: E402
from tuner.ingest.torch_export import from_torch  # noqa: E402
from tuner.tasks import split_ingested  # noqa: E402

special = torch.special
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unoptimised")]
INF, NAN = float("inf"), float("nan")


class Of(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A module of a function and the tensors to call it with."""

    def __init__(self, function: Callable[..., Any], *tensors: Any) -> None:
        super().__init__()
        self.function, self.tensors = function, tensors

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def both(function: Callable[..., Any], *tensors: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What is built gives, and what PyTorch gives, on these tensors."""
    expected = function(*tensors)
    expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    found = through_load(Of(function, *tensors).eval(), TARGET)
    return [*map(np.asarray, found)], [*map(to_array, expected)]


def check(function: Callable[..., Any], *tensors: Any) -> None:
    assert difference(*both(function, *tensors)) is None


def all_of(*functions: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives the results of several on the same arguments, a tensor for each."""
    return lambda *tensors: tuple(function(*tensors) for function in functions)


CHEBYSHEV = [getattr(special, f"{shift}chebyshev_polynomial_{kind}") for shift in ("", "shifted_") for kind in "tuvw"]
OTHERS = [
    *(special.hermite_polynomial_h, special.hermite_polynomial_he),
    *(special.laguerre_polynomial_l, special.legendre_polynomial_p),
]
AT = torch.tensor(
    [
        *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 0.99999994, -0.99999994, 1e-4, 0.9999, 1.0000001, 1.0001, -1.5, 2.0, 8.0),
        *(-8.0, 30.0, 1e20, INF, -INF),
    ]
)
DEGREES = torch.tensor(
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 33.7, -0.5, -1.0, 100.0, 128.0, 129.0, INF, -INF, NAN]
)


@pytest.mark.parametrize("functions", [CHEBYSHEV, OTHERS], ids=["chebyshev", "others"])
def test_a_polynomial_takes_its_degree_from_data(functions: list[Callable[..., Any]]) -> None:
    check(all_of(*functions), AT[:, None].clone(), DEGREES.clone())


def test_polynomials_take_numbers_and_whole_numbers() -> None:
    legendre, chebyshev = special.legendre_polynomial_p, special.chebyshev_polynomial_u
    degrees = torch.arange(-1, 12)
    check(lambda x, n: (legendre(x, 5), chebyshev(0.3, n)), torch.linspace(-3, 3, 20), degrees)
    check(all_of(legendre, chebyshev), torch.arange(-3, 4)[:, None].clone(), degrees)


BESSEL = (
    *("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1"),
    *("modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"),
    *("airy_ai", "spherical_bessel_j0"),
)
ENDS = torch.tensor([0.0, -0.0, -1.0, -8.0, 1e-20, INF, -INF, NAN, 3e38])
INSIDE = torch.cat(
    [
        torch.linspace(0.05, 12, 120),
        torch.tensor([2.0, 2.0001, 2.0899, 2.0901, 5.0, 5.0001, 2.404826, 50.0, 104.0, 1e4]),
    ]
)


@pytest.mark.parametrize("at", [ENDS, torch.cat([INSIDE, -INSIDE])], ids=["ends", "inside"])
def test_bessel_functions_and_airys(at: Any) -> None:
    check(all_of(*(getattr(special, name) for name in BESSEL)), at.clone())


def test_zeta_where_it_has_poles_values_and_none() -> None:
    s = torch.tensor([-1.0, 0.5, 1.0, 1.0001, 1.5, 2.0, 3.0, 20.0, 100.0, INF, NAN])
    q = torch.tensor([0.0, -1.0, -1.5, -8.47, 1e-4, 0.5, 1.0, 8.99, 9.0, 9.5, 33.0, 1e5, 1e20, INF, NAN, -1000.25])
    check(special.zeta, s[:, None].clone(), q)
    check(lambda q, s: (special.zeta(3.5, q), special.zeta(s, 2)), q, s)
    check(special.zeta, torch.arange(-2, 9)[:, None].clone(), torch.arange(-3, 12))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_polygamma_of_any_order(dtype: str) -> None:
    at = torch.tensor([0.0, -0.0, -1.0, -2.0, 1.0, 2.0, 0.5, -0.5, -1.5, 1e-2, -1e-2, 8.0, 40.0]).to(
        getattr(torch, dtype)
    )
    check(lambda x: tuple(torch.polygamma(n, x) for n in (1, 2, 3, 9, 34, 35, 200)), at)


GAMMA_A = (0.0, 1e-4, 0.1, 0.5, 1.0, 1.1, 2.0, 8.0, 21.0, 150.0, 199.0, 201.0, 1e3, 1e5, INF, NAN, -1.0)
GAMMA_X = (
    0.0,
    1e-4,
    0.5,
    1.0,
    1.05,
    1.2,
    3.0,
    8.0,
    9.0,
    21.0,
    40.0,
    150.0,
    190.0,
    201.0,
    230.0,
    900.0,
    1e5,
    INF,
    NAN,
    -1.0,
)


@pytest.mark.long
def test_incomplete_gamma_functions_in_all_their_regions() -> None:
    check(all_of(torch.igamma, torch.igammac), torch.tensor(GAMMA_A)[:, None].clone(), torch.tensor(GAMMA_X))


@pytest.mark.long
def test_a_small_incomplete_gamma_function_has_right_digits() -> None:
    a = torch.tensor([2.0, 5.0, 8.0, 10.0])[:, None].clone()
    check(
        lambda a, x, y: (torch.igammac(a, x), torch.igamma(a, y)), a, torch.tensor([40.0, 50.0]), torch.tensor([1e-3])
    )
    check(torch.igammac, a, torch.tensor([40.0, 50.0]))


def test_incomplete_gamma_functions_of_half_precision() -> None:
    a, x = torch.linspace(0, 9, 10).half()[:, None].clone(), torch.linspace(0, 20, 20).half()
    check(all_of(torch.igamma, torch.igammac), a, x)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_parts_and_neighbours_of_numbers_are_exact(dtype: str) -> None:
    at = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -3.7,
        1e-40,
        -1e-41,
        1.4e-45,
        6e-8,
        65504.0,
        3.3e38,
        INF,
        -INF,
        NAN,
        5e-324,
        1e-310,
    ]
    x = torch.tensor(at, dtype=torch.float64).to(getattr(torch, dtype))
    found, expected = both(lambda x, y: (*torch.frexp(x), torch.nextafter(x[:, None], y)), x, x.clone())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        none = np.isnan(theirs.astype(np.float64))
        np.testing.assert_array_equal(np.isnan(ours.astype(np.float64)), none)
        whole = f"int{8 * theirs.dtype.itemsize}"
        np.testing.assert_array_equal(ours.view(whole)[~none], theirs.view(whole)[~none])


def test_histograms_count_every_edge_where_pytorch_does() -> None:
    torch.manual_seed(0)
    ordinary, weights = torch.randn(300), torch.rand(300)
    check(lambda x, w: (*torch.histogram(x, 12, weight=w, density=True), torch.histogram(x, 7)[0]), ordinary, weights)
    outside = torch.tensor([0.0, 1.0, 0.5, NAN, INF, -INF, -0.0, 0.2, 0.4, 0.6, 0.8, 1.1])
    edges = torch.tensor([-2.0, 0.0, 0.2, 1.0])
    check(lambda x, e: (*torch.histogram(x, 5, range=(0.0, 1.0)), torch.histogram(x, e)[0]), outside, edges)
    check(lambda x: (*torch.histogram(x, 10), torch.histogram(x[:1], 3)[1]), torch.arange(0, 31).float())


def test_histograms_of_several_dimensions() -> None:
    torch.manual_seed(0)

    def histograms(x: Any, edges: Any) -> Any:
        counted, ends = torch.histogramdd(x, [3, 4], density=True)
        return counted, *ends, torch.histogramdd(x, (edges, edges))[0]

    check(histograms, torch.randn(100, 2), torch.tensor([-1.0, 0.0, 0.5, 2.0]))


@pytest.mark.parametrize("initial", [None, 2.0])
def test_segments_are_reduced_as_in_pytorch(initial: float | None) -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 3)
    x[3, 1], x[8, 2] = NAN, INF

    def reduced(x: Any, lengths: Any, offsets: Any) -> Any:
        return (
            *(
                torch.segment_reduce(x, kind, lengths=lengths, initial=initial)
                for kind in ("max", "min", "sum", "mean")
            ),
            torch.segment_reduce(x, "prod", offsets=offsets, initial=initial),
        )

    check(reduced, x, torch.tensor([3, 0, 5, 4]), torch.tensor([0, 3, 3, 8, 12]))


def test_segments_of_a_batch_have_lengths_of_their_own() -> None:
    lengths = torch.tensor([[3, 0, 5, 4], [6, 6, 0, 0]])
    check(lambda x, n: torch.segment_reduce(x, "sum", lengths=n, axis=1, unsafe=True), torch.randn(2, 12, 3), lengths)


def test_chunks_of_a_linear_cross_entropy_change_no_value() -> None:
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    torch.manual_seed(0)
    target, options = torch.tensor([0, 1, 2, 3, -100, 1, 1, 0]), LinearCrossEntropyOptions(batch_chunk_size=2)

    def losses(x: Any, w: Any, b: Any, target: Any, weight: Any) -> Any:
        return tuple(
            torch.nn.functional.linear_cross_entropy(
                x, w, target, linear_bias=b, weight=weight, reduction=reduction, options=options
            )
            for reduction in ("mean", "sum", "none")
        )

    check(losses, torch.randn(8, 3), torch.randn(4, 3), torch.randn(4), target, torch.rand(4))


def test_a_loop_as_long_as_data_say_is_a_task_with_a_fixed_schedule() -> None:
    x, n = torch.linspace(-2, 2, 8)[:, None].clone(), torch.arange(6.0)
    data, _ = from_torch(Of(lambda x, n: torch.relu(special.legendre_polynomial_p(x, n)), x, n).eval(), (x, n))
    tasks = split_ingested(data, ModelFormat.RELAX, [TARGET])
    assert {task.kind for task in tasks} == {TaskKind.FIXED}
    assert any("legendre" in task.name for task in tasks)


@pytest.mark.parametrize("name", ["bessel_y1", "airy_ai", "modified_bessel_k1"])
def test_a_function_of_elements_is_a_task(name: str) -> None:
    x = torch.rand(16, 16)
    data, _ = from_torch(Of(getattr(special, name), x).eval(), (x,))
    assert [task.flops > 0 for task in split_ingested(data, ModelFormat.RELAX, [TARGET])] == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_max_pools_of_minus_infinity_are_that_at_the_border_too(dtype: Any) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 7, 9))).to(dtype)
    x[0, 0], x[1, 2, 5:], x[1, 0, :, 0], x[0, 1, 2, 3] = -INF, -INF, INF, NAN
    pool = torch.nn.functional
    images = all_of(
        lambda x: pool.max_pool2d(x, 3, 2, 1),
        lambda x: pool.max_pool2d(x, (3, 2), (1, 2), (1, 0), (2, 1)),
        lambda x: pool.max_pool1d(x[0], 4, 3, 2),
        lambda x: pool.max_pool3d(x, (1, 3, 2), 1, (0, 1, 1)),
    )
    for ours, theirs in zip(*both(images, x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_bounds_that_are_no_numbers_leave_none() -> None:
    x = torch.tensor([0.0, -1.0, INF, -INF, NAN])
    check(all_of(lambda x: x.clamp(max=NAN), lambda x: x.clamp(min=NAN), lambda x: x.clamp(NAN, 1.0)), x)


def test_what_writes_at_no_place_gives_what_it_was_given() -> None:
    x, y = torch.rand(2, 5), torch.rand(2, 5)

    def written(x: Any, y: Any) -> Any:
        none, rows = torch.arange(0), torch.zeros(2, 0, dtype=torch.int64)
        assigned, placed = x.clone(), y.clone()
        assigned[:, 3:3] = y[:, :0] * 2
        placed[none] = 1.5
        added = x.index_add(0, none, y[:0]), x.index_copy(0, none, y[:0]), x.index_fill(1, none, 3.0)
        beside = torch.diagonal_scatter(x, y[0, :0], 5)
        return assigned, placed, beside, *added, x.scatter(1, rows, 7.0), x.scatter_reduce(1, rows, y[:, :0], "amax")

    check(written, x, y)


CORNERS = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-45, -1e-20, 3e38, INF, -INF, NAN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_angles_and_powers_of_two_are_those_of_pytorch_at_corners_too(dtype: Any) -> None:
    corners = torch.tensor(CORNERS, dtype=dtype)
    y, x = torch.meshgrid(corners, corners, indexing="ij")
    check(torch.atan2, y.contiguous(), x.contiguous())
    check(all_of(torch.atan, torch.asin, torch.acos, torch.exp2), corners)
    check(torch.atan2, torch.tensor(-0.0, dtype=dtype), torch.tensor(-1.0, dtype=dtype))  # without dimensions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_are_normalised_as_pytorch_does(dtype: Any) -> None:
    """Whose norm is broadcast: rows of zeros, of small and large numbers, and one that has no number."""
    rows = torch.randn(6, 40, dtype=torch.float32)
    rows[1], rows[2], rows[3], rows[4, 7] = 0, rows[2] * 1e-3, rows[3] * 100, NAN
    check(lambda x: torch.nn.functional.normalize(x, dim=-1), rows.to(dtype))
    check(lambda x: torch.nn.functional.normalize(x, dim=0), rows.to(dtype)[None, :4])
